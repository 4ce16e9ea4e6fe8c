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
pub mod files;
pub mod frozen;
pub mod fused;
pub mod golden;
pub mod learner;
pub mod models;
pub mod observatory;
pub mod products;
pub mod published;
pub mod quantized;
pub mod special;
pub mod sums;

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
pub use burn_fp8::burn_fp8_core::Operand;
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
pub use burn_fp8_test_support::fp8::{self, Along};
pub use burn_fp8_test_support::{
    Exact, Float, Golden, Random, Sums, alone, assert_close, assert_relative, assert_same, bits,
    hard, panic_of, panics, refused, says, sqnr, transpose, wide, with_variable,
};
pub use burn_fp8_train::policy::Policy;
pub use golden::{Tensors, golden};

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

/// What the default device of a backend is able to do.
pub fn capability<B: Fp8Engine>() -> Capability {
    B::fp8_capability(&Default::default(), None)
}

/// What runs the FP8 products of a backend on this machine: a matrix unit of the CPU, or emulation.
pub fn implementation<B: Fp8Engine>() -> Implementation {
    match capability::<B>() {
        Capability::MatrixUnit(unit) => Implementation::MatrixUnit(unit.name),
        Capability::FakeQuantized { .. } => Implementation::FakeQuantized,
        native => panic!("{native}: the trace names an algorithm"),
    }
}

/// Whether products of a backend run on a matrix unit of the CPU.
pub fn has_unit<B: Fp8Engine>() -> bool {
    matches!(capability::<B>(), Capability::MatrixUnit(_))
}

pub fn tensor<B: Backend, const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &Default::default())
}

pub fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().to_vec().expect("converted to f32")
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
    data: &[Vec<f32>; 4],
    lead: [usize; D],
) -> [Vec<f32>; 4] {
    linear_step_in::<B, D>(FloatDType::F32, data, lead)
}

/// The same in a type.
pub fn linear_step_in<B: AutodiffBackend, const D: usize>(
    dtype: FloatDType,
    [x, w, b, g]: &[Vec<f32>; 4],
    lead: [usize; D],
) -> [Vec<f32>; 4] {
    let [n, k] = [b.len(), w.len() / b.len()];
    let of = |last| std::array::from_fn(|d| if d == D - 1 { last } else { lead[d] });
    let x = tensor::<B, D>(x, of(k)).cast(dtype).require_grad();
    let bias = tensor(b, [n]).cast(dtype);
    let layer = linear(tensor::<B, 2>(w, [k, n]).cast(dtype), Some(bias));
    let y = layer.forward(x.clone());
    let grads = (y.clone() * tensor(g, of(n)).cast(dtype)).sum().backward();
    let bias = layer.bias.expect("with bias").val();
    [values(y), grad(&x, &grads), grad(&layer.weight.val(), &grads), grad(&bias, &grads)]
}

pub fn linear<B: Backend>(weight: Tensor<B, 2>, bias: Option<Tensor<B, 1>>) -> Linear<B> {
    Linear { weight: Param::from_tensor(weight), bias: bias.map(Param::from_tensor) }
}

/// The type of floats, as the references of tests call it.
pub fn float(dtype: FloatDType) -> Float {
    match dtype {
        FloatDType::F32 => Float::F32,
        FloatDType::F16 => Float::F16,
        FloatDType::BF16 => Float::Bf16,
        other => panic!("no rounding to {other:?} in these tests"),
    }
}

/// Output and gradients of a product of what operands hold under a recipe: blocks lie along what each product sums.
pub fn exact_step_under(
    recipe: Recipe,
    [x, w, g]: [&[f32]; 3],
    [m, k, n]: [usize; 3],
) -> [Exact; 3] {
    use Along::{Columns, Rows};
    let x = |along| fp8::held(x, k, Operand::Input, along, recipe);
    let w = |along| fp8::held(w, n, Operand::Weight, along, recipe);
    let g = |along| fp8::held(g, n, Operand::OutputGrad, along, recipe);
    [
        Exact::product(&x(Rows), &w(Columns), [m, k, n]),
        Exact::product(&g(Rows), &transpose(&w(Rows), [k, n]), [m, n, k]),
        Exact::product(&transpose(&x(Columns), [m, k]), &g(Columns), [k, m, n]),
    ]
}
