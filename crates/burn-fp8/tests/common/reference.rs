//! FP8 by definition, in f64: the nearest of all values of the format, ties to the even code.

use std::sync::OnceLock;

use burn_fp8::{Activation, Fp8Format};

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
    let amax = amax(x);
    if amax == 0.0 { 1.0 } else { (amax / largest(format)).max(f32::MIN_POSITIVE) }
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

pub fn transpose(a: &[f64], [rows, cols]: [usize; 2]) -> Vec<f64> {
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
