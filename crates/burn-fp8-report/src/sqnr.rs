//! Signal-to-quantization-noise ratios.

use core::fmt;

use burn_fp8_core::Fp8Format;
use serde::{Deserialize, Serialize};

/// The power of a signal and that of the error made in it by quantization: `SQNR = 10·log10(Σx² / Σ(x − x̂)²)`, in dB, as in torchao.
///
/// 10 dB more are a tenth of the noise power; 20 dB are an error of a tenth of the signal's magnitude, 40 dB of a hundredth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sqnr {
    /// Σx².
    pub signal: f64,
    /// Σ(x − x̂)².
    pub noise: f64,
}

impl Sqnr {
    /// Adds a number and what became of it.
    pub fn add(&mut self, exact: f64, approximate: f64) {
        self.signal += exact * exact;
        self.noise += (exact - approximate) * (exact - approximate);
    }

    /// The ratio in dB: infinite where nothing was lost, `None` where there is no signal.
    pub fn decibels(self) -> Option<f64> {
        // A quotient of powers that f64 holds may overflow or underflow; that of logarithms does not.
        (self.signal > 0.0).then(|| 10.0 * (self.signal.log10() - self.noise.log10()))
    }

    pub(crate) fn check(self) -> Result<(), String> {
        let power = |x: f64| x.is_finite() && x >= 0.0;
        match power(self.signal) && power(self.noise) {
            true => Ok(()),
            false => Err("a signal or noise power is negative or not finite".into()),
        }
    }
}

impl fmt::Display for Sqnr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&decibels(self.decibels()))
    }
}

/// The SQNR of a matrix, as a whole and of its lines.
///
/// Where few rows or columns are much larger than the others, they are nearly all of the power, and the ratio of the whole does
/// not tell that the others are lost: hence that of the median row, or of the median column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixSqnr {
    /// That of all elements.
    pub whole: Sqnr,
    /// That of the median row or of the median column, whichever is lower; of lines with a signal.
    pub line: Sqnr,
}

impl MatrixSqnr {
    /// The lower of both ratios in dB: infinite where nothing was lost, `None` where there is no signal.
    pub fn decibels(self) -> Option<f64> {
        Some(self.whole.decibels()?.min(self.line.decibels().unwrap_or(f64::INFINITY)))
    }

    /// From the ratios of all rows and of all columns.
    pub(crate) fn of([rows, columns]: [Vec<Sqnr>; 2]) -> Self {
        let whole = rows.iter().fold(Sqnr::default(), |sum, row| Sqnr {
            signal: sum.signal + row.signal,
            noise: sum.noise + row.noise,
        });
        let ratio = |line: &Sqnr| line.decibels().unwrap_or(f64::INFINITY);
        let median = |mut lines: Vec<Sqnr>| {
            lines.retain(|line| line.signal > 0.0);
            lines.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
            lines.get(lines.len().saturating_sub(1) / 2).copied()
        };
        let medians = [median(rows), median(columns)].into_iter().flatten();
        let line = medians.min_by(|a, b| ratio(a).total_cmp(&ratio(b))).unwrap_or_default();
        Self { whole, line }
    }

    pub(crate) fn check(self) -> Result<(), String> {
        self.whole.check()?;
        self.line.check()
    }
}

/// A ratio as it is printed.
pub(crate) fn decibels(ratio: Option<f64>) -> String {
    match ratio {
        None => "no signal".into(),
        Some(f64::INFINITY) => "exact".into(),
        Some(ratio) => format!("{ratio:.1} dB"),
    }
}

/// The SQNR in dB that the rounding of a product's operands leaves where nothing is flushed and nothing saturates: what two formats
/// can give.
///
/// Between two powers of two a format with m mantissa bits has steps of `2^(e − m)`, hence an error of power `4^(e − m) / 12`
/// (uniform, as usual in quantization theory), against a mean power of `(7/3)·4^e` of mantissas uniform in 1..2: a ratio of `28·4^m`,
/// 32.5 dB for E4M3 and 26.5 dB for E5M2. The errors of two operands add up, each relative to its own.
///
/// ```
/// use burn_fp8_core::Fp8Format::{E4M3, E5M2};
/// use burn_fp8_report::rounding_limit;
///
/// assert!((rounding_limit([E4M3, E4M3]) - 29.5).abs() < 0.1);
/// assert!((rounding_limit([E5M2, E4M3]) - 25.5).abs() < 0.1);
/// ```
pub fn rounding_limit(formats: [Fp8Format; 2]) -> f64 {
    let noise = |format: Fp8Format| 1.0 / (28.0 * 4f64.powi(format.mantissa_bits() as i32));
    -10.0 * formats.map(noise).iter().sum::<f64>().log10()
}
