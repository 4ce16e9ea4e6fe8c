//! How the magnitudes of a tensor are distributed.

use serde::{Deserialize, Serialize};

/// Exponents of the smallest and the largest finite f32.
const SMALLEST: i32 = -149;
const LARGEST: i32 = 127;

/// How many finite, non-zero elements have which exponent: `floor(log2|x|)`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// The exponent of the first count. Between -149 and 127.
    pub first: i32,
    /// The counts of consecutive exponents; empty where all elements are zero or not finite.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Counts the elements.
    ///
    /// ```
    /// use burn_fp8_report::Histogram;
    ///
    /// let histogram = Histogram::of(&[0.0, 1.0, -1.5, 0.25, f32::NAN]);
    /// assert_eq!((histogram.first, histogram.counts), (-2, vec![1, 0, 2]));
    /// ```
    pub fn of(values: &[f32]) -> Self {
        let mut counts = [0; (LARGEST - SMALLEST + 1) as usize];
        for x in values.iter().filter(|x| x.is_finite() && **x != 0.0) {
            counts[(exponent(*x) - SMALLEST) as usize] += 1;
        }
        let is_used = |count: &u64| *count > 0;
        let Some(first) = counts.iter().position(is_used) else { return Self::default() };
        let last = counts.iter().rposition(is_used).expect("there is a first one");
        Self { first: SMALLEST + first as i32, counts: counts[first..=last].to_vec() }
    }

    /// Exponents with their counts.
    pub fn bins(&self) -> impl Iterator<Item = (i32, u64)> {
        (self.first..).zip(self.counts.iter().copied())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let first = i64::from(self.first);
        let end = first + self.counts.len() as i64;
        match first >= i64::from(SMALLEST) && end <= i64::from(LARGEST) + 1 {
            true => Ok(()),
            false => Err(format!(
                "a histogram of {} exponents from {first} on leaves {SMALLEST}..={LARGEST}, those of f32",
                self.counts.len()
            )),
        }
    }
}

/// `floor(log2|x|)` of a finite number that is not zero.
fn exponent(x: f32) -> i32 {
    let magnitude = x.to_bits() & 0x7FFF_FFFF;
    match magnitude >> 23 {
        0 => SMALLEST + magnitude.ilog2() as i32,
        exponent => exponent as i32 - 127,
    }
}
