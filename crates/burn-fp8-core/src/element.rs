//! One element: the conversion of single values, and the arithmetic that kernels have in their loops.
//!
//! Free of branches and always inlined: in a loop that is compiled for a vector instruction set, LLVM turns it into vector code.

use half::{bf16, f16};

use crate::{Fp8Format, Overflow};

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7F80_0000;
const QUIET_NAN: u32 = 0x7FC0_0000;
const MANTISSA_BITS: u32 = 23;

impl Fp8Format {
    /// The code of `x`, rounded to nearest, ties to even, subnormals included.
    ///
    /// NaN becomes ±0x7F in E4M3 and ±0x7E in E5M2, as in `ml_dtypes`.
    #[inline]
    pub fn encode(self, x: f32, overflow: Overflow) -> u8 {
        quantize(x, 1.0, self, overflow).code()
    }

    /// The code of an f16, as [`encode`](Self::encode): f32 holds every f16, so nothing is rounded twice.
    #[inline]
    pub fn encode_f16(self, x: f16, overflow: Overflow) -> u8 {
        self.encode(f16_to_f32(x), overflow)
    }

    /// The code of a bf16, as [`encode`](Self::encode): f32 holds every bf16, so nothing is rounded twice.
    #[inline]
    pub fn encode_bf16(self, x: bf16, overflow: Overflow) -> u8 {
        self.encode(bf16_to_f32(x), overflow)
    }

    /// The number that `code` stands for, exactly. NaN codes give a quiet NaN with their sign.
    #[inline]
    pub fn decode(self, code: u8) -> f32 {
        decode(code, self)
    }
}

/// A number of an FP8 format, in two forms. Whichever is not asked for costs nothing.
#[derive(Clone, Copy)]
pub struct Quantized {
    value: u32,
    code: u32,
    sign: u32,
}

impl Quantized {
    /// The code.
    #[inline(always)]
    pub fn code(self) -> u8 {
        (self.code | (self.sign >> 24)) as u8
    }

    /// The number that the code stands for.
    #[inline(always)]
    pub fn value(self) -> f32 {
        f32::from_bits(self.value | self.sign)
    }
}

/// `x / scale`, rounded to nearest, ties to even.
///
/// The rounding: let `e` be the exponent of the magnitude `a`, or that of the smallest normal number if that is larger; FP8
/// numbers around `a` are then multiples of `2^(e - m)`, with `m` mantissa bits. `2^(e - m + 23)` has that as the distance between
/// its f32 neighbours, so adding it makes the adder of the CPU round to such a multiple, and the low bits of the sum are
/// its integer multiplier. Subtracting it again is exact. Rust never fuses or reorders these operations; GPU compilers may.
#[inline(always)]
pub fn quantize(x: f32, scale: f32, format: Fp8Format, overflow: Overflow) -> Quantized {
    round(x, x / scale, format, overflow)
}

/// The same, where the quotient of `x` and its scale is known: as a product, which is exact where the scale is a power of two and several times as fast.
#[inline(always)]
pub fn round(x: f32, quotient: f32, format: Fp8Format, overflow: Overflow) -> Quantized {
    let m = format.mantissa_bits();
    let max = format.max().to_bits();
    let limit = match overflow {
        Overflow::Saturate | Overflow::SaturateFinite => max,
        // Large enough to be seen as overflow after rounding, small enough for the sum below.
        Overflow::NonSaturating => (2.0 * format.max()).to_bits(),
    };

    let quotient = quotient.to_bits();
    let sign = quotient & SIGN;
    let magnitude = quotient & !SIGN;
    // The order of non-negative floats is that of their bits, and NaN comes after infinity.
    let is_nan = magnitude > INFINITY;
    let clipped = magnitude.min(limit);
    let exponent = (clipped & INFINITY).max(format.min_positive_normal().to_bits());
    let magic = exponent.wrapping_add((MANTISSA_BITS - m) << MANTISSA_BITS);
    let sum = f32::from_bits(clipped) + f32::from_bits(magic);
    let rounded = (sum - f32::from_bits(magic)).to_bits();
    // Multiplier plus (e + bias - 1) << m: the implicit leading one of a normal number carries into the exponent field.
    let code = (sum.to_bits().wrapping_sub(magic))
        .wrapping_add(exponent >> (MANTISSA_BITS - m))
        .wrapping_sub((128 - format.exponent_bias()) << m);

    let is_infinite = match overflow {
        Overflow::Saturate => false,
        // The input, not the quotient: a finite input over a small scale is finite, whatever f32 makes of it.
        Overflow::SaturateFinite => x.to_bits() & !SIGN == INFINITY,
        Overflow::NonSaturating => rounded > max,
    };
    let (infinite_code, infinite_value, nan_code) = match format {
        Fp8Format::E4M3 => (0x7F, QUIET_NAN, 0x7F),
        Fp8Format::E5M2 => (0x7C, INFINITY, 0x7E),
    };
    let (value, code) = if is_infinite { (infinite_value, infinite_code) } else { (rounded, code) };
    let (value, code) = if is_nan { (QUIET_NAN, nan_code) } else { (value, code) };
    Quantized { value, code, sign }
}

/// The code of one of both neighbours of a finite quotient: of the one farther from 0 with the probability that makes the mean right, or with `squares` that of the squares. A
/// quotient that is larger than the format gets its largest number. `uniform` is drawn from (0, 1).
///
/// As in [`round`], the adder rounds: down, as half of the distance of neighbours is subtracted before. What is a number of the format then may count as the upper neighbour, which it becomes for certain.
#[inline(always)]
pub fn at_random(quotient: f32, uniform: f32, squares: bool, format: Fp8Format) -> u8 {
    let m = format.mantissa_bits();
    let sign = quotient.to_bits() & SIGN;
    let x = (quotient.to_bits() & !SIGN).min(format.max().to_bits());
    let exponent = (x & INFINITY).max(format.min_positive_normal().to_bits());
    let magic = exponent.wrapping_add((MANTISSA_BITS - m) << MANTISSA_BITS);
    let distance = f32::from_bits(exponent.wrapping_sub(m << MANTISSA_BITS));
    let x = f32::from_bits(x);
    let sum = (x - 0.5 * distance).max(0.0) + f32::from_bits(magic);
    let lower = sum - f32::from_bits(magic);
    let is_upper = if squares {
        lower * lower + uniform * distance * (lower + lower + distance) < x * x
    } else {
        lower + uniform * distance < x
    };
    let code = (sum.to_bits().wrapping_sub(magic))
        .wrapping_add(exponent >> (MANTISSA_BITS - m))
        .wrapping_sub((128 - format.exponent_bias()) << m)
        .wrapping_add(u32::from(is_upper));
    (code | (sign >> 24)) as u8
}

/// The number that `code` stands for.
#[inline(always)]
pub const fn decode(code: u8, format: Fp8Format) -> f32 {
    let code = code as u32;
    let magnitude = code & 0x7F;
    let finite = widen(magnitude, format.mantissa_bits(), format.exponent_bias());
    let bits = match format {
        Fp8Format::E4M3 if magnitude == 0x7F => QUIET_NAN,
        Fp8Format::E5M2 if magnitude > 0x7C => QUIET_NAN,
        Fp8Format::E5M2 if magnitude == 0x7C => INFINITY,
        _ => finite,
    };
    f32::from_bits(bits | ((code & 0x80) << 24))
}

/// The number that `code` stands for, if that is finite, in half the instructions of [`decode`].
///
/// The bits of the code become the highest of an f32 with a smaller exponent, so that subnormals become subnormals; the
/// multiplication that corrects the exponent is exact.
#[inline(always)]
pub fn decode_finite(code: u8, format: Fp8Format) -> f32 {
    let shift = MANTISSA_BITS - format.mantissa_bits();
    // The sign is extended on the way, and masked out of the bits where it does not belong.
    let bits = (i32::from(code as i8) << shift) as u32 & (SIGN | (0x7F << shift));
    f32::from_bits(bits) * f32::from_bits((254 - format.exponent_bias()) << MANTISSA_BITS)
}

/// An f16 as f32, exactly. NaN stays NaN.
#[inline(always)]
pub fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = bits & 0x7FFF;
    let finite = widen(magnitude, 10, 15);
    let magnitude = if magnitude >= 0x7C00 { finite | INFINITY } else { finite };
    f32::from_bits(magnitude | ((bits & 0x8000) << 16))
}

/// A bf16 as f32, exactly: its upper half.
#[inline(always)]
pub fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// The f32 bits of a magnitude given as exponent and `m` mantissa bits, the highest exponent taken as finite.
///
/// Subnormals avoid f32 subnormals, which are slow on many CPUs: put in the mantissa of the power of two whose last bit has their
/// unit, `2^(1 - bias - m)`, they are read off by subtracting that power.
#[inline(always)]
const fn widen(magnitude: u32, m: u32, bias: u32) -> u32 {
    let normal = (magnitude << (MANTISSA_BITS - m)) + ((127 - bias) << MANTISSA_BITS);
    let magic = (127 + MANTISSA_BITS + 1 - bias - m) << MANTISSA_BITS;
    let subnormal = (f32::from_bits(magic | magnitude) - f32::from_bits(magic)).to_bits();
    if magnitude < (1 << m) { subnormal } else { normal }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All numbers of both formats, and numbers between neighbours, which become the upper one where `uniform` is less than its probability.
    #[test]
    fn at_random_a_number_becomes_a_neighbour() {
        let ends = [0.5 / 65536.0, 65535.5 / 65536.0];
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            let largest = (0..0x7F).rev().find(|code| format.decode(*code).is_finite()).unwrap();
            for (code, squares) in (0..=largest).flat_map(|code| [(code, false), (code, true)]) {
                let a = format.decode(code);
                for uniform in ends {
                    assert_eq!(at_random(a, uniform, squares, format), code);
                    assert_eq!(at_random(-a, uniform, squares, format), code | 0x80);
                    assert_eq!(at_random(2.0 * format.max(), uniform, squares, format), largest);
                }
                if code == largest {
                    continue;
                }
                let b = format.decode(code + 1);
                for x in [0.01, 0.25, 0.5, 0.9].map(|part| a + part * (b - a)) {
                    let [a, b, exact] = [a, b, x].map(f64::from);
                    let probability = match squares {
                        true => (exact * exact - a * a) / (b * b - a * a),
                        false => (exact - a) / (b - a),
                    };
                    for (away, expected) in [(-1e-5, code + 1), (1e-5, code)] {
                        let uniform = (probability + away) as f32;
                        let found = at_random(x, uniform, squares, format);
                        assert_eq!(found, expected, "{x} {uniform} {squares} {format:?}");
                    }
                }
            }
        }
    }
}
