//! FP8 by definition, in f64: the nearest of all values of the format, ties to the even code; the scale of each block from its amax.

use std::sync::OnceLock;

use super::*;

/// The magnitudes of a format in ascending order of their codes, computed from its definition: sign, exponent, mantissa.
pub fn magnitudes(format: Fp8Format) -> &'static [f64] {
    static OF: [OnceLock<Vec<f64>>; 2] = [const { OnceLock::new() }; 2];
    let (index, mantissa_bits, bias, largest) = match format {
        Fp8Format::E4M3 => (0, 3, 7, 448.0),
        Fp8Format::E5M2 => (1, 2, 15, 57344.0),
    };
    let magnitude = |code: u32| {
        let exponent = (code >> mantissa_bits) as i32;
        let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        match exponent {
            0 => mantissa * 2f64.powi(1 - bias),
            _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
        }
    };
    let all = || (0..0x80).map(magnitude).take_while(|magnitude| *magnitude <= largest).collect();
    OF[index].get_or_init(all)
}

/// Rounds a number to the nearest value of the format, saturating; NaN stays NaN.
pub fn round(x: f64, format: Fp8Format) -> f64 {
    if x.is_nan() {
        return x;
    }
    let magnitudes = magnitudes(format);
    let clipped = x.abs().min(magnitudes[magnitudes.len() - 1]);
    // The neighbours: the first magnitude that is not below, and the one before.
    let above = magnitudes.partition_point(|magnitude| *magnitude < clipped);
    let below = above.saturating_sub(1);
    let (to_below, to_above) = (clipped - magnitudes[below], magnitudes[above] - clipped);
    let is_below = to_below < to_above || (to_below == to_above && below % 2 == 0);
    magnitudes[if is_below { below } else { above }].copysign(x)
}

/// The scale of current scaling, in f32 as the library defines it.
pub fn scale(x: &[f32], format: Fp8Format) -> f32 {
    scale_of(amax(x), format, Recipe::current())
}

/// The scale of a block from its amax, by the recipe. Divisions by the largest number are f32's, as the library defines it.
pub fn scale_of(amax: f32, format: Fp8Format, recipe: Recipe) -> f32 {
    let wide = f64::from(amax);
    let emax = if format == Fp8Format::E4M3 { 8.0 } else { 15.0 };
    let exponent = match recipe.granularity() {
        _ if amax == 0.0 => return 1.0,
        Granularity::Mx(ScaleRounding::Floor) => wide.log2().floor() - emax,
        Granularity::Mx(ScaleRounding::Ceil) => wide.log2().ceil() - emax,
        // Half of the last of three bits below the next power.
        Granularity::Mx(ScaleRounding::Even) => (wide / 1.9375 * 2.0).log2().floor() - emax,
        Granularity::Mx(ScaleRounding::Rceil) => (wide / f64::from(largest(format))).log2().ceil(),
        _ if recipe.power_of_two => (wide / f64::from(largest(format))).log2().ceil(),
        _ => return (amax / largest(format)).max(f32::MIN_POSITIVE),
    };
    exponent.exp2() as f32
}

/// The largest finite magnitude.
pub fn amax(x: &[f32]) -> f32 {
    x.iter().filter(|x| x.is_finite()).fold(0f32, |amax, x| amax.max(x.abs()))
}

/// The largest number of a format.
pub fn largest(format: Fp8Format) -> f32 {
    if format == Fp8Format::E4M3 { 448f32 } else { 57344f32 }
}

/// Quantizes and dequantizes with current scaling.
pub fn quantize_dequantize(x: &[f32], format: Fp8Format) -> Vec<f64> {
    quantize_dequantize_by(x, scale(x, format), format)
}

/// Quantizes and dequantizes with a scale. The division is f32's, as the library defines it. Finite values saturate; what is not finite
/// stays visible: infinities as far as the format has them, else as NaN.
pub fn quantize_dequantize_by(x: &[f32], scale: f32, format: Fp8Format) -> Vec<f64> {
    let one = |x: &f32| match (x.is_finite(), format) {
        (true, _) => round(f64::from(x / scale), format) * f64::from(scale),
        (false, Fp8Format::E5M2) => f64::from(*x),
        (false, Fp8Format::E4M3) => f64::NAN,
    };
    x.iter().map(one).collect()
}

/// Which operand of a linear layer's products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operand {
    Input,
    Weight,
    OutputGrad,
}

/// Whether rows or columns of an operand lie along what is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Along {
    Rows,
    Columns,
}

/// What an operand of these columns holds in FP8 under a recipe, in f64: each block has a scale of its own.
pub fn held(x: &[f32], columns: usize, operand: Operand, along: Along, recipe: Recipe) -> Vec<f64> {
    let format = match operand {
        Operand::Input => recipe.formats.input,
        Operand::Weight => recipe.formats.weight,
        Operand::OutputGrad => recipe.formats.output_grad,
    };
    let square = if operand == Operand::Weight { 128 } else { 1 };
    let [length, width] = match recipe.granularity() {
        Granularity::PerTensor => [x.len(), x.len()],
        Granularity::PerRow => [x.len(), 1],
        Granularity::Mx(_) => [32, 1],
        Granularity::Blockwise => [128, square],
    };
    let [high, wide] = if along == Along::Rows { [width, length] } else { [length, width] };
    let across = columns.div_ceil(wide);
    let block = |at: usize| at / columns / high * across + at % columns / wide;
    let mut blocks = vec![vec![]; (x.len() / columns).div_ceil(high) * across];
    x.iter().enumerate().for_each(|(at, x)| blocks[block(at)].push(*x));
    let scale = |block: Vec<f32>| scale_of(amax(&block), format, recipe);
    let scales: Vec<f32> = blocks.into_iter().map(scale).collect();
    let one = |(at, x): (usize, &f32)| quantize_dequantize_by(&[*x], scales[block(at)], format)[0];
    x.iter().enumerate().map(one).collect()
}

/// A row-major product of an m×k and a k×n matrix, and for each element the sum of the magnitudes of its terms.
pub fn matmul(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let mut product = vec![0.0; m * n];
    let mut magnitude = vec![0.0; m * n];
    for row in 0..m {
        for col in 0..n {
            for i in 0..k {
                let term = a[row * k + i] * b[i * n + col];
                product[row * n + col] += term;
                magnitude[row * n + col] += term.abs();
            }
        }
    }
    (product, magnitude)
}

pub fn transpose<T: Copy>(a: &[T], [rows, cols]: [usize; 2]) -> Vec<T> {
    (0..cols).flat_map(|col| (0..rows).map(move |row| a[row * cols + col])).collect()
}

/// The number that a code stands for, by definition.
pub fn decode(code: u8, format: Fp8Format) -> f64 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let magnitude = match (format, magnitudes(format).get(usize::from(code & 0x7F))) {
        (_, Some(magnitude)) => *magnitude,
        (Fp8Format::E5M2, None) if code & 0x7F == 0x7C => f64::INFINITY,
        _ => f64::NAN,
    };
    sign * magnitude
}

/// What codes of one scale stand for.
pub fn numbers(codes: &[u8], format: Fp8Format, scale: f32) -> Vec<f64> {
    codes.iter().map(|code| decode(*code, format) * f64::from(scale)).collect()
}

/// GELU in its tanh approximation, and ReLU.
pub fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Gelu => {
            let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x * 0.5 * (1.0 + inner.tanh())
        }
    }
}
