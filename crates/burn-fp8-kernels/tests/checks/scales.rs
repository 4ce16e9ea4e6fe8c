//! Amaxes and scales on the device are those of the core, bit for bit.

use super::values::{FORMATS, random_bits, spread};
use super::{Client, ELEMENTS, Held, client, read, read_scalar, scalar};
use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};
use burn_fp8_cpu::slice;
use burn_fp8_kernels::{
    Element, Layouts, NonFinite, Outputs, Scalar, ScaleRule, amax, quantize, quantize_matrix,
};
use cubecl::server::Handle;

fn device_scale(quantized: &Scalar) -> &Handle {
    match quantized {
        Scalar::Device(scale) => scale,
        Scalar::Host(scale) => panic!("{scale} was chosen on the host"),
    }
}

/// Codes, scale and amax are those that follow from the amax of the tensor, or from that of earlier steps, if it is not zero.
fn check(
    client: &Client,
    (x, shape): (&[f32], &[usize]),
    element: Element,
    from: Option<f32>,
    format: Fp8Format,
    recipe: Recipe,
) {
    let (held, x) = Held::new(client, x, shape, element);
    let rule = match from {
        None => ScaleRule::Current(recipe),
        Some(from) => ScaleRule::Delayed { from: scalar(client, from), recipe },
    };
    let quantized = quantize(client, &held.input(), format, &rule, Outputs::Codes).expect("valid");
    let amax = slice::amax(&x).value;
    let what = format!("{format} {recipe:?} of {amax:e} from {from:?}");
    let from = from.filter(|from| *from != 0.0).unwrap_or(amax);
    let expected = scale::from_amax(from, format, recipe);
    let chosen = read_scalar(client, device_scale(&quantized.scale));
    assert_eq!(chosen.to_bits(), expected.to_bits(), "{what}: {chosen:e}, not {expected:e}");
    let measured = read_scalar(client, &quantized.amax.expect("the rule measures it"));
    assert_eq!(measured.to_bits(), amax.to_bits(), "{what}");
    let mut codes = vec![0; x.len()];
    slice::encode(&x, expected, format, Overflow::SaturateFinite, &mut codes);
    let found = read(client, &quantized.codes.expect("asked for"));
    assert!(found[..x.len()] == codes, "{what}");
}

fn recipes() -> Vec<Recipe> {
    let margins = [-64, -7, -1, 0, 1, 3, 64];
    let recipe = |margin, power_of_two| {
        Recipe::current().with_margin(margin).with_power_of_two(power_of_two)
    };
    margins.iter().flat_map(|margin| [recipe(*margin, false), recipe(*margin, true)]).collect()
}

/// Every exponent with a few mantissas.
fn amaxes() -> Vec<f32> {
    let mantissas = [0, 1, 0x40_0000, 0x60_0000, 0x12_3456, 0x7F_FFFE, 0x7F_FFFF];
    let bits = (0..255u32).step_by(3).flat_map(|e| mantissas.map(|mantissa| (e << 23) | mantissa));
    bits.map(f32::from_bits).collect()
}

pub fn current_scales_come_from_the_tensor() {
    let client = client();
    for (i, amax) in amaxes().into_iter().enumerate() {
        let (recipe, format) = (recipes()[i % recipes().len()], FORMATS[i / 2 % 2]);
        let x = [0.3 * amax, -amax, 0.7 * amax, 0.0, -0.0];
        check(&client, (&x, &[x.len()]), Element::F32, None, format, recipe);
    }
}

pub fn delayed_scales_come_from_earlier_steps_and_the_amax_is_measured_on_the_way() {
    let client = client();
    for (i, from) in amaxes().into_iter().enumerate() {
        let (recipe, format) = (recipes()[i % recipes().len()], FORMATS[i / 2 % 2]);
        let x = spread(300 + i % 7, 20, i as u64);
        check(&client, (&x, &[x.len()]), ELEMENTS[i % 3], Some(from), format, recipe);
    }
}

pub fn a_zero_history_takes_the_amax_of_the_tensor() {
    let client = client();
    let recipe = Recipe::delayed().with_margin(1);
    for element in ELEMENTS {
        for shape in [[1, 1], [3, 5], [64, 128], [200, 333]] {
            let elements = shape[0] * shape[1];
            let x = spread(elements, 30, elements as u64);
            for zero in [0.0, -0.0] {
                for format in FORMATS {
                    check(&client, (&x, &shape), element, Some(zero), format, recipe);
                }
            }
        }
    }
}

pub fn matrices_measure_and_choose_alike() {
    let client = client();
    let recipe = Recipe::delayed().with_power_of_two(true);
    for element in ELEMENTS {
        for (rows, columns) in [(1, 1), (17, 33), (144, 272), (300, 130)] {
            for from in [0.0, 0.02] {
                for layouts in [Layouts::Rows, Layouts::Transposed, Layouts::Both] {
                    let x = spread(rows * columns, 10, (rows * columns) as u64);
                    let (held, x) = Held::new(&client, &x, &[rows, columns], element);
                    let rule = ScaleRule::Delayed { from: scalar(&client, from), recipe };
                    let format = Fp8Format::E5M2;
                    let matrix = quantize_matrix(&client, &held.input(), format, &rule, layouts)
                        .expect("valid");
                    let amax = slice::amax(&x).value;
                    let chosen = read_scalar(&client, device_scale(&matrix.scale));
                    let from = if from == 0.0 { amax } else { from };
                    assert_eq!(chosen, scale::from_amax(from, format, recipe));
                    assert_eq!(read_scalar(&client, &matrix.amax.expect("measured")), amax);
                }
            }
        }
    }
}

pub fn nothing_but_zeros_or_nothing_finite_has_scale_one() {
    let client = client();
    for x in [[0.0; 9], [-0.0; 9], [f32::NAN; 9], [f32::NEG_INFINITY; 9]] {
        for from in [None, Some(0.0)] {
            let recipe = Recipe::delayed().with_margin(5);
            assert_eq!(scale::from_amax(slice::amax(&x).value, Fp8Format::E4M3, recipe), 1.0);
            check(&client, (&x, &[3, 3]), Element::F32, from, Fp8Format::E4M3, recipe);
        }
    }
}

pub fn amaxes_exclude_or_propagate_what_is_not_finite() {
    let client = client();
    let finite = spread(4099, 40, 3);
    let with = |values: &[f32]| {
        let mut x = finite.clone();
        for (i, value) in values.iter().enumerate() {
            x[i * 1009 + 7] = *value;
        }
        x
    };
    let nan = f32::from_bits(0xFFC0_1234);
    let signalling = f32::from_bits(0x7F80_0001);
    let cases = [
        with(&[]),
        with(&[f32::INFINITY]),
        with(&[f32::NEG_INFINITY, f32::MAX]),
        with(&[nan]),
        with(&[f32::INFINITY, nan, f32::NEG_INFINITY]),
        with(&[signalling]),
        vec![f32::NAN; 5],
        vec![-0.0],
        vec![f32::from_bits(1), 0.0],
        random_bits(1 << 20, 11),
    ];
    for x in cases {
        for element in ELEMENTS {
            // A signalling f32 NaN whose payload a narrower type cannot hold is not what is tested.
            let (held, x) = Held::new(&client, &x, &[x.len()], element);
            let expected = slice::amax(&x);
            for _ in 0..2 {
                let excluded = amax(&client, &held.input(), NonFinite::Excluded).expect("valid");
                assert_eq!(read_scalar(&client, &excluded).to_bits(), expected.value.to_bits());
                let propagated =
                    amax(&client, &held.input(), NonFinite::Propagated).expect("valid");
                let propagated = read_scalar(&client, &propagated).to_bits();
                let expected = match expected.with_non_finite() {
                    amax if amax.is_nan() => 0x7FC0_0000,
                    amax => amax.to_bits(),
                };
                assert_eq!(propagated, expected, "{element}");
            }
        }
    }
}
