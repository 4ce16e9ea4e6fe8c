//! Dropout by a counter-based generator: a mask that is recomputed, never stored. `burn_fp8_cpu::dropout` computes it.

use serde::{Deserialize, Serialize};

/// Which elements of a matrix are dropped: a function of seed, row and column alone, so that every pass and every thread finds the same.
///
/// The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). The seed is its key; the counter is the
/// row, and the column divided by eight. Each decision takes 16 bits, so the probability is rounded to a multiple of 2⁻¹⁶.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dropout {
    /// Of 65,536 values, how many drop.
    threshold: u32,
    seed: u64,
}

/// A probability that nothing can be dropped with.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("the probability of dropout is {0}; it must be at least 0 and less than 1")]
pub struct DropoutError(
    /// The probability.
    pub f64,
);

impl Dropout {
    /// Drops with a probability in `[0, 1)`; rounded to a multiple of 2⁻¹⁶ below 1.
    pub fn new(probability: f64, seed: u64) -> Result<Self, DropoutError> {
        match (0.0..1.0).contains(&probability) {
            true => {
                Ok(Self { threshold: ((probability * 65536.0).round() as u32).min(65535), seed })
            }
            false => Err(DropoutError(probability)),
        }
    }

    /// What kept elements are multiplied by: one over the probability to be kept, as rounded.
    pub fn factor(self) -> f32 {
        (65536.0 / f64::from(65536 - self.threshold)) as f32
    }

    /// Of 65,536 values of 16 random bits, how many drop: those below.
    pub fn threshold(self) -> u32 {
        self.threshold
    }

    /// The key of the generator.
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// Decisions of a counter, of neighbouring columns: 16 bits of each word's low half, then of its high half.
    pub const COLUMNS: usize = 8;

    /// Rows of a group of neighbouring elements of a tensor in the order of its memory. Group `i` are the rows from `64 · i` on and the first columns,
    /// column by column.
    pub const ROWS: usize = 64;

    /// Elements of a group.
    pub const GROUP: usize = Self::ROWS * Self::COLUMNS;
}

/// An operation on single elements whose gradient needs no more than its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pointwise {
    /// `x · Φ(x)`, by the error function: `x · (1 + erf(x / √2)) / 2` (Hendrycks and Gimpel, 2016).
    Gelu,
    /// `x · σ(x)`, with the logistic function: `x / (1 + e⁻ˣ)` (Ramachandran et al., "Swish", 2017).
    Silu,
    /// 0 for what is dropped, else times [`Dropout::factor`]: a contiguous tensor by groups of [`Dropout::GROUP`].
    Dropout(Dropout),
}

impl Pointwise {
    /// Whether the gradient depends on the input.
    pub fn keeps_input(self) -> bool {
        !matches!(self, Self::Dropout(_))
    }
}

/// How operations between products keep what their backward steps take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Saved {
    /// As it is.
    #[default]
    Whole,
    /// In E4M3, with a scale in f32 for each 128 elements of a row: 26% of the bytes of f32.
    Fp8,
}

/// What softmax makes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Softmax {
    /// `eˣ / Σ eˣ`.
    Probabilities,
    /// `x - ln Σ eˣ`: `log_softmax`.
    Logarithms,
}

/// How a row is normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// Less its mean, over its standard deviation.
    Layer,
    /// Over the root of the mean of its squares.
    Rms,
}

impl Norm {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layer => "layer normalization",
            Self::Rms => "RMS normalization",
        }
    }
}

/// What lies between the layers of an `Fp8Mlp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpActivation {
    /// [`Pointwise::Gelu`]. That of BERT.
    Gelu,
    /// [`Pointwise::Silu`]. Gated, it is SwiGLU, that of Llama.
    Silu,
}

impl From<MlpActivation> for Pointwise {
    fn from(activation: MlpActivation) -> Self {
        match activation {
            MlpActivation::Gelu => Self::Gelu,
            MlpActivation::Silu => Self::Silu,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probability_outside_of_0_to_1_is_an_error() {
        for probability in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            let error = Dropout::new(probability, 0).unwrap_err().to_string();
            assert!(error.contains("at least 0 and less than 1"), "{error}");
        }
        assert!(Dropout::new(1.0 - 1e-12, 0).unwrap().factor().is_finite());
    }
}
