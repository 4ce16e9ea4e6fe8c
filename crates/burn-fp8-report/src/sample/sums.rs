//! What the sums of tensor cores lose, apart from what rounding to FP8 does.

use core::fmt;

use burn_fp8_core::sums::{Accumulation, Accumulator, Sums};
use burn_fp8_core::{Fp8Format, GemmRole, Granularity, Recipe};
use burn_fp8_cpu::sums::{LineScales, Order, matmul};
use serde::{Deserialize, Serialize};

use super::OperandSample;
use super::product::{Coded, Panel, compare, multiply};
use crate::MatrixSqnr;
use crate::sqnr::decibels;

/// The largest number of cards whose sums are told of a product.
pub const MAX_CARDS: usize = 8;

/// The sums of a product as tensor cores form them.
///
/// The signal is the exact sum of the codes, times their scales; the error is what the hardware's sum of the very codes lacks of it. Rounding to FP8 is not in
/// it, nor that of the result.
///
/// The error grows with the number of terms. Where fewer were sampled than the product has ([`ProductStats::terms`](super::ProductStats::terms)), its error is at
/// least this.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SumStats {
    /// How the product accumulates on tensor cores: as configured, and split where its operands have several scales.
    pub accumulation: Accumulation,
    /// One for each card, at most [`MAX_CARDS`].
    pub cards: Vec<CardSums>,
}

/// The sums of one card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSums {
    /// Whose they are.
    pub sums: Sums,
    /// Those of one chain over K.
    pub fast: MatrixSqnr,
    /// Those of chains that begin anew.
    pub split: MatrixSqnr,
}

/// Measures the sums of a product with those of cards, fast and split. `None` where blocks have scales of their own, and without a card: f32 is none.
///
/// # Panics
/// Where the operands differ along the dimension that is summed over, and for an accumulator out of range.
pub fn sums(
    role: GemmRole,
    operands: [&OperandSample; 2],
    recipe: Recipe,
    accumulation: Accumulation,
    cards: &[Sums],
) -> Option<SumStats> {
    let cards = cards.iter().filter_map(|card| Some((*card, card.accumulator()?)));
    let mut cards = cards.peekable();
    cards.peek()?;
    let [lhs, rhs] = role.operands();
    let lhs = Panel::new(operands[0], role, lhs).coded(recipe)?;
    let rhs = Panel::new(operands[1], role, rhs).coded(recipe)?;
    let accumulation = match recipe.granularity() {
        Granularity::PerTensor => accumulation,
        _ => Accumulation::Split,
    };
    // Scales are the same on both sides of each error, but say how much it weighs beside those of other lines.
    let scale = |row: usize, column: usize| lhs.scales[row] * rhs.scales[column];
    let scaled = |(row, sums): (usize, Vec<f64>)| -> Vec<f64> {
        sums.into_iter().enumerate().map(|(column, sum)| sum * scale(row, column)).collect()
    };
    let all = |sums: Vec<Vec<f64>>| sums.into_iter().enumerate().map(scaled).collect::<Vec<_>>();
    let formats = operands.map(|operand| operand.format);
    let exact = all(multiply([&lhs.values, &rhs.values]));
    let measured = cards.map(|(sums, accumulator)| {
        let [fast, split] = [Accumulation::Fast, Accumulation::Split].map(|accumulation| {
            let by_card = by_card(accumulator, accumulation, [&lhs, &rhs], formats);
            compare(&exact, all(by_card)).0
        });
        CardSums { sums, fast, split }
    });
    Some(SumStats { accumulation, cards: measured.collect() })
}

/// The sums of codes alone.
fn by_card(
    accumulator: Accumulator,
    accumulation: Accumulation,
    [lhs, rhs]: [&Coded; 2],
    formats: [Fp8Format; 2],
) -> Vec<Vec<f64>> {
    let [m, n] = [lhs, rhs].map(|operand| operand.values.len());
    let k = lhs.values.first().map_or(0, Vec::len);
    let order = Order { accumulator, accumulation, split: None };
    let scales = LineScales::Whole { lhs: &[1.0], rhs: &[1.0] };
    let mut sums = vec![0.0; m * n];
    matmul(&order, [&lhs.codes, &rhs.codes], formats, [m, n, k], scales, &mut sums);
    sums.chunks(n.max(1)).map(|row| row.iter().copied().map(f64::from).collect()).collect()
}

impl SumStats {
    pub(crate) fn check(&self) -> Result<(), String> {
        let cards = &self.cards;
        if !(1..=MAX_CARDS).contains(&cards.len()) {
            return Err(format!("sums of {} cards, of 1 to {MAX_CARDS}", cards.len()));
        }
        for (place, CardSums { sums, fast, split }) in cards.iter().enumerate() {
            sums.validate().map_err(|error| error.to_string())?;
            if *sums == Sums::F32 || cards[..place].iter().any(|other| other.sums == *sums) {
                return Err(format!("sums of {}: of each card once, and f32 is none", sums.name()));
            }
            fast.check()?;
            split.check()?;
        }
        Ok(())
    }
}

impl fmt::Display for CardSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [fast, split] = [self.fast, self.split].map(|sqnr| decibels(sqnr.decibels()));
        write!(f, "{} fast {fast} / split {split}", self.sums.name())
    }
}
