//! What the test files share.
#![allow(dead_code, missing_docs, unused_imports, reason = "each test file uses a part of it")]

pub mod blocks;
pub mod delayed;
pub mod exact;
pub mod frozen;
pub mod fused;
pub mod golden;
pub mod learner;
pub mod models;
pub mod observatory;
pub mod published;
pub mod reference;
pub mod rowwise;
pub mod scaled_blocks;
pub mod special;

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::Autodiff;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use burn_fp8::engine::Fp8Engine;
use burn_fp8::report::Implementation;
use burn_fp8::{Capability, Filter, Fp8Backend, Fp8Config};

/// The documented order of decorators.
pub type Outer<B> = Fp8Backend<Autodiff<B>>;
/// The other order.
pub type Inner<B> = Autodiff<Fp8Backend<B>>;

/// Takes every product, whatever its size.
pub fn every_matmul() -> Fp8Config {
    Fp8Config::default().with_filter(Filter::every_matmul())
}

/// What runs the FP8 products of a backend on this machine: a matrix unit of the CPU, or emulation.
pub fn implementation<B: Fp8Engine>() -> Implementation {
    match B::fp8_capability(&Default::default()) {
        Capability::MatrixUnit(unit) => Implementation::MatrixUnit(unit.name),
        Capability::FakeQuantized { .. } => Implementation::FakeQuantized,
        native => panic!("{native}: the trace names an algorithm"),
    }
}

pub fn tensor<B: Backend, const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Default::default())
}

pub fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().to_vec().expect("converted to f32")
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that values agree to `tolerance` times the largest finite magnitude expected: how the golden files are to be compared, and
/// what suits numbers of one size. What is not finite is the same, element by element. See [`exact::Exact`] for products of anything
/// else.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let finite = expected.iter().filter(|value| value.is_finite());
    let largest = finite.fold(0f32, |max, value| max.max(value.abs()));
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let near = match e.is_finite() {
            true => (a - e).abs() <= tolerance * largest,
            false => a == e || (a.is_nan() && e.is_nan()),
        };
        assert!(near, "{what}[{index}]: {a:e} instead of {e:e}, of at most {largest:e}");
    }
}

/// Asserts that each value agrees with its own expectation to `tolerance` times that.
#[track_caller]
pub fn assert_relative(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert_close(&[*a], &[*e], tolerance, &format!("{what}[{index}]"));
    }
}

/// The message of a panic that must happen.
#[track_caller]
pub fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { panic!("it did not panic") };
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast::<&str>().expect("a message").to_string(),
    }
}

/// A small deterministic generator (splitmix64), so that test data are the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Values of widely different magnitudes: uniform, times 2^-12..2^4.
    pub fn spread(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit() * 2f32.powi((self.bits() % 17) as i32 - 12)).collect()
    }
}
