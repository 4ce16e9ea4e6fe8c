//! How a sum over K is cut into chains.

use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::GemmRole;

/// How cuBLAS accumulates: what PyTorch calls `use_fast_accum`, and TransformerEngine the contrary of `use_split_accumulator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accumulation {
    /// One chain over K.
    Fast,
    /// A new chain every 128 of K; the chains are added in f32.
    Split,
}

/// The accumulation of the three products of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accumulations {
    /// The forward product.
    pub output: Accumulation,
    /// The gradient of the input.
    pub grad_input: Accumulation,
    /// The gradient of the weight.
    pub grad_weight: Accumulation,
}

impl Accumulations {
    /// Fast forward, split for gradients: the default of TransformerEngine (`Float8CurrentScaling`, `DelayedScaling`: `fp8_gemm_fprop`, `_dgrad`, `_wgrad`).
    pub const TRANSFORMER_ENGINE: Self = Self {
        output: Accumulation::Fast,
        grad_input: Accumulation::Split,
        grad_weight: Accumulation::Split,
    };

    /// All three alike.
    pub const fn all(accumulation: Accumulation) -> Self {
        Self { output: accumulation, grad_input: accumulation, grad_weight: accumulation }
    }

    /// That of one of them.
    pub const fn of(self, role: GemmRole) -> Accumulation {
        match role {
            GemmRole::Output => self.output,
            GemmRole::GradInput => self.grad_input,
            GemmRole::GradWeight => self.grad_weight,
        }
    }

    /// The same with another one for one of them.
    pub const fn with(self, role: GemmRole, accumulation: Accumulation) -> Self {
        match role {
            GemmRole::Output => Self { output: accumulation, ..self },
            GemmRole::GradInput => Self { grad_input: accumulation, ..self },
            GemmRole::GradWeight => Self { grad_weight: accumulation, ..self },
        }
    }
}

impl Default for Accumulations {
    fn default() -> Self {
        Self::TRANSFORMER_ENGINE
    }
}

/// K given to several thread blocks, whose sums are added in f32: what cuBLASLt does where a product has few of them. Which products it splits is a
/// heuristic of card, version and workspace; without a workspace it splits none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitK {
    /// Parts of K: `CUBLASLT_ALGO_CONFIG_SPLITK_NUM`.
    pub splits: usize,
    /// Which part has what of K, and how the parts are added.
    pub order: SplitOrder,
}

/// Which part has what of K, and how the parts are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitOrder {
    /// Runs of tiles of 128, added one after the other: Hopper.
    Contiguous,
    /// Tiles of 64 in turn, the parts added one after the other: Ada, custom options 0 and 2. [`Accumulation::Split`] begins anew every two tiles that a part has.
    Serial,
    /// Tiles of 64 in turn, the parts added in pairs: Ada, custom option 1.
    Pairwise,
}

/// Pieces of K that one chain takes, one after the other. The last block is padded with zeros, which change nothing.
pub type Chain = Vec<Range<usize>>;

/// Chains that are added in f32, in this order, from +0.
pub type Part = Vec<Chain>;

/// The parts of a sum over `k`, which [`join_parts`] adds. A new chain begins every `chain` where accumulation is split.
///
/// # Panics
/// If chains are of 0.
pub fn chains(
    k: usize,
    chain: u32,
    accumulation: Accumulation,
    split: Option<SplitK>,
) -> Vec<Part> {
    let chain = chain as usize;
    let cut = |range: Range<usize>, length: usize| {
        let starts = range.clone().step_by(length);
        starts.map(move |start| start..(start + length).min(range.end))
    };
    let chains_of = |range: Range<usize>| -> Part {
        match accumulation {
            Accumulation::Fast if range.is_empty() => vec![],
            Accumulation::Fast => vec![vec![range]],
            Accumulation::Split => cut(range, chain).map(|piece| vec![piece]).collect(),
        }
    };
    let Some(SplitK { splits, order }) = split.filter(|split| split.splits > 1) else {
        return vec![chains_of(0..k)];
    };
    match order {
        SplitOrder::Contiguous => {
            const TILE: usize = 128;
            let run = k.div_ceil(TILE).div_ceil(splits) * TILE;
            let start = |part: usize| (part * run).min(k);
            (0..splits).map(|part| chains_of(start(part)..start(part + 1))).collect()
        }
        SplitOrder::Serial | SplitOrder::Pairwise => {
            const TILE: usize = 64;
            const TILES_OF_A_CHAIN: usize = 2;
            let of_part = |part: usize| {
                let tiles: Vec<_> = cut(0..k, TILE).skip(part).step_by(splits).collect();
                match accumulation {
                    Accumulation::Fast if tiles.is_empty() => vec![],
                    Accumulation::Fast => vec![tiles],
                    Accumulation::Split => {
                        tiles.chunks(TILES_OF_A_CHAIN).map(<[_]>::to_vec).collect()
                    }
                }
            };
            (0..splits).map(of_part).collect()
        }
    }
}

/// Adds the sums of parts, in f32 and in cuBLASLt's order.
pub fn join_parts(parts: &[f32], split: Option<SplitK>) -> f32 {
    let [rest @ .., last] = parts else { return 0.0 };
    match split.map(|split| split.order) {
        Some(SplitOrder::Pairwise) => {
            let half = parts.len().div_ceil(2);
            let pair = |index: usize| match rest.get(index + half) {
                Some(other) => parts[index] + other,
                None => parts[index],
            };
            match parts.len() {
                1 => *last,
                _ => (0..half).fold(*last, |sum, index| sum + pair(index)),
            }
        }
        _ => parts[1..].iter().fold(parts[0], |sum, part| sum + part),
    }
}
