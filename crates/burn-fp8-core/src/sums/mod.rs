//! The sums of tensor cores: how hardware adds the products of FP8 codes, as data, and a reference that adds so, exactly and slowly.
//!
//! No tensor core sums in f32. It adds a *block* of products and the running sum at once: it aligns them to the largest exponent among them, cuts each
//! toward zero to some *fraction* bits below it, adds what is left exactly, and cuts the sum. A *chain* is a run of such steps over K. cuBLAS
//! makes one chain of K with [`Accumulation::Fast`], and one every 128 of K, added in f32, with [`Accumulation::Split`].
//!
//! The rules are those of Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (ACM TACO 23(3), 2026; arXiv 2512.07004), of MMA-Sim
//! (arXiv 2511.10909) and of mmaemu 0.1.0; [`Sums::evidence`] says what each was checked on.

mod accumulator;
mod chains;
mod reference;

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

pub use accumulator::{Accumulator, AccumulatorError, RunningSum};
pub use chains::{
    Accumulation, Accumulations, Chain, Part, SplitK, SplitOrder, chains, join_parts,
};
pub use reference::{CANONICAL_NAN, dot, scaled, step};

/// Whose sums an emulated product has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sums {
    /// f32, in some order: what no tensor core does, and the fastest on a CPU.
    #[default]
    F32,
    /// cuBLAS on Hopper (compute capability 9.0).
    Hopper,
    /// cuBLAS on Ada (8.9).
    Ada,
    /// The instruction `tcgen05.mma` of Blackwell (10.0), which is that of the RTX 50 as well. Known of single instructions, not of cuBLAS.
    Blackwell,
    /// An accumulator of one's own.
    Custom(Accumulator),
}

impl Sums {
    /// Those of known cards.
    pub const CARDS: [Self; 3] = [Self::Hopper, Self::Ada, Self::Blackwell];

    /// How it adds; none for f32.
    pub const fn accumulator(self) -> Option<Accumulator> {
        match self {
            Self::F32 => None,
            Self::Hopper => Some(Accumulator::HOPPER),
            Self::Ada => Some(Accumulator::ADA),
            Self::Blackwell => Some(Accumulator::BLACKWELL),
            Self::Custom(accumulator) => Some(accumulator),
        }
    }

    /// Its name, as JSON and options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Hopper => "hopper",
            Self::Ada => "ada",
            Self::Blackwell => "blackwell",
            Self::Custom(_) => "custom",
        }
    }

    /// On which cards the sums of products with one scale for each tensor were compared with hardware, by whom.
    pub const fn evidence(self) -> &'static str {
        match self {
            Self::F32 => "no card sums so",
            Self::Hopper => {
                "an H100 PCIe, cuBLASLt 12.8.3.14: 1,423 products, bit for bit, split ones among them (mmaemu 0.1.0); 5,000 recorded instructions of an H100 (MATLAB-tensor-core)"
            }
            Self::Ada => {
                "an RTX 4060, cuBLASLt 12.8.3.14: 10^8 outputs of instructions, and whole products (mmaemu 0.1.0); 5,000 recorded instructions (MATLAB-tensor-core)"
            }
            Self::Blackwell => {
                "single instructions of a B200 (MMA-Sim, arXiv 2511.10909): not compared with cuBLAS, whose chains are not known"
            }
            Self::Custom(_) => "none: it is the user's",
        }
    }

    /// Checks that it can be computed.
    ///
    /// # Errors
    /// [`AccumulatorError`] for one of a user's own that is out of range.
    pub fn validate(self) -> Result<(), AccumulatorError> {
        self.accumulator().map_or(Ok(()), Accumulator::validate)
    }
}

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Custom(accumulator) => accumulator.fmt(f),
            _ => f.pad(self.name()),
        }
    }
}

/// A name that is none of [`Sums`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no accumulator; known are f32, hopper, ada and blackwell")]
pub struct ParseSumsError(String);

impl FromStr for Sums {
    type Err = ParseSumsError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut known = [Self::F32].into_iter().chain(Self::CARDS);
        known
            .find(|sums| sums.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| ParseSumsError(name.to_owned()))
    }
}
