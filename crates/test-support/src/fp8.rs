//! FP8 by definition, in f64: sign, exponent, mantissa; the nearest number by search, ties to the even code; scales from amaxes.
//!
//! Nothing here calls the library, whose types it takes: a test may compare with it.

use std::sync::OnceLock;

use burn_fp8_core::{Fp8Format, Granularity, Operand, Overflow, Recipe, ScaleRounding};

/// Both formats.
pub const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

/// The formats of the left and of the right operand of a product.
pub const PAIRS: [[Fp8Format; 2]; 4] = [
    [Fp8Format::E4M3, Fp8Format::E4M3],
    [Fp8Format::E5M2, Fp8Format::E4M3],
    [Fp8Format::E4M3, Fp8Format::E5M2],
    [Fp8Format::E5M2, Fp8Format::E5M2],
];

/// What may become of numbers beyond the largest one.
pub const OVERFLOWS: [Overflow; 3] =
    [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating];

/// Mantissa bits, bias, and the first code whose exponent is no ordinary one or that is NaN: OFP8, table 1.
fn definition(format: Fp8Format) -> (u32, i32, u8) {
    match format {
        Fp8Format::E4M3 => (3, 7, 0x7F),
        Fp8Format::E5M2 => (2, 15, 0x7C),
    }
}

/// The magnitude of a code as if every exponent were an ordinary one.
fn magnitude(code: u8, format: Fp8Format) -> f64 {
    let (bits, bias, _) = definition(format);
    let exponent = i32::from(code >> bits);
    let mantissa = f64::from(code & ((1 << bits) - 1)) / f64::from(1 << bits);
    match exponent {
        0 => mantissa * 2f64.powi(1 - bias),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
    }
}

/// The finite magnitudes of a format, in the order of their codes 0, 1, …
pub fn magnitudes(format: Fp8Format) -> &'static [f64] {
    static OF: [OnceLock<Vec<f64>>; 2] = [const { OnceLock::new() }; 2];
    let (_, _, past) = definition(format);
    OF[usize::from(format == Fp8Format::E5M2)]
        .get_or_init(|| (0..past).map(|code| magnitude(code, format)).collect())
}

/// The largest number of a format.
pub fn largest(format: Fp8Format) -> f32 {
    magnitudes(format)[magnitudes(format).len() - 1] as f32
}

/// What would follow the largest number if the exponent after it were an ordinary one: beyond the middle between both, numbers overflow.
pub fn past_largest(format: Fp8Format) -> f64 {
    magnitude(definition(format).2, format)
}

/// The number that a code stands for.
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

/// All codes of a format for whose numbers `wanted` holds.
pub fn codes_where(format: Fp8Format, wanted: impl Fn(f64) -> bool) -> Vec<u8> {
    (0..=255).filter(|code| wanted(decode(*code, format))).collect()
}

/// All codes that are finite numbers.
pub fn finite_codes(format: Fp8Format) -> Vec<u8> {
    codes_where(format, f64::is_finite)
}

/// The codes of integers up to 16 in magnitude, zero with both signs: as 2,500 products of them sum up to less than 2^24, an f32 holds every
/// partial sum, in any order.
pub fn integer_codes(format: Fp8Format) -> Vec<u8> {
    codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 16.0)
}

/// The code of a number: of the nearest magnitude, the even one of two that are equally near.
pub fn encode(x: f64, format: Fp8Format, overflow: Overflow) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let (infinity, nan) = match format {
        Fp8Format::E4M3 => (0x7F, 0x7F),
        Fp8Format::E5M2 => (0x7C, 0x7E),
    };
    if x.is_nan() {
        return nan | sign;
    }
    let past = magnitudes(format).len();
    let of = |code: usize| magnitude(code as u8, format);
    let clipped = x.abs().min(of(past));
    // The first magnitude that is not below, and the one before.
    let above = (0..past).find(|code| of(*code) >= clipped).unwrap_or(past);
    let below = above.saturating_sub(1);
    let (to_below, to_above) = (clipped - of(below), of(above) - clipped);
    let is_below = to_below < to_above || (to_below == to_above && below % 2 == 0);
    let code = if is_below { below } else { above };
    let code = match overflow {
        Overflow::SaturateFinite if x.is_infinite() => infinity,
        Overflow::NonSaturating if code == past => infinity,
        _ => code.min(past - 1) as u8,
    };
    code | sign
}

/// Rounds a number to the nearest one of the format, saturating; NaN stays NaN.
pub fn round(x: f64, format: Fp8Format) -> f64 {
    if x.is_nan() { x } else { decode(encode(x, format, Overflow::Saturate), format) }
}

/// The largest finite magnitude.
pub fn amax(x: &[f32]) -> f32 {
    x.iter().filter(|x| x.is_finite()).fold(0f32, |amax, x| amax.max(x.abs()))
}

/// The scale of current scaling, in f32 as the library defines it.
pub fn scale(x: &[f32], format: Fp8Format) -> f32 {
    scale_of(amax(x), format, Recipe::current())
}

/// The scale of a block from its amax, by the recipe, without a margin. Divisions by the largest number are f32's, as the library defines it.
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

/// Whether rows or columns of an operand lie along what is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Along {
    /// The elements of a row are summed up.
    Rows,
    /// The elements of a column are.
    Columns,
}

/// What an operand of these columns holds in FP8 under a recipe: each block has a scale of its own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        // OFP8, table 2: largest, smallest normal, smallest subnormal.
        for (format, [max, normal, subnormal], bits) in [
            (Fp8Format::E4M3, [448.0, 2f64.powi(-6), 2f64.powi(-9)], [0x7E, 0x08, 0x01]),
            (Fp8Format::E5M2, [57344.0, 2f64.powi(-14), 2f64.powi(-16)], [0x7B, 0x04, 0x01]),
        ] {
            assert_eq!(bits.map(|code| decode(code, format)), [max, normal, subnormal]);
            assert_eq!(bits.map(|code| decode(code | 0x80, format)), [-max, -normal, -subnormal]);
            assert_eq!(finite_codes(format).len(), 2 * magnitudes(format).len());
        }
        assert!(decode(0x7F, Fp8Format::E4M3).is_nan() && decode(0x7D, Fp8Format::E5M2).is_nan());
        assert_eq!(decode(0xFC, Fp8Format::E5M2), f64::NEG_INFINITY);
    }

    #[test]
    fn ties_go_to_the_even_code() {
        for (x, e4m3, e5m2) in [
            (1.0, 0x38, 0x3C),
            (1.0625, 0x38, 0x3C),
            (1.1875, 0x3A, 0x3D),
            (-1.125, 0xB9, 0xBC),
            (464.0, 0x7E, 0x5F),
            (1e9, 0x7E, 0x7B),
        ] {
            assert_eq!(encode(x, Fp8Format::E4M3, Overflow::Saturate), e4m3, "{x}");
            assert_eq!(encode(x, Fp8Format::E5M2, Overflow::Saturate), e5m2, "{x}");
        }
        let beyond = |x, format| OVERFLOWS.map(|overflow| encode(x, format, overflow));
        assert_eq!(beyond(464.0, Fp8Format::E4M3), [0x7E, 0x7E, 0x7E]);
        assert_eq!(beyond(464.1, Fp8Format::E4M3), [0x7E, 0x7E, 0x7F]);
        assert_eq!(beyond(f64::INFINITY, Fp8Format::E5M2), [0x7B, 0x7C, 0x7C]);
    }
}
