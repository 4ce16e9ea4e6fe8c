//! An accumulator of hardware, as a row of numbers.

use core::fmt;

use serde::{Deserialize, Serialize};

/// How a matrix unit adds the products of FP8 codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accumulator {
    /// Products that are added at once, with the running sum or without: 1 to 64.
    pub products: u32,
    /// Bits that are kept of each term below the largest exponent of a block: 1 to 30.
    pub fraction: u32,
    /// Fraction bits that are kept of a sum: 1 to 23, those of f32.
    pub result: u32,
    /// How the running sum joins a block.
    pub running: RunningSum,
    /// After how many of K [`Split`](super::Accumulation::Split) accumulation begins a new chain; [`u32::MAX`] is never.
    pub chain: u32,
}

/// How the running sum joins a block of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunningSum {
    /// As a term among the products: its exponent counts, and it is cut like them.
    Early,
    /// After the products are added and cut, by an addition in f32.
    Late,
}

/// An accumulator that cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an accumulator with {name} = {value}: it takes {least} to {most}")]
pub struct AccumulatorError {
    name: &'static str,
    value: u32,
    least: u32,
    most: u32,
}

impl Accumulator {
    /// cuBLAS on Hopper: blocks of 32 (`wgmma`, compared with an H100 PCIe by mmaemu and with recorded instructions of an H100), 13 bits of each term and of the sum. `mma.sync`
    /// of the same card is another unit.
    pub const HOPPER: Self = Self { products: 32, ..Self::ADA };

    /// cuBLAS on Ada: blocks of 16 (`mma.sync`, compared with an RTX 4060 by mmaemu and with recorded instructions of an Ada card), 13 bits of each term and of the sum.
    pub const ADA: Self =
        Self { products: 16, fraction: 13, result: 13, running: RunningSum::Early, chain: 128 };

    /// `tcgen05.mma` of Blackwell: blocks of 32, 25 bits of each term, an f32 that is cut (MMA-Sim, on a B200). One chain, split or not: what begins anew on
    /// Hopper and Ada stays in tensor memory there. Not compared with cuBLAS.
    pub const BLACKWELL: Self =
        Self { products: 32, fraction: 25, result: 23, chain: u32::MAX, ..Self::ADA };

    /// Checks that the numbers are in range.
    ///
    /// # Errors
    /// [`AccumulatorError`] with the first one that is not.
    pub fn validate(self) -> Result<(), AccumulatorError> {
        let Self { products, fraction, result, running: _, chain } = self;
        let fields = [
            ("products", products, [1, 64]),
            ("fraction", fraction, [1, 30]),
            ("result", result, [1, 23]),
            ("chain", chain, [1, u32::MAX]),
        ];
        let wrong =
            fields.into_iter().find(|(_, value, [least, most])| !(least..=most).contains(&value));
        match wrong {
            Some((name, value, [least, most])) => {
                Err(AccumulatorError { name, value, least, most })
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for Accumulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { products, fraction, result, running, chain } = self;
        let running = match running {
            RunningSum::Early => "early",
            RunningSum::Late => "late",
        };
        write!(
            f,
            "{products} products, {fraction} fraction bits, {result} of the sum, {running}, chains of {chain}"
        )
    }
}
