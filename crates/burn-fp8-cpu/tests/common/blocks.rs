//! Operands whose blocks are multiplied by powers of two, and what they stand for.

use burn_fp8_cpu::{Codes, Powers};

use super::Operand;
use super::reference::Reference;

/// An operand whose blocks have powers.
pub struct Blocks {
    pub operand: Operand,
    pub block: [usize; 2],
    exponents: Vec<i16>,
    /// Those of the transpose.
    transposed: Vec<i16>,
}

impl Blocks {
    pub fn new(operand: Operand, block: [usize; 2], mut exponent: impl FnMut() -> i16) -> Self {
        let [down, across] = [0, 1].map(|i| operand.shape[i].div_ceil(block[i]));
        let exponents: Vec<_> = (0..down * across).map(|_| exponent()).collect();
        let place = |i: usize| i % down * across + i / down;
        let transposed = (0..down * across).map(|i| exponents[place(i)]).collect();
        Self { operand, block, exponents, transposed }
    }

    /// The operand as it is multiplied: powers are given to the matrix or to its transpose.
    pub fn views(&self) -> [Codes<'_>; 2] {
        let [height, width] = self.block;
        let here = Powers { exponents: &self.exponents, block: self.block };
        let there = Powers { exponents: &self.transposed, block: [width, height] };
        let view = self.operand.view();
        [view.with_powers(here), view.transpose().with_powers(there).transpose()]
    }

    /// What the elements stand for, row by row.
    pub fn numbers(&self) -> Vec<f64> {
        let ([height, width], columns) = (self.block, self.operand.shape[1]);
        let across = columns.div_ceil(width);
        let power = |index: usize| {
            let block = index / columns / height * across + index % columns / width;
            2f64.powi(self.exponents[block].into())
        };
        let numbers = self.operand.numbers(0);
        numbers.iter().enumerate().map(|(index, x)| x * power(index)).collect()
    }
}

pub fn reference(lhs: &Blocks, rhs: &Blocks) -> Reference {
    let ([m, k], n) = (lhs.operand.shape, rhs.operand.shape[1]);
    Reference::of_numbers(&lhs.numbers(), &rhs.numbers(), [m, n, k])
}
