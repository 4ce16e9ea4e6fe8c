//! Inputs that reach every special case.

use burn_fp8_kernels::Element;
use burn_fp8_test_support::Random;
pub use burn_fp8_test_support::hard::{SCALES, boundaries, every_exponent, runs as adversarial};
pub use burn_fp8_test_support::{FORMATS, OVERFLOWS, comparable};

use super::numbers_in;

/// Every f16 or bf16.
pub fn every_half(element: Element) -> Vec<f32> {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    numbers_in(&bytes, element)
}

/// Numbers with random bits.
pub fn random_bits(len: usize, seed: u64) -> Vec<f32> {
    Random(seed).floats(len)
}

/// Finite numbers of both signs, magnitudes spread over `2^-exponent..2^exponent`.
pub fn spread(len: usize, exponent: i32, seed: u64) -> Vec<f32> {
    Random(seed).magnitudes(exponent, len)
}
