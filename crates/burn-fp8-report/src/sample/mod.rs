//! What is measured on sampled tensors.

mod matrix;
mod operand;
mod product;
mod sums;

pub use matrix::{Lines, MatrixSample, sizes, spread};
pub use operand::{OperandSample, OperandStats};
pub use product::{Alternative, MAX_SIDE, Prediction, ProductStats, lines_of, product};
pub use sums::{CardSums, MAX_CARDS, SumStats, sums};
