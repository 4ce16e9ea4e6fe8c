//! How many times as fast FP8 is as high precision, as it was measured, by the shape of a product.

use serde::{Deserialize, Serialize};

use crate::Gemm;

/// How fast products in FP8 are on one machine, in percent of the speed of the same in high precision, at each M, N and K of a grid.
///
/// Between the points of the grid the gain is interpolated in the logarithms of M, N and K; outside it is that of the border.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", deny_unknown_fields)]
pub struct Gains {
    measured_on: String,
    sizes: Vec<usize>,
    forward: Vec<u32>,
    training: Vec<u32>,
}

/// What was read, whatever it says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    measured_on: String,
    sizes: Vec<usize>,
    forward: Vec<u32>,
    training: Vec<u32>,
}

impl TryFrom<Parts> for Gains {
    type Error = GainsError;

    fn try_from(parts: Parts) -> Result<Self, GainsError> {
        Self::new(parts.measured_on, parts.sizes, parts.forward, parts.training)
    }
}

/// Why something is no table of gains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gains: {0}")]
pub struct GainsError(String);

impl Gains {
    /// The most sizes of a grid.
    pub const MAX_SIZES: usize = 16;

    /// The smallest gain, in percent, for which products are taken. Less may be the noise of the measurement, and FP8 costs accuracy.
    pub const LEAST: u32 = 105;

    /// What was measured, at these sizes of M, N and K: in percent, M changing slowest and K fastest.
    ///
    /// `forward` is of products alone, `training` of a product with its two gradients.
    ///
    /// # Errors
    /// Where there are no sizes or more than [`MAX_SIZES`](Self::MAX_SIZES), they do not grow, one is 0, or the gains are not `sizes³`.
    pub fn new(
        measured_on: String,
        sizes: Vec<usize>,
        forward: Vec<u32>,
        training: Vec<u32>,
    ) -> Result<Self, GainsError> {
        let count = sizes.len();
        if !(1..=Self::MAX_SIZES).contains(&count) {
            let most = Self::MAX_SIZES;
            return Err(GainsError(format!("{count} sizes, which must be 1 to {most}")));
        }
        if sizes[0] == 0 || sizes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(GainsError(format!("the sizes {sizes:?} must be positive and grow")));
        }
        for (name, gains) in [("forward", &forward), ("training", &training)] {
            if gains.len() != count.pow(3) {
                let (has, wants) = (gains.len(), count.pow(3));
                return Err(GainsError(format!("{name} has {has} numbers; it must have {wants}")));
            }
        }
        Ok(Self { measured_on, sizes, forward, training })
    }

    /// Backend, machine and configuration.
    pub fn measured_on(&self) -> &str {
        &self.measured_on
    }

    /// The sizes of the grid.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The gain of a forward product of this shape, in percent: alone, or with its two gradients.
    pub fn of(&self, forward: Gemm, with_gradients: bool) -> u32 {
        let table = if with_gradients { &self.training } else { &self.forward };
        let places = [forward.m, forward.n, forward.k].map(|size| self.place(size));
        let count = self.sizes.len();
        let mut gain = 0.0;
        for corner in 0..8 {
            let (mut weight, mut index) = (1.0, 0);
            for (axis, (low, share)) in places.into_iter().enumerate() {
                let is_high = corner >> axis & 1 == 1;
                weight *= if is_high { share } else { 1.0 - share };
                index = index * count + (low + usize::from(is_high)).min(count - 1);
            }
            if weight > 0.0 {
                gain += weight * f64::from(table[index]);
            }
        }
        gain.round() as u32
    }

    /// Between which sizes a size lies: the index of the lower one, and how far it is on the way to the next.
    fn place(&self, size: usize) -> (usize, f64) {
        let above = self.sizes.partition_point(|known| *known <= size);
        let below = above.saturating_sub(1);
        // Small products must not wait for logarithms that change nothing.
        if above == 0 || above == self.sizes.len() || self.sizes[below] == size {
            return (below, 0.0);
        }
        let [low, high, size] =
            [self.sizes[below], self.sizes[above], size].map(|size| (size as f64).log2());
        (below, (size - low) / (high - low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gains(sizes: &[usize], table: impl Fn([usize; 3]) -> u32) -> Gains {
        let mut forward = vec![];
        for &m in sizes {
            for &n in sizes {
                forward.extend(sizes.iter().map(|&k| table([m, n, k])));
            }
        }
        let training = forward.iter().map(|gain| gain + 1).collect();
        Gains::new("a machine".into(), sizes.to_vec(), forward, training).expect("a table")
    }

    #[test]
    fn gains_are_those_of_the_grid_and_between_them_on_lines() {
        let gains = gains(&[16, 64, 1024], |[m, n, k]| (m + 2 * n + 4 * k) as u32);
        let of = |m, n, k| gains.of(Gemm::matrix(m, n, k), false);
        assert_eq!(of(16, 64, 1024), 16 + 128 + 4096);
        assert_eq!(gains.of(Gemm::matrix(16, 64, 1024), true), 16 + 128 + 4096 + 1);
        // Outside: the border.
        assert_eq!(of(1, 16, 16), of(16, 16, 16));
        assert_eq!(of(1 << 40, 1 << 40, 1025), of(1024, 1024, 1024));
        // In the middle of the logarithms: 32 of 16 and 64, 256 of 64 and 1,024.
        assert_eq!(of(32, 16, 16), 40 + 32 + 64);
        assert_eq!(of(16, 256, 16), 16 + 2 * (64 + 1024) / 2 + 64);
        assert_eq!(of(16, 16, 256), 16 + 32 + 4 * (64 + 1024) / 2);
        assert_eq!(of(32, 32, 32), 40 + 80 + 160);
    }

    #[test]
    fn a_table_of_one_size_has_one_gain() {
        let gains = gains(&[64], |_| 150);
        assert_eq!(gains.of(Gemm::matrix(1, 64, 4096), false), 150);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let new = |sizes: &[usize], forward: usize, training: usize| {
            let gains = |count| vec![100; count];
            Gains::new(String::new(), sizes.to_vec(), gains(forward), gains(training))
                .map_err(|error| error.to_string())
        };
        for (result, expected) in [
            (new(&[], 0, 0), "0 sizes"),
            (new(&[0, 1], 8, 8), "must be positive and grow"),
            (new(&[2, 2], 8, 8), "must be positive and grow"),
            (new(&[1, 2], 7, 8), "forward has 7 numbers; it must have 8"),
            (new(&[1, 2], 8, 9), "training has 9 numbers; it must have 8"),
            (new(&(1..18).collect::<Vec<_>>(), 4913, 4913), "17 sizes"),
        ] {
            let error = result.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let table = gains(&[1, 2], |_| 100);
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<Gains>(&json).unwrap(), table);
        let short = json.replace("100,100,", "100,");
        assert!(serde_json::from_str::<Gains>(&short).is_err());
    }
}
