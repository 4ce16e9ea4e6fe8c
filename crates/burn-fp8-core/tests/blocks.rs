//! Block scales and codes are those of torchao, JAX, TransformerEngine and DeepSeek (`golden/mx.json`, `golden/blockwise.json`).

mod common;

use burn_fp8_core::slice::blocks::{self, Blocks};
use burn_fp8_core::slice::matmul_block_codes;
use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding, e8m0};
use common::FORMATS;
use safetensors::SafeTensors;
use serde_json::Value;

const ROUNDINGS: [(&str, ScaleRounding); 4] = [
    ("rceil", ScaleRounding::Rceil),
    ("floor", ScaleRounding::Floor),
    ("ceil", ScaleRounding::Ceil),
    ("even", ScaleRounding::Even),
];

struct Golden {
    bytes: Vec<u8>,
    description: Value,
}

impl Golden {
    fn read(name: &str) -> Self {
        let folder = format!("{}/tests/golden", env!("CARGO_MANIFEST_DIR"));
        let read = |kind: &str| {
            std::fs::read(format!("{folder}/{name}.{kind}")).expect("it is in the repository")
        };
        let description = serde_json::from_slice(&read("json")).expect("it is JSON");
        Self { bytes: read("safetensors"), description }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("it is a safetensors file")
    }

    /// The names of the cases in a list.
    fn names(&self, list: &str) -> Vec<String> {
        let cases = self.description[list].as_array().expect("a list of cases");
        cases.iter().map(|case| case["name"].as_str().expect("a name").to_owned()).collect()
    }
}

fn bytes(golden: &SafeTensors<'_>, name: &str) -> Vec<u8> {
    golden.tensor(name).unwrap_or_else(|_| panic!("{name}")).data().to_vec()
}

fn floats(golden: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    bytes(golden, name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The input of a case, f32 or bf16, and its columns.
fn input(golden: &SafeTensors<'_>, case: &str) -> (Vec<f32>, usize) {
    let (name, is_f32) = match golden.tensor(&format!("{case}/x")) {
        Ok(_) => (format!("{case}/x"), true),
        Err(_) => (format!("{case}/x_bf16"), false),
    };
    let columns = *golden.tensor(&name).expect("an input").shape().last().expect("a matrix");
    let x = match is_f32 {
        true => floats(golden, &name),
        false => {
            let bits = bytes(golden, &name);
            let bits = bits.as_chunks().0.iter().map(|b| u32::from(u16::from_le_bytes(*b)));
            bits.map(|bits| f32::from_bits(bits << 16)).collect()
        }
    };
    (x, columns)
}

fn format_name(format: Fp8Format) -> &'static str {
    match format {
        Fp8Format::E4M3 => "e4m3fn",
        Fp8Format::E5M2 => "e5m2",
    }
}

#[test]
fn mxfp8_is_that_of_torchao_and_jax() {
    let file = Golden::read("mx");
    let golden = file.tensors();
    let (mut blocks_seen, mut differ) = (0, 0);
    for case in file.names("quantize") {
        let (x, columns) = input(&golden, &case);
        let matrix = Blocks { columns, block: [1, 32] };
        let [rows, of_row] = matrix.grid(x.len());
        for format in FORMATS {
            for (name, rounding) in ROUNDINGS {
                let at = format!("{case}.{}.{name}", format_name(format));
                let of = |part: &str| bytes(&golden, &format!("{at}/{part}"));
                let (codes, scales) = (of("exact_codes"), of("exact_scales"));
                let recipe = Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
                let mut our_codes = vec![0xAA; x.len()];
                let mut our_scales = vec![f32::NAN; rows * of_row];
                blocks::encode(&x, matrix, format, recipe, &mut our_codes, &mut our_scales);
                let mut values = vec![f32::NAN; x.len()];
                let mut again = our_scales.clone();
                blocks::quantize_dequantize(&x, matrix, format, recipe, &mut values, &mut again);
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
}

/// Rounds scales as `pow2` or `divide` have it. The rule `reciprocal` multiplies by a rounded reciprocal; ours divides.
#[test]
fn blocks_of_128_are_those_of_transformer_engine_and_deepseek() {
    let file = Golden::read("blockwise");
    let golden = file.tensors();
    let (mut compared, mut below) = (0, 0);
    for case in file.names("cases") {
        let (x, columns) = input(&golden, &case);
        let rows = x.len() / columns;
        let transposed: Vec<f32> = (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
        for (tile, x, columns, block) in [
            ("1x128", &x, columns, [1, 128]),
            ("t1x128", &transposed, rows, [1, 128]),
            ("128x128", &x, columns, [128, 128]),
        ] {
            for (rule, power_of_two) in [("divide", false), ("pow2", true)] {
                let at = format!("{case}.{tile}.{rule}");
                // The quotient of a tiny amax underflows: there is no such case.
                if golden.tensor(&format!("{at}/codes")).is_err() {
                    assert!(case.ends_with("tiny") && rule == "divide", "{at}");
                    continue;
                }
                let codes = bytes(&golden, &format!("{at}/codes"));
                let scales = floats(&golden, &format!("{at}/scales"));
                let recipe = Recipe::blockwise().with_power_of_two(power_of_two);
                let matrix = Blocks { columns, block };
                let mut our_codes = vec![0xAA; x.len()];
                let mut our_scales = vec![f32::NAN; scales.len()];
                blocks::encode(x, matrix, Fp8Format::E4M3, recipe, &mut our_codes, &mut our_scales);
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
                        let place = format!("{format} {name} {amax:e}");
                        match rounding {
                            // In f32 the quotient of the next number above max · 2^k is rounded to 2^k only where it is subnormal.
                            ScaleRounding::Rceil => {
                                assert!(exact <= max * scale * (1.0 + 1e-6), "{place}");
                                assert!(exact > max * scale / 2.0 * (1.0 - 1e-6), "{place}");
                            }
                            ScaleRounding::Floor => {
                                let power = 2f64.powi(emax) * scale;
                                assert!(power <= exact && exact < 2.0 * power, "{place}");
                            }
                            ScaleRounding::Ceil => {
                                let power = 2f64.powi(emax) * scale;
                                assert!(power / 2.0 < exact && exact <= power, "{place}");
                            }
                            ScaleRounding::Even => {
                                let power = 2f64.powi(emax) * scale;
                                let half = 2f64.powi(-(bits as i32) - 1);
                                let below = power * (1.0 - half / 2.0);
                                let above = power * (2.0 - half);
                                assert!(below <= exact && exact < above, "{place}");
                            }
                        }
                    }
                }
            }
        }
    }
}

/// In parallel as one after the other, and for bf16 as for the same numbers in f32.
#[test]
#[cfg(feature = "rayon")]
fn large_matrices_are_quantized_block_by_block() {
    let mut state = 7u32;
    let x: Vec<half::bf16> = (0..700 * 391)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            half::bf16::from_f32(f32::from_bits(
                (state & 0x80ff_ffff) | (0x3c00_0000 + (state >> 8 & 0x0300_0000)),
            ))
        })
        .collect();
    let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    for (recipe, block) in [
        (Recipe::mxfp8(), [1, 32]),
        (Recipe::mxfp8(), [32, 1]),
        (Recipe::blockwise(), [128, 128]),
        (Recipe::blockwise().with_power_of_two(false), [128, 1]),
    ] {
        let matrix = Blocks { columns: 391, block };
        let [rows, columns] = matrix.grid(x.len());
        let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; rows * columns]);
        blocks::encode(&x, matrix, Fp8Format::E4M3, recipe, &mut codes, &mut scales);
        for (index, code) in codes.iter().enumerate() {
            let [row, column] = [index / 391, index % 391];
            let at = row / block[0] * columns + column / block[1];
            let quotient = wide[index] / scales[at];
            let overflow = burn_fp8_core::Overflow::SaturateFinite;
            assert_eq!(*code, Fp8Format::E4M3.encode(quotient, overflow), "[{row}, {column}]");
        }
        // Every block reaches the upper half of the format: its scale is no larger than it has to be.
        for (at, scale) in scales.iter().enumerate().step_by(97) {
            let is_in_block =
                |index: usize| index / 391 / block[0] * columns + index % 391 / block[1] == at;
            let of_block = wide.iter().enumerate().filter(|(index, _)| is_in_block(*index));
            let ratio = of_block.fold(0f32, |amax, (_, x)| amax.max(x.abs())) / scale;
            assert!((224.0..=448.001).contains(&ratio), "block {at}: {ratio}");
        }
    }
}

/// Against f64, for all places of the ends of blocks, rows and columns.
#[test]
fn codes_in_blocks_are_multiplied_as_they_are_decoded() {
    let mut state = 3u32;
    let mut random = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    for [m, k, n] in
        [[1, 1, 1], [1, 300, 70], [5, 129, 200], [3, 64, 129], [7, 31, 64], [2, 1000, 700]]
    {
        let w: Vec<f32> = (0..k * n).map(|at| random() * (1 << (at / 97 % 20)) as f32).collect();
        let x: Vec<f32> = (0..m * k).map(|_| random()).collect();
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
            for (at, y) in y.iter().enumerate() {
                let (mut sum, mut size) = (0f64, 0f64);
                for i in 0..k {
                    let scale = scales[i / block[0] * columns + at % n / block[1]];
                    let weight = f64::from(Fp8Format::E4M3.decode(codes[i * n + at % n]));
                    let product = f64::from(x[at / n * k + i]) * weight * f64::from(scale);
                    sum += product;
                    size += product.abs();
                }
                assert!((f64::from(*y) - sum).abs() <= 1e-5 * size, "{shape:?} {block:?} [{at}]");
            }
        }
    }
}
