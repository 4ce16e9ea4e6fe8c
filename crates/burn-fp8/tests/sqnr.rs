//! What each recipe costs in precision: signal-to-quantization-noise ratios of the three products, as good as an ideal quantizer of the same
//! granularity gives them, and as `docs/which-recipe.md` has them.

mod common;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_fp8::{Formats, Fp8Format, GemmRole, Granularity, Recipe, ScaleRounding};
use common::{Outer, Random, every_matmul, reference, tensor, values};

/// M, K, N.
const SHAPE: [usize; 3] = [128, 256, 256];

/// Data by their name in the table.
const DATA: [&str; 3] = ["Gaussian", "Student-t(3)", "outliers"];

/// Recipes by their name in the table.
fn recipes() -> [(&'static str, Recipe); 9] {
    let mx = |rounding| Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
    [
        ("`current`", Recipe::current()),
        ("`current`, E4M3 for all", Recipe::current().with_formats(Formats::E4M3)),
        ("`rowwise`, E4M3 for all", Recipe::rowwise().with_formats(Formats::E4M3)),
        ("`blockwise`", Recipe::blockwise()),
        ("`blockwise`, f32 scales", Recipe::blockwise().with_power_of_two(false)),
        ("`mxfp8`", Recipe::mxfp8()),
        ("`mxfp8`, `Floor`", mx(ScaleRounding::Floor)),
        ("`mxfp8`, `Ceil`", mx(ScaleRounding::Ceil)),
        ("`mxfp8`, `Even`", mx(ScaleRounding::Even)),
    ]
}

fn normal(random: &mut Random) -> f64 {
    // Box and Muller; the logarithm never sees a zero.
    let uniform = |random: &mut Random| (f64::from(random.unit()) + 1.0 + 2f64.powi(-24)) / 2.0;
    let (u, v) = (uniform(random).min(1.0), uniform(random));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn data(kind: &str, seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| {
            let x = normal(&mut random);
            let x = match kind {
                "Gaussian" => x,
                "Student-t(3)" => {
                    let chi: f64 = (0..3).map(|_| normal(&mut random).powi(2)).sum();
                    x / (chi / 3.0).sqrt()
                }
                // One of a thousand is a hundred times as large.
                _ if random.bits().is_multiple_of(1000) => 100.0 * x,
                _ => x,
            };
            x as f32
        })
        .collect()
}

/// The scale of a block by definition, without rounding it to f32.
fn scale(amax: f64, format: Fp8Format, recipe: Recipe) -> f64 {
    let (max, emax) = match format {
        Fp8Format::E4M3 => (448.0, 8),
        Fp8Format::E5M2 => (57344.0, 15),
    };
    let exponent = match recipe.granularity() {
        _ if amax == 0.0 => return 1.0,
        Granularity::Mx(ScaleRounding::Floor) => amax.log2().floor() - f64::from(emax),
        Granularity::Mx(ScaleRounding::Ceil) => amax.log2().ceil() - f64::from(emax),
        // Half of the last of three bits below the next power.
        Granularity::Mx(ScaleRounding::Even) => {
            (amax / 1.9375 * 2.0).log2().floor() - f64::from(emax)
        }
        Granularity::Mx(ScaleRounding::Rceil) => (amax / max).log2().ceil(),
        _ if recipe.power_of_two => (amax / max).log2().ceil(),
        _ => return amax / max,
    };
    exponent.exp2()
}

/// A matrix quantized in blocks and dequantized, in f64.
fn ideal(
    x: &[f32],
    columns: usize,
    [height, width]: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
) -> Vec<f64> {
    let across = columns.div_ceil(width);
    let block = |at: usize| at / columns / height * across + at % columns / width;
    let mut amaxes = vec![0f64; (x.len() / columns).div_ceil(height) * across];
    for (at, x) in x.iter().enumerate() {
        amaxes[block(at)] = amaxes[block(at)].max(f64::from(x.abs()));
    }
    let scales: Vec<f64> = amaxes.iter().map(|amax| scale(*amax, format, recipe)).collect();
    let one = |(at, x): (usize, &f32)| {
        let scale = scales[block(at)];
        reference::round(f64::from(*x) / scale, format) * scale
    };
    x.iter().enumerate().map(one).collect()
}

/// Rows and columns of a block of a matrix, whose rows, or else its columns, lie along what is summed.
fn block(
    recipe: Recipe,
    is_weight: bool,
    along_rows: bool,
    [rows, columns]: [usize; 2],
) -> [usize; 2] {
    let [along, across] = match recipe.granularity() {
        Granularity::PerTensor => return [rows, columns],
        Granularity::PerRow => [usize::MAX / 2, 1],
        Granularity::Mx(_) => [32, 1],
        Granularity::Blockwise => [128, if is_weight { 128 } else { 1 }],
    };
    if along_rows { [across, along] } else { [along, across] }
}

fn decibels(exact: &[f64], quantized: impl Iterator<Item = f64>) -> f64 {
    let power = |x: f64| x * x;
    let signal: f64 = exact.iter().map(|x| power(*x)).sum();
    let noise: f64 = exact.iter().zip(quantized).map(|(x, y)| power(x - y)).sum();
    10.0 * (signal / noise).log10()
}

/// The three products, as the library runs them.
fn ours([x, w, g]: [&[f32]; 3], recipe: Recipe) -> [Vec<f32>; 3] {
    let [m, k, n] = SHAPE;
    every_matmul().with_recipe(recipe).scope(|| {
        let lhs = tensor::<Outer<Flex>, 2>(x, [m, k]).require_grad();
        let rhs = tensor::<Outer<Flex>, 2>(w, [k, n]).require_grad();
        let output = lhs.clone().matmul(rhs.clone());
        let grads = (output.clone() * tensor(g, [m, n])).sum().backward();
        let grad = |of: &Tensor<Outer<Flex>, 2>| values(of.grad(&grads).expect("tracked"));
        [values(output), grad(&lhs), grad(&rhs)]
    })
}

/// The three products of operands that `quantize` makes of x, w and g: given what they are, and whether their rows lie along what is summed.
fn products(
    [x, w, g]: [&[f32]; 3],
    quantize: impl Fn(&[f32], usize, bool, [usize; 2]) -> Vec<f64>,
) -> [Vec<f64>; 3] {
    let [m, k, n] = SHAPE;
    let output =
        reference::matmul(&quantize(x, 0, true, [m, k]), &quantize(w, 1, false, [k, n]), [m, k, n]);
    let w_t = reference::transpose(&quantize(w, 1, true, [k, n]), [k, n]);
    let grad_input = reference::matmul(&quantize(g, 2, true, [m, n]), &w_t, [m, n, k]);
    let x_t = reference::transpose(&quantize(x, 0, false, [m, k]), [m, k]);
    let grad_weight = reference::matmul(&x_t, &quantize(g, 2, false, [m, n]), [k, m, n]);
    [output.0, grad_input.0, grad_weight.0]
}

#[test]
fn recipes_are_as_precise_as_ideal_quantizers_and_as_the_chapter_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/which-recipe.md");
    let chapter = std::fs::read_to_string(path).expect("the chapter is in the repository");
    let [m, k, n] = SHAPE;
    let mut rows = recipes().map(|(name, _)| format!("| {name} |"));
    let mut measured: Vec<Vec<f64>> = vec![vec![]; rows.len()];
    for kind in DATA {
        let inputs = [data(kind, 1, m * k), data(kind, 2, k * n), data(kind, 3, m * n)];
        let inputs = inputs.each_ref().map(Vec::as_slice);
        let exact = products(inputs, |x, _, _, _| x.iter().map(|x| f64::from(*x)).collect());
        for (index, (name, recipe)) in recipes().into_iter().enumerate() {
            let formats = [recipe.formats.input, recipe.formats.weight, recipe.formats.output_grad];
            let ideal = products(inputs, |x, which, along_rows, shape| {
                let block = block(recipe, which == 1, along_rows, shape);
                ideal(x, shape[1], block, formats[which], recipe)
            });
            let ours = ours(inputs, recipe);
            for role in 0..3 {
                let found = decibels(&exact[role], ours[role].iter().map(|y| f64::from(*y)));
                let best = decibels(&exact[role], ideal[role].iter().copied());
                let place = format!("{name}, {kind}, {}", GemmRole::ALL[role]);
                assert!((found - best).abs() <= 0.1, "{place}: {found:.2} dB, ideal {best:.2} dB");
                rows[index] += &format!(" {found:.1} |");
                measured[index].push(found);
            }
        }
    }
    println!("{}", rows.join("\n"));
    for ((name, _), measured) in recipes().iter().zip(measured) {
        let row = chapter.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("{path} has no row for {name}"));
        let stated: Vec<f64> = row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
        assert_eq!(stated.len(), 9, "{row}");
        for (stated, measured) in stated.iter().zip(measured) {
            assert!((stated - measured).abs() <= 0.1, "{path}: {row}: {stated} is {measured:.2}");
        }
    }
}
