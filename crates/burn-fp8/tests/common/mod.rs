//! What the test programs share.
#![allow(
    dead_code,
    missing_docs,
    unused_imports,
    unused_macros,
    reason = "each test program uses a part of it"
)]

pub mod blocks;
pub mod delayed;
pub mod exact;
pub mod files;
pub mod frozen;
pub mod fused;
pub mod golden;
pub mod learner;
pub mod models;
pub mod observatory;
pub mod products;
pub mod published;
pub mod reference;
pub mod scaled_blocks;
pub mod special;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

// What most tests use.
pub use burn::backend::{Autodiff, Flex};
pub use burn::module::{AutodiffModule, Module, Param};
pub use burn::nn::{Linear, LinearConfig};
pub use burn::optim::{
    AdamConfig, AdamWConfig, GradientsAccumulator, GradientsParams, Optimizer, SgdConfig,
};
pub use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
pub use burn::tensor::backend::{AutodiffBackend, Backend};
pub use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};
pub use burn_fp8::Fp8Format::{self, E4M3, E5M2};
pub use burn_fp8::nn::{
    ActivationScale, DotMode, Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig, FrozenLinear,
};
pub use burn_fp8::optim::Fp8Optimizer;
pub use burn_fp8::report::{HighPrecision, Implementation};
pub use burn_fp8::{
    Activation, Capability, DelayedState, Execution, Filter, Formats, Fp8Backend, Fp8Config,
    Fp8Error, Fp8Matmul, Fp8Tensor, GemmRole, Granularity, Precision, ProductKind, Recipe, Report,
    ScaleRounding, ScaledMatmulOptions, high_precision, scaled_matmul, trace,
};
pub use burn_fp8_train::policy::Policy;
pub use exact::{Exact, Sums, exact_step, exact_step_under, sqnr};
pub use golden::Golden;

use burn_fp8::engine::Fp8Engine;

/// The documented order of decorators.
pub type Outer<B> = Fp8Backend<Autodiff<B>>;
/// The other order.
pub type Inner<B> = Autodiff<Fp8Backend<B>>;

/// Makes a test of each check, a function that is generic over the backend, in a module for the backend.
macro_rules! tests_on {
    ($(#[$of:meta])* $module:ident: $backend:ty, [$($check:ident),* $(,)?]) => {
        $(#[$of])*
        mod $module {
            $(
                #[test]
                fn $check() {
                    super::$check::<$backend>();
                }
            )*
        }
    };
    ($(#[$of:meta])* $module:ident: $backend:ty, [$($check:ident),* $(,)?], needs $device:literal) => {
        $(#[$of])*
        mod $module {
            $(
                #[test]
                #[ignore = $device]
                fn $check() {
                    super::$check::<$backend>();
                }
            )*
        }
    };
}

/// Makes a test of each check on Flex, and on NdArray where that is there.
macro_rules! tests_on_cpu {
    ($checks:tt) => {
        crate::common::tests_on!(flex: burn::backend::Flex, $checks);
        crate::common::tests_on!(#[cfg(feature = "ndarray")] ndarray: burn::backend::NdArray, $checks);
    };
}
pub(crate) use {tests_on, tests_on_cpu};

/// Takes every product, whatever its size.
pub fn every_matmul() -> Fp8Config {
    Fp8Config::default().with_filter(Filter::every_matmul())
}

/// What runs the FP8 products of a backend on this machine: a matrix unit of the CPU, or emulation.
pub fn implementation<B: Fp8Engine>() -> Implementation {
    match B::fp8_capability(&Default::default(), None) {
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

/// The same numbers in f64.
pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A bias in bf16, where the backend has that.
pub fn bias<B: Backend>(values: &[f32]) -> Tensor<B, 1> {
    let bias = tensor(values, [values.len()]);
    match B::supports_dtype(&Default::default(), DType::BF16) {
        true => bias.cast(FloatDType::BF16),
        false => bias,
    }
}

/// What a backend has of bf16 and f16.
pub fn half_types<B: Backend>() -> Vec<FloatDType> {
    let mut types = vec![FloatDType::BF16, FloatDType::F16];
    types.retain(|dtype| B::supports_dtype(&Default::default(), DType::from(*dtype)));
    types
}

/// Numbers of widely different magnitudes, the same for each seed.
pub fn random<B: Backend, const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<B, D> {
    tensor(&Random(seed).spread(shape.iter().product()), shape)
}

pub fn ones<B: Backend, const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    Tensor::ones(shape, &Default::default())
}

/// The gradient of a tensor that has one.
#[track_caller]
pub fn grad<B: AutodiffBackend, const D: usize>(
    of: &Tensor<B, D>,
    grads: &B::Gradients,
) -> Vec<f32> {
    values(of.grad(grads).expect("tracked"))
}

/// Why products of a report are in high precision.
pub fn reasons(report: &Report) -> Vec<HighPrecision> {
    report.high_precision().map(|(_, reason)| reason).collect()
}

/// `x · w`, and the gradients of `x` and `w` for the gradient `g` of the product.
pub fn step<B: AutodiffBackend, const D: usize>(
    [x, w, g]: [Tensor<B, D>; 3],
) -> [Tensor<B::InnerBackend, D>; 3] {
    let (x, w) = (x.require_grad(), w.require_grad());
    let y = x.clone().matmul(w.clone());
    // The gradient of sum(y · g) with respect to y is g, exactly.
    let grads = (y.clone() * g).sum().backward();
    [y.inner(), x.grad(&grads).expect("tracked"), w.grad(&grads).expect("tracked")]
}

/// The same of matrices given as numbers: `x` `[m, k]`, `w` `[k, n]`, `g` `[m, n]`.
pub fn matrix_step<B: AutodiffBackend>(
    [x, w, g]: [&[f32]; 3],
    [m, k, n]: [usize; 3],
) -> [Vec<f32>; 3] {
    step::<B, 2>([tensor(x, [m, k]), tensor(w, [k, n]), tensor(g, [m, n])]).map(values)
}

/// Input, weight, bias and output gradient of a linear layer with `m` rows.
pub fn linear_data(seed: u64, [m, k, n]: [usize; 3]) -> [Vec<f32>; 4] {
    let mut random = Random(seed);
    [m * k, k * n, n, m * n].map(|count| random.spread(count))
}

/// Output of a linear layer on an input of any rank, whose last dimension is not looked at, and the gradients of input, weight and bias.
pub fn linear_step<B: AutodiffBackend, const D: usize>(
    [x, w, b, g]: &[Vec<f32>; 4],
    lead: [usize; D],
) -> [Vec<f32>; 4] {
    let [n, k] = [b.len(), w.len() / b.len()];
    let of = |last| std::array::from_fn(|d| if d == D - 1 { last } else { lead[d] });
    let x = tensor::<B, D>(x, of(k)).require_grad();
    let layer = linear(tensor::<B, 2>(w, [k, n]), Some(tensor(b, [n])));
    let y = layer.forward(x.clone());
    let grads = (y.clone() * tensor(g, of(n))).sum().backward();
    let bias = layer.bias.expect("with bias").val();
    [values(y), grad(&x, &grads), grad(&layer.weight.val(), &grads), grad(&bias, &grads)]
}

pub fn linear<B: Backend>(weight: Tensor<B, 2>, bias: Option<Tensor<B, 1>>) -> Linear<B> {
    Linear { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
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

/// Asserts that what is said has all these parts.
#[track_caller]
pub fn says<const N: usize>(said: impl Display, parts: [&str; N]) {
    let said = said.to_string();
    for part in parts {
        assert!(said.contains(part), "not {part:?}: {said}");
    }
}

/// Asserts that a result is an error that has all these parts.
#[track_caller]
pub fn refused<T, E: Display, const N: usize>(result: Result<T, E>, parts: [&str; N]) {
    match result {
        Ok(_) => panic!("not refused: {parts:?}"),
        Err(error) => says(error, parts),
    }
}

/// Asserts that a panic must happen that has all these parts.
#[track_caller]
pub fn panics<R, const N: usize>(f: impl FnOnce() -> R, parts: [&str; N]) {
    says(panic_of(f), parts);
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

/// Runs a test in a process of its own: what belongs to the process (defaults, the unit in use, Flex's random numbers) is the test's alone.
pub fn alone(test: impl FnOnce()) {
    alone_with(&[], test);
}

/// The same, with these variables in its environment.
pub fn alone_with(variables: &[(&str, &str)], test: impl FnOnce()) {
    const ALONE: &str = "BURN_FP8_TEST_ALONE";
    let thread = std::thread::current();
    let name = thread.name().expect("libtest names its threads after the tests");
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return test();
    }
    let mut again = Command::new(std::env::current_exe().expect("a test is a program"));
    again.args(["--exact", name, "--nocapture"]).env(ALONE, name);
    let output = again.envs(variables.iter().copied()).output().expect("a test starts itself");
    let [said, failed] = [output.stdout, output.stderr].map(String::from_utf8);
    let (said, failed) = (said.expect("UTF-8"), failed.expect("UTF-8"));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{failed}");
    print!("{said}");
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

    pub fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Values of widely different magnitudes: uniform, times 2^-12..2^4.
    pub fn spread(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit() * 2f32.powi((self.bits() % 17) as i32 - 12)).collect()
    }
}
