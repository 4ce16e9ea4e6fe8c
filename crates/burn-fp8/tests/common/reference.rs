//! FP8 by definition, in f64: the nearest of all values of the format, ties to the even code.

use burn_fp8::{Activation, Fp8Format};

/// The magnitudes of a format in ascending order of their codes, computed from its definition: sign, exponent, mantissa.
pub fn magnitudes(format: Fp8Format) -> Vec<f64> {
    let (mantissa_bits, bias, largest) = match format {
        Fp8Format::E4M3 => (3, 7, 448.0),
        Fp8Format::E5M2 => (2, 15, 57344.0),
    };
    (0..0x80u32)
        .map(|code| {
            let exponent = (code >> mantissa_bits) as i32;
            let mantissa =
                f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
            match exponent {
                0 => mantissa * 2f64.powi(1 - bias),
                _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
            }
        })
        .take_while(|magnitude| *magnitude <= largest)
        .collect()
}

/// Rounds a finite number to the nearest value of the format, saturating.
pub fn round(x: f64, format: Fp8Format) -> f64 {
    let magnitudes = magnitudes(format);
    let clipped = x.abs().min(magnitudes[magnitudes.len() - 1]);
    let distance = |code: usize| (magnitudes[code] - clipped).abs();
    let nearest = (0..magnitudes.len())
        .min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a % 2).cmp(&(b % 2))))
        .expect("a format has values");
    magnitudes[nearest].copysign(x)
}

/// The scale of current scaling, in f32 as the library defines it.
pub fn scale(x: &[f32], format: Fp8Format) -> f32 {
    let amax = x.iter().filter(|x| x.is_finite()).fold(0f32, |amax, x| amax.max(x.abs()));
    let largest = if format == Fp8Format::E4M3 { 448f32 } else { 57344f32 };
    if amax == 0.0 { 1.0 } else { (amax / largest).max(f32::MIN_POSITIVE) }
}

/// Quantizes and dequantizes with current scaling. The division is f32's, as the library defines it.
pub fn quantize_dequantize(x: &[f32], format: Fp8Format) -> Vec<f64> {
    let scale = scale(x, format);
    x.iter().map(|x| round(f64::from(x / scale), format) * f64::from(scale)).collect()
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
