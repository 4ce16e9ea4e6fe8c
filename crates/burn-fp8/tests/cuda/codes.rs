//! The codes and scales that kernels write for tensor cores equal those of the slice functions on the host, bit for bit.

use burn_fp8::burn_fp8_core::{Layouts, Overflow, scale};
use burn_fp8::engine::{Codes, Request, Scalar, ScalarOf, ScaleRule, ScaleRuleOf, Scales, Wanted};
use burn_fp8_cpu::slice;

use crate::common::products::View;
use crate::common::*;
use crate::on_cuda;
use crate::support::{DTYPES, first};

/// Rows and columns of codes are padded to multiples of it.
const PADDING: usize = 16;

struct Written {
    rows: Option<Vec<u8>>,
    transposed: Option<Vec<u8>>,
    scale: f32,
    amax: Option<f32>,
}

fn write<B: Fp8Matmul, const D: usize>(
    x: Tensor<B, D>,
    format: Fp8Format,
    rule: ScaleRuleOf<B>,
    layouts: Layouts,
) -> Written {
    let shape = x.dims();
    let columns = shape[D - 1];
    let shape = [shape.iter().product::<usize>() / columns, columns];
    let matrix = B::fp8_quantize(
        x.into_primitive().tensor(),
        Request::whole(format, rule, Wanted::Lines(layouts)),
    );
    assert_eq!(matrix.format, format);
    let bytes = |codes, shape: [usize; 2]| {
        let Codes::Padded(words, unpadded) = codes else { panic!("laid out for tensor cores") };
        assert_eq!(unpadded.dims(), shape);
        let [rows, columns] = shape.map(|size| size.next_multiple_of(PADDING));
        let words = Tensor::<B, 2, Int>::from_primitive(words);
        assert_eq!(words.dims(), [rows, columns / 4]);
        words.into_data().as_bytes().to_vec()
    };
    let Scales::One(scale) = matrix.scales else { panic!("one for all") };
    let [rows, columns] = shape;
    Written {
        rows: matrix.codes.map(|codes| bytes(codes, [rows, columns])),
        transposed: matrix.transposed.map(|codes| bytes(codes, [columns, rows])),
        scale: scale.read::<B>(),
        amax: matrix.amax.map(ScalarOf::<B>::read::<B>),
    }
}

/// Codes padded with zeros.
fn pad(codes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    let [padded_rows, padded] = [rows, columns].map(|size| size.next_multiple_of(PADDING));
    let at = |row: usize| move |column: usize| (column < columns).then(|| row * columns + column);
    let codes_of = |at: Option<usize>| at.map_or(0, |at| codes[at]);
    let rows_of = |row| (0..padded).map(at(row)).map(codes_of);
    let mut all: Vec<u8> = (0..rows).flat_map(rows_of).collect();
    all.resize(padded_rows * padded, 0);
    all
}

/// Sign and payload of NaN are free.
#[track_caller]
fn assert_same(format: Fp8Format, actual: &[u8], expected: &[u8], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let same = a == e || (format.is_nan(*a) && format.is_nan(*e));
        assert!(same, "{what}: code {index} is {a:#04x} instead of {e:#04x}");
    }
}

#[track_caller]
fn check<B: Fp8Matmul, const D: usize>(x: Tensor<B, D>, format: Fp8Format, what: &str) {
    let host = values(x.clone());
    let shape = x.dims();
    let columns = shape[D - 1];
    let rows = host.len() / columns;
    let amax = slice::amax(&host).value;
    let recipe = Recipe::current();
    let powers = recipe.with_power_of_two(true).with_margin(-2);
    let margin = recipe.with_margin(3);
    let rules: [(ScaleRuleOf<B>, Recipe, f32); 6] = [
        (ScaleRule::Current(recipe), recipe, amax),
        (ScaleRule::Current(powers), powers, amax),
        (ScaleRule::Current(margin), margin, amax),
        // Smaller than the tensor: elements saturate.
        (ScaleRule::Delayed(Scalar::Host(0.3), recipe), recipe, 0.3),
        (ScaleRule::Delayed(on_device::<B>(0.7), recipe), recipe, 0.7),
        // No amax yet: that of the tensor.
        (ScaleRule::Delayed(on_device::<B>(0.0), recipe), recipe, amax),
    ];
    for (index, (rule, recipe, amax_used)) in rules.into_iter().enumerate() {
        let what = format!("{what}, {format}, rule {index}");
        let expected_scale = scale::from_amax(amax_used, format, recipe);
        let mut codes = vec![0; host.len()];
        slice::encode(&host, expected_scale, format, Overflow::SaturateFinite, &mut codes);
        let expected = pad(&codes, [rows, columns]);
        let expected_transposed = pad(&transpose(&codes, [rows, columns]), [columns, rows]);
        for layouts in [Layouts::Both, Layouts::Rows, Layouts::Transposed] {
            let what = format!("{what}, {layouts:?}");
            let written = write(x.clone(), format, rule.clone(), layouts);
            assert_eq!(written.scale.to_bits(), expected_scale.to_bits(), "{what}: scale");
            assert_eq!(written.amax.map(f32::to_bits), Some(amax.to_bits()), "{what}: amax");
            assert_eq!(written.rows.is_some(), layouts.rows());
            assert_eq!(written.transposed.is_some(), layouts.transposed());
            if let Some(codes) = written.rows {
                assert_same(format, &codes, &expected, &format!("{what}: rows"));
            }
            if let Some(codes) = written.transposed {
                assert_same(format, &codes, &expected_transposed, &format!("{what}: transposed"));
            }
        }
    }
}

fn on_device<B: Fp8Matmul>(value: f32) -> ScalarOf<B> {
    Scalar::Device(tensor::<B, 1>(&[value], [1]).into_primitive().tensor())
}

fn of_every_shape<B: Fp8Matmul>() {
    const SHAPES: [[usize; 2]; 8] =
        [[1, 1], [1, 500], [500, 1], [16, 16], [33, 57], [100, 260], [256, 128], [1000, 1024]];
    for &[rows, columns] in first(&SHAPES, 6) {
        for dtype in DTYPES {
            let x = Random((rows * columns) as u64).normals(rows * columns);
            let x = tensor::<B, 2>(&x, [rows, columns]).cast(dtype);
            for format in [E4M3, E5M2] {
                check(x.clone(), format, &format!("{rows}×{columns} {dtype:?}"));
            }
        }
    }
}

/// Any bit pattern, so of any magnitude, some of them not finite.
fn of_every_magnitude<B: Fp8Matmul>() {
    let x = Random(17).floats(64 * 192);
    for format in fp8::FORMATS {
        check(tensor::<B, 2>(&x, [64, 192]), format, "bit patterns");
        let finite = x.iter().map(|x| if x.is_nan() { 0.0 } else { x.clamp(-4.0, 4.0) });
        let finite = tensor::<B, 2>(&finite.collect::<Vec<_>>(), [64, 192]);
        check(finite, format, "bit patterns to 4");
        check(tensor::<B, 2>(&[0.0; 40], [8, 5]), format, "zeros");
        check(tensor::<B, 2>(&[f32::NAN; 40], [8, 5]), format, "NaN");
    }
}

fn of_views<B: Fp8Matmul>() {
    let x = tensor::<B, 2>(&Random(5).normals(48 * 80), [48, 80]);
    for view in View::ALL {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            check(view.of(x.clone()).cast(dtype), E4M3, &format!("{view:?}"));
        }
        check(view.of(x.clone()), E5M2, &format!("{view:?}"));
    }
}

fn of_joined_dimensions<B: Fp8Matmul>() {
    let x = tensor::<B, 3>(&Random(6).normals(3 * 5 * 70), [3, 5, 70]);
    check(x.clone(), E4M3, "rank 3");
    check(x.swap_dims(0, 1), E4M3, "rank 3, swapped");
    check(tensor::<B, 4>(&Random(7).normals(2 * 3 * 4 * 40), [2, 3, 4, 40]), E5M2, "rank 4");
}

on_cuda!([of_every_shape, of_every_magnitude, of_views, of_joined_dimensions]);
