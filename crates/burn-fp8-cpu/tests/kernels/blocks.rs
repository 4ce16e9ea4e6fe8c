//! Matrices with a scale for each block: scales and codes are those of torchao, JAX, TransformerEngine and DeepSeek (`golden/mx.json`,
//! `golden/blockwise.json`), and those of the elements one by one.

use crate::common::{
    Exact, FORMATS, Golden, Sums, comparable, golden, on_all_instructions, pool, spread, wide,
};
use burn_fp8_core::Fp8Format::{self, E4M3};
use burn_fp8_core::{Granularity, Overflow, Recipe, ScaleRounding, e8m0, scale};
use burn_fp8_cpu::matmul_block_codes;
use burn_fp8_cpu::slice::Source;
use burn_fp8_cpu::slice::blocks::{self, Blocks};
use half::bf16;

const ROUNDINGS: [(&str, ScaleRounding); 4] = [
    ("rceil", ScaleRounding::Rceil),
    ("floor", ScaleRounding::Floor),
    ("ceil", ScaleRounding::Ceil),
    ("even", ScaleRounding::Even),
];

fn columns(golden: &Golden, name: &str) -> usize {
    *golden.shape(name).last().expect("a matrix")
}

/// The input of a case, f32 or bf16, and its columns.
fn input(golden: &Golden, case: &str) -> (Vec<f32>, usize) {
    let [name, narrow] = [format!("{case}/x"), format!("{case}/x_bf16")];
    if golden.has(&name) {
        return (golden.f32s(&name), columns(golden, &name));
    }
    let bits = golden.u16s(&narrow).into_iter();
    (bits.map(|bits| bf16::from_bits(bits).to_f32()).collect(), columns(golden, &narrow))
}

#[test]
fn mxfp8_is_that_of_torchao_and_jax() {
    on_all_instructions(|| {
        let golden = golden("mx");
        let (mut blocks_seen, mut differ) = (0, 0);
        for case in golden.case_names("quantize") {
            let (x, columns) = input(&golden, &case);
            let matrix = Blocks { columns, block: [1, 32] };
            let [rows, of_row] = matrix.grid(x.len());
            for format in FORMATS {
                for (rule, rounding) in ROUNDINGS {
                    let at = format!(
                        "{case}.{}.{rule}",
                        ["e4m3fn", "e5m2"][usize::from(format == Fp8Format::E5M2)]
                    );
                    let of = |part: &str| golden.u8s(&format!("{at}/{part}"));
                    let (codes, scales) = (of("exact_codes"), of("exact_scales"));
                    let recipe = Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
                    let mut our_codes = vec![0xAA; x.len()];
                    let mut our_scales = vec![f32::NAN; rows * of_row];
                    blocks::encode(&x, matrix, format, recipe, &mut our_codes, &mut our_scales);
                    let mut values = vec![f32::NAN; x.len()];
                    let mut again = our_scales.clone();
                    blocks::quantize_dequantize(
                        &x,
                        matrix,
                        format,
                        recipe,
                        &mut values,
                        &mut again,
                    );
                    assert_eq!(again, our_scales, "{at}");
                    let mut decoded = vec![f32::NAN; x.len()];
                    blocks::decode(&our_codes, matrix, &our_scales, format, &mut decoded);
                    for (block, flag) in of("flags").into_iter().enumerate() {
                        // inf or NaN: open in the specification.
                        if flag == 2 {
                            continue;
                        }
                        blocks_seen += 1;
                        differ += usize::from(flag == 1);
                        let (row, column) = (block / of_row, block % of_row * 32);
                        let part = row * columns + column..row * columns + columns.min(column + 32);
                        let place = format!("{at}, block {block}");
                        assert_eq!(e8m0::encode(our_scales[block]), Some(scales[block]), "{place}");
                        assert_eq!(our_codes[part.clone()], codes[part.clone()], "{place}");
                        let scale = f64::from(e8m0::decode(scales[block]));
                        for at in part {
                            let exact = f64::from(format.decode(codes[at])) * scale;
                            assert_eq!(decoded[at], exact as f32, "{place}");
                            assert_eq!(values[at].to_bits(), decoded[at].to_bits(), "{place}");
                        }
                    }
                }
            }
        }
        println!("{blocks_seen} blocks, {differ} of them otherwise in torchao");
        assert!(blocks_seen > 4000 && differ > 0 && differ < blocks_seen / 2);
    });
}

/// Rounds scales as `pow2` or `divide` have it. The rule `reciprocal` multiplies by a rounded reciprocal; ours divides.
#[test]
fn blocks_of_128_are_those_of_transformer_engine_and_deepseek() {
    on_all_instructions(|| {
        let golden = golden("blockwise");
        let (mut compared, mut below) = (0, 0);
        for case in golden.case_names("cases") {
            let (x, columns) = input(&golden, &case);
            let rows = x.len() / columns;
            let transposed: Vec<f32> =
                (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
            for (tile, x, columns, block) in [
                ("1x128", &x, columns, [1, 128]),
                ("t1x128", &transposed, rows, [1, 128]),
                ("128x128", &x, columns, [128, 128]),
            ] {
                for (rule, power_of_two) in [("divide", false), ("pow2", true)] {
                    let at = format!("{case}.{tile}.{rule}");
                    // The quotient of a tiny amax underflows: there is no such case.
                    if !golden.has(&format!("{at}/codes")) {
                        assert!(case.ends_with("tiny") && rule == "divide", "{at}");
                        continue;
                    }
                    let codes = golden.u8s(&format!("{at}/codes"));
                    let scales = golden.f32s(&format!("{at}/scales"));
                    let recipe = Recipe::blockwise().with_power_of_two(power_of_two);
                    let matrix = Blocks { columns, block };
                    let mut our_codes = vec![0xAA; x.len()];
                    let mut our_scales = vec![f32::NAN; scales.len()];
                    blocks::encode(
                        x,
                        matrix,
                        Fp8Format::E4M3,
                        recipe,
                        &mut our_codes,
                        &mut our_scales,
                    );
                    let [_, of_row] = matrix.grid(x.len());
                    for (index, scale) in scales.iter().enumerate() {
                        // Theirs are subnormal there; ours never are.
                        if *scale < f32::MIN_POSITIVE {
                            assert_eq!(our_scales[index], f32::MIN_POSITIVE, "{at}");
                            below += 1;
                            continue;
                        }
                        compared += 1;
                        assert_eq!(our_scales[index], *scale, "{at}, block {index}");
                        let first = [index / of_row * block[0], index % of_row * block[1]];
                        for row in first[0]..(first[0] + block[0]).min(x.len() / columns) {
                            let part = row * columns + first[1]
                                ..row * columns + columns.min(first[1] + block[1]);
                            assert_eq!(our_codes[part.clone()], codes[part], "{at}, block {index}");
                        }
                    }
                }
            }
        }
        println!("{compared} blocks, {below} with a subnormal scale");
        assert!(compared > 2000 && below > 0);
    });
}

/// Against the definition, over all exponents and every mantissa that matters: an amax is exact at a power of two, at the largest number
/// and halfway to it, and an ulp beside each.
#[test]
fn roundings_are_as_defined() {
    for format in FORMATS {
        let (max, emax) = match format {
            Fp8Format::E4M3 => (448.0, 8),
            Fp8Format::E5M2 => (57344.0, 15),
        };
        let bits = format.mantissa_bits();
        for exponent in 1..255u32 {
            let halfway = (1 << 23) - (1 << (22 - bits));
            for mantissa in [0, 3 << 21, halfway, 1 << 22, (1 << 23) - 1] {
                for ulp in [-1i64, 0, 1] {
                    let amax = (i64::from(exponent << 23 | mantissa) + ulp) as u32;
                    let amax = f32::from_bits(amax);
                    if !amax.is_finite() {
                        continue;
                    }
                    let exact = f64::from(amax);
                    for (name, rounding) in ROUNDINGS {
                        let byte = i32::from(e8m0::from_amax(amax, format, rounding));
                        if byte == 0 || byte == 254 {
                            continue;
                        }
                        let scale = 2f64.powi(byte - 127);
                        let power = 2f64.powi(emax) * scale;
                        let place = format!("{format} {name} {amax:e}");
                        match rounding {
                            // In f32 the quotient of the next number above max · 2^k is rounded to 2^k only where it is subnormal.
                            ScaleRounding::Rceil => {
                                assert!(exact <= max * scale * (1.0 + 1e-6), "{place}");
                                assert!(exact > max * scale / 2.0 * (1.0 - 1e-6), "{place}");
                            }
                            ScaleRounding::Floor => {
                                assert!(power <= exact && exact < 2.0 * power, "{place}");
                            }
                            ScaleRounding::Ceil => {
                                assert!(power / 2.0 < exact && exact <= power, "{place}");
                            }
                            ScaleRounding::Even => {
                                let half = 2f64.powi(-(bits as i32) - 1);
                                let below = power * (1.0 - half / 2.0);
                                assert!(below <= exact && exact < power * (2.0 - half), "{place}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Values of all magnitudes, with zeros, subnormals, infinities and NaN.
fn values(count: usize) -> Vec<f32> {
    let mut x = spread(count, 30);
    for (index, x) in x.iter_mut().enumerate() {
        *x = match index % 97 {
            5 => 0.0,
            6 => f32::NAN,
            7 => f32::NEG_INFINITY,
            8 => f32::from_bits(3),
            _ => *x,
        };
    }
    x
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| comparable(*x)).collect()
}

/// Every block shape, of one element up to the matrix: against scalar amaxes, scales and codes, on one thread and on three.
#[test]
fn each_block_is_quantized_with_its_scale() {
    on_all_instructions(|| {
        let pools = [1, 3].map(pool);
        let recipes = [
            Recipe::current(),
            Recipe::mxfp8(),
            Recipe::blockwise(),
            Recipe::blockwise().with_power_of_two(false),
        ];
        for [rows, columns] in [[1, 1], [1, 37], [37, 1], [7, 13], [300, 517], [700, 391]] {
            let x = values(rows * columns);
            let narrow: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
            for (which, block) in [
                [1, columns],
                [rows, 1],
                [rows, columns],
                [1, 1],
                [1, 32],
                [32, 1],
                [128, 128],
                [128, 1],
                [48, 40],
                [usize::MAX, usize::MAX],
                [usize::MAX, 1],
            ]
            .into_iter()
            .enumerate()
            {
                let blocks = Blocks { columns, block };
                for (recipe, format) in
                    recipes.into_iter().zip(FORMATS.into_iter().cycle().skip(which))
                {
                    // Small matrices are quantized on the thread that asks.
                    let is_large = x.len() > 1 << 16;
                    for pool in &pools[..1 + usize::from(is_large)] {
                        pool.install(|| match which % 2 {
                            0 => check_blocks(&x, blocks, format, recipe),
                            _ => check_blocks(&narrow, blocks, format, recipe),
                        });
                    }
                }
            }
        }
    });
}

fn check_blocks<S: Source>(x: &[S], matrix: Blocks, format: Fp8Format, recipe: Recipe) {
    let Blocks { columns, block } = matrix;
    let what = format!("{}×{columns} {block:?} {format} {recipe}", x.len() / columns);
    let [down, across] = matrix.grid(x.len());
    let block_of = |index| index / columns / block[0] * across + index % columns / block[1];
    let places: Vec<usize> = (0..x.len()).map(block_of).collect();
    let at = |index: usize| places[index];
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    let mut largest = vec![0f32; down * across];
    for (index, x) in wide.iter().enumerate().filter(|(_, x)| x.is_finite()) {
        largest[at(index)] = largest[at(index)].max(x.abs());
    }
    let mut amaxes = vec![f32::NAN; down * across];
    blocks::amax(x, matrix, &mut amaxes);
    assert_eq!(amaxes, largest, "{what}");

    let overflow = Overflow::SaturateFinite;
    let expect = |scales: &[f32]| -> Vec<u8> {
        let code = |(index, x): (usize, &f32)| format.encode(*x / scales[at(index)], overflow);
        wide.iter().enumerate().map(code).collect()
    };
    let of_blocks: Vec<f32> =
        largest.iter().map(|amax| scale::of_block(*amax, format, recipe)).collect();
    let expected = expect(&of_blocks);
    let (mut codes, mut scales) = (vec![0xAA; x.len()], vec![f32::NAN; down * across]);
    blocks::encode(x, matrix, format, recipe, &mut codes, &mut scales);
    assert_eq!(scales, of_blocks, "{what}");
    assert!(codes == expected, "{what}");
    let (mut values, mut again) = (vec![0.5; x.len()], vec![f32::NAN; down * across]);
    blocks::quantize_dequantize(x, matrix, format, recipe, &mut values, &mut again);
    let mut decoded = vec![0.5; x.len()];
    blocks::decode(&codes, matrix, &scales, format, &mut decoded);
    let (mut rounded, mut of_rounded) = (vec![0.5; x.len()], vec![f32::NAN; down * across]);
    blocks::round(x, matrix, format, recipe, &mut rounded, &mut of_rounded);
    let numbers: Vec<f32> = expected.iter().map(|code| format.decode(*code)).collect();
    assert!(of_rounded == scales && bits(&rounded) == bits(&numbers), "{what}");
    let times = |(index, code): (usize, &u8)| format.decode(*code) * scales[at(index)];
    let expected = bits(&expected.iter().enumerate().map(times).collect::<Vec<_>>());
    assert!(again == scales && bits(&values) == expected && bits(&decoded) == expected, "{what}");

    let given: Vec<f32> = largest.iter().map(|amax| amax / 448.0 * 1.3 + 1e-30).collect();
    let expected = expect(&given);
    blocks::encode_with(x, matrix, &given, format, overflow, &mut codes);
    blocks::round_with(x, matrix, &given, format, overflow, &mut values);
    assert!(codes == expected, "{what} given");
    let rounded: Vec<f32> = expected.iter().map(|code| format.decode(*code)).collect();
    assert_eq!(bits(&values), bits(&rounded), "{what} given");
}

#[test]
fn results_are_multiplied_by_the_scales_of_row_and_column() {
    let rows = [2.0, 1e30, 1e-30, 0.5];
    let columns = [3.0, 1e20, 1e-20];
    let mut y = [1e-5f32; 12];
    blocks::scale_lines_in_place(&mut y, &rows, &columns);
    for (index, y) in y.iter().enumerate() {
        let [first, second] = scale::of_product(rows[index / 3], columns[index % 3]);
        assert_eq!(y.to_bits(), (1e-5 * first * second).to_bits(), "[{index}]");
    }
    blocks::scale_lines_in_place(&mut [], &[], &columns);
    blocks::scale_lines_in_place(&mut [], &rows, &[]);
}

#[test]
fn a_matrix_without_rows_has_no_scales() {
    for block in [[1, 3], [usize::MAX, 1]] {
        let matrix = Blocks { columns: 3, block };
        assert_eq!(matrix.grid(0)[0], 0);
        blocks::amax::<f32>(&[], matrix, &mut []);
        blocks::encode::<f32>(&[], matrix, E4M3, Recipe::rowwise(), &mut [], &mut []);
        blocks::round::<f32>(&[], matrix, E4M3, Recipe::rowwise(), &mut [], &mut []);
        blocks::encode_with::<f32>(&[], matrix, &[], E4M3, Overflow::SaturateFinite, &mut []);
        blocks::round_with::<f32>(&[], matrix, &[], E4M3, Overflow::SaturateFinite, &mut []);
    }
}

#[test]
#[should_panic(expected = "7 elements are no whole rows of 3")]
fn rows_must_be_whole() {
    blocks::amax(&[0f32; 7], Blocks { columns: 3, block: [1, 3] }, &mut [0.0; 2]);
}

/// Against f64, for all places of the ends of blocks, rows and columns.
#[test]
fn codes_in_blocks_are_multiplied_as_they_are_decoded() {
    on_all_instructions(|| {
        for [m, k, n] in
            [[1, 1, 1], [1, 300, 70], [5, 129, 200], [3, 64, 129], [7, 31, 64], [2, 1000, 700]]
        {
            let (x, w) = (spread(m * k, 4), spread(k * n, 10));
            for (recipe, block) in [
                (Recipe::mxfp8(), [32, 1]),
                (Recipe::blockwise().with_power_of_two(false), [128, 128]),
                (Recipe::blockwise(), [48, 40]),
            ] {
                let matrix = Blocks { columns: n, block };
                let [rows, columns] = matrix.grid(w.len());
                let (mut codes, mut scales) = (vec![0; w.len()], vec![0.0; rows * columns]);
                blocks::encode(&w, matrix, Fp8Format::E4M3, recipe, &mut codes, &mut scales);
                let mut y = vec![f32::NAN; m * n];
                let shape = [m, k, n];
                matmul_block_codes(&x, &codes, shape, block, &scales, Fp8Format::E4M3, &mut y);
                let weight = codes.iter().enumerate().map(|(at, code)| {
                    let scale = scales[at / n / block[0] * columns + at % n / block[1]];
                    f64::from(Fp8Format::E4M3.decode(*code)) * f64::from(scale)
                });
                let exact = Exact::product(&wide(&x), &weight.collect::<Vec<_>>(), shape);
                // Blocks are summed by themselves, then multiplied by their scales.
                let exact = exact.with_roundings(2);
                exact.assert(&y, Sums::Nearest, &format!("{shape:?} {block:?}"));
            }
        }
    });
}
