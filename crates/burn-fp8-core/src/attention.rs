//! What attention multiplies, and the shapes that it takes.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which numbers the products of attention multiply. Sums, the softmax and results are f32 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionPrecision {
    /// f32.
    #[default]
    High,
    /// Queries, keys, values, probabilities and gradients, rounded to bf16.
    Bf16,
    /// The same, rounded to FP8: E5M2 for gradients, E4M3 for the others. 64 rows of a head, and 64 × 64 gradients of scores, have one scale
    /// (current scaling); probabilities have 1/448.
    Fp8,
}

impl AttentionPrecision {
    /// Rows of a head, and columns of scores, that share a scale.
    pub const BLOCK: usize = 64;

    /// All of them.
    pub const ALL: [Self; 3] = [Self::High, Self::Bf16, Self::Fp8];

    /// `high`, `bf16` or `fp8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }
}

impl fmt::Display for AttentionPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no precision of attention.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no precision of attention; there are high, bf16 and fp8")]
pub struct ParseAttentionPrecisionError(String);

impl FromStr for AttentionPrecision {
    type Err = ParseAttentionPrecisionError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let precision = Self::ALL.into_iter().find(|precision| precision.name() == name);
        precision.ok_or_else(|| ParseAttentionPrecisionError(name.to_owned()))
    }
}

/// The sizes of an attention whose operands fit each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, each for `heads / kv_heads` neighbouring heads of queries.
    pub kv_heads: usize,
    /// Queries of a head.
    pub queries: usize,
    /// Keys of a head.
    pub keys: usize,
    /// The width of queries and keys.
    pub width: usize,
    /// The width of values and of the result.
    pub value_width: usize,
}

/// Shapes that do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AttentionShapeError(String);

impl AttentionShape {
    /// The widest head.
    pub const WIDEST: usize = 256;

    /// Of queries `[batch, heads, queries, width]`, keys `[batch, kv_heads, keys, width]` and values `[batch, kv_heads, keys, value width]`.
    ///
    /// # Errors
    /// If they do not fit, `kv_heads` does not divide `heads`, or heads are not 1 to 256 wide.
    pub fn new(q: [usize; 4], k: [usize; 4], v: [usize; 4]) -> Result<Self, AttentionShapeError> {
        let [batch, heads, queries, width] = q;
        let [_, kv_heads, keys, value_width] = v;
        let problem = if k != [batch, kv_heads, keys, width] || v[0] != batch {
            "keys and values must have the batch of the queries and each other's heads and length, keys the width of the queries".to_owned()
        } else if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            format!(
                "{heads} heads of queries cannot share {kv_heads} heads of keys; these must divide those"
            )
        } else if [width, value_width].iter().any(|width| !(1..=Self::WIDEST).contains(width)) {
            format!("heads must be 1 to {} wide", Self::WIDEST)
        } else {
            return Ok(Self { batch, heads, kv_heads, queries, keys, width, value_width });
        };
        Err(AttentionShapeError(format!(
            "attention of queries {q:?} to keys {k:?} and values {v:?}, [batch, heads, length, width]: {problem}"
        )))
    }

    /// The width of heads of a layer of this many features, of which keys and values have `kv_heads`.
    ///
    /// # Errors
    /// If the heads do not divide the features, those of keys do not divide those of queries, or a head is wider than 256.
    pub fn head_width(
        d_model: usize,
        n_heads: usize,
        kv_heads: usize,
    ) -> Result<usize, AttentionShapeError> {
        let problem = if n_heads == 0 || !d_model.is_multiple_of(n_heads) {
            format!("{n_heads} heads do not divide d_model = {d_model}: choose one of its divisors")
        } else if kv_heads == 0 || !n_heads.is_multiple_of(kv_heads) {
            format!(
                "{kv_heads} heads of keys and values do not divide {n_heads} heads of queries: choose one of their divisors"
            )
        } else if !(1..=Self::WIDEST).contains(&(d_model / n_heads)) {
            let width = d_model / n_heads;
            format!("heads are {width} wide, not 1 to {}: choose another number", Self::WIDEST)
        } else {
            return Ok(d_model / n_heads);
        };
        Err(AttentionShapeError(problem))
    }

    /// That of the scores: batch, heads, queries, keys.
    pub fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// That of the result: batch, heads, queries, width of values.
    pub fn output(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_width]
    }

    /// Heads of queries that share one of keys.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Checks that a bias or a mask broadcasts to the scores.
    ///
    /// # Errors
    /// If one of its dimensions is neither that of the scores nor 1.
    pub fn check(&self, name: &str, shape: [usize; 4]) -> Result<(), AttentionShapeError> {
        let scores = self.scores();
        match shape.iter().zip(scores).all(|(size, of)| *size == 1 || *size == of) {
            true => Ok(()),
            false => Err(AttentionShapeError(format!(
                "the {name} of attention has shape {shape:?}; scores have [batch, heads, queries, keys] = {scores:?}: each dimension must be equal or 1"
            ))),
        }
    }
}
