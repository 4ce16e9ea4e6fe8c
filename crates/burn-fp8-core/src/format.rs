//! E4M3 and E5M2 as numbers: their limits.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// An 8-bit floating-point format of the OCP 8-bit Floating Point Specification (OFP8, revision 1.0).
///
/// A number in such a format is handled as its *code*, a `u8`: sign, exponent, mantissa, from the highest bit down. Codes are
/// those of `float8::F8E4M3` and `float8::F8E5M2` (`from_bits`, `to_bits`), of `ml_dtypes` and of CUDA's `__nv_fp8_e4m3` and
/// `__nv_fp8_e5m2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fp8Format {
    /// Four exponent bits, three mantissa bits, no infinities, one NaN (0x7F) per sign: `float8_e4m3fn`. Weights and activations.
    E4M3,
    /// Five exponent bits, two mantissa bits, infinities and NaNs as in IEEE 754: `float8_e5m2`. Output gradients.
    E5M2,
}

/// What becomes of values that are too large for a format.
///
/// NaN stays NaN, with its sign, in every mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Overflow {
    /// Everything beyond the largest number, infinities included, becomes ±max: clip, then cast. Flax's `quantize`.
    Saturate,
    /// Finite values saturate, also where dividing by a small scale overflows f32. An infinite input stays visible: NaN in
    /// E4M3, which has no infinities, and ±inf in E5M2. What the decorator does, so that a diverging model is seen to diverge.
    #[default]
    SaturateFinite,
    /// A value that rounds to more than the largest number becomes NaN in E4M3 and ±inf in E5M2: `astype` of `ml_dtypes`.
    NonSaturating,
}

impl Fp8Format {
    /// The largest finite number: 448 or 57344.
    #[inline]
    pub const fn max(self) -> f32 {
        match self {
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }

    /// What `x / scale` must exceed for `x` to count as saturated: [`max`](Self::max) × (1 + 2^-22). A scale `amax / max` is rounded to f32,
    /// so that the amax divided by it may come out an ulp or two beyond the largest number, to which it is rounded without loss.
    pub const fn saturates_beyond(self) -> f32 {
        self.max() * (1.0 + 2.0 * f32::EPSILON)
    }

    /// The smallest positive normal number: 2^-6 or 2^-14.
    #[inline]
    pub const fn min_positive_normal(self) -> f32 {
        power_of_two(1 - self.exponent_bias() as i32)
    }

    /// The smallest positive number: 2^-9 or 2^-16.
    #[inline]
    pub const fn min_positive_subnormal(self) -> f32 {
        power_of_two(1 - self.exponent_bias() as i32 - self.mantissa_bits() as i32)
    }

    /// The distance from 1 to the next larger number: 2^-3 or 2^-2.
    #[inline]
    pub const fn epsilon(self) -> f32 {
        power_of_two(-(self.mantissa_bits() as i32))
    }

    /// The number of stored mantissa bits: 3 or 2.
    #[inline]
    pub const fn mantissa_bits(self) -> u32 {
        match self {
            Self::E4M3 => 3,
            Self::E5M2 => 2,
        }
    }

    /// The number of exponent bits: 4 or 5.
    #[inline]
    pub const fn exponent_bits(self) -> u32 {
        match self {
            Self::E4M3 => 4,
            Self::E5M2 => 5,
        }
    }

    /// The exponent bias: 7 or 15.
    #[inline]
    pub const fn exponent_bias(self) -> u32 {
        match self {
            Self::E4M3 => 7,
            Self::E5M2 => 15,
        }
    }

    /// All limits in one struct that prints like numpy's `finfo`.
    pub const fn info(self) -> FormatInfo {
        FormatInfo {
            format: self,
            max: self.max(),
            min_positive_normal: self.min_positive_normal(),
            min_positive_subnormal: self.min_positive_subnormal(),
            epsilon: self.epsilon(),
            mantissa_bits: self.mantissa_bits(),
            exponent_bits: self.exponent_bits(),
            exponent_bias: self.exponent_bias(),
        }
    }

    /// Whether `code` is a NaN.
    #[inline]
    pub const fn is_nan(self, code: u8) -> bool {
        match self {
            Self::E4M3 => code & 0x7F == 0x7F,
            Self::E5M2 => code & 0x7F > 0x7C,
        }
    }

    /// Whether `code` is an infinity. Never in E4M3.
    #[inline]
    pub const fn is_infinite(self, code: u8) -> bool {
        match self {
            Self::E4M3 => false,
            Self::E5M2 => code & 0x7F == 0x7C,
        }
    }
}

impl fmt::Display for Fp8Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::E4M3 => "E4M3",
            Self::E5M2 => "E5M2",
        })
    }
}

/// A name that is no FP8 format of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{name}\" is not a known FP8 format; known are e4m3 (also e4m3fn, float8_e4m3fn, f8e4m3fn) and e5m2 (also float8_e5m2, f8e5m2)"
)]
pub struct ParseFp8FormatError {
    name: String,
}

impl FromStr for Fp8Format {
    type Err = ParseFp8FormatError;

    /// Reads the names used by this crate, numpy, PyTorch and StableHLO, in upper or lower case.
    ///
    /// The `fnuz` variants are other formats and are refused.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name.to_ascii_lowercase().as_str() {
            "e4m3" | "e4m3fn" | "float8_e4m3fn" | "f8e4m3fn" => Ok(Self::E4M3),
            "e5m2" | "float8_e5m2" | "f8e5m2" => Ok(Self::E5M2),
            _ => Err(ParseFp8FormatError { name: name.to_owned() }),
        }
    }
}

/// The limits of a format. Its `Display` lays them out like numpy's `finfo`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FormatInfo {
    /// The format described.
    pub format: Fp8Format,
    /// See [`Fp8Format::max`].
    pub max: f32,
    /// See [`Fp8Format::min_positive_normal`].
    pub min_positive_normal: f32,
    /// See [`Fp8Format::min_positive_subnormal`].
    pub min_positive_subnormal: f32,
    /// See [`Fp8Format::epsilon`].
    pub epsilon: f32,
    /// See [`Fp8Format::mantissa_bits`].
    pub mantissa_bits: u32,
    /// See [`Fp8Format::exponent_bits`].
    pub exponent_bits: u32,
    /// See [`Fp8Format::exponent_bias`].
    pub exponent_bias: u32,
}

impl fmt::Display for FormatInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rule = "-".repeat(63);
        let min_exponent = 1 - self.exponent_bias as i32;
        // numpy's `maxexp` is the first power of two that overflows.
        let max_exponent = self.max.log2().floor() as i32 + 1;
        writeln!(f, "Machine parameters for {}", self.format)?;
        writeln!(f, "{rule}")?;
        writeln!(f, "nmant =  {:<3}    eps = {}", self.mantissa_bits, self.epsilon)?;
        writeln!(f, "nexp =   {:<3}    bias = {}", self.exponent_bits, self.exponent_bias)?;
        writeln!(
            f,
            "minexp = {min_exponent:<3}    smallest_normal = {}",
            self.min_positive_normal
        )?;
        writeln!(f, "maxexp = {max_exponent:<3}    max = {}", self.max)?;
        writeln!(f, "smallest_subnormal = {}   min = -max", self.min_positive_subnormal)?;
        f.write_str(&rule)
    }
}

/// `2^exponent` for exponents in -126..=127.
#[inline]
pub(crate) const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}
