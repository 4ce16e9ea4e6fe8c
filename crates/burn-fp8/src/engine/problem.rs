//! A product for tensor cores without its tensors: all that decides whether there is an algorithm for it.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, TensorMetadata};
use burn_fp8_core::Fp8Format;

use super::matrix::{GemmOperand, GemmOptions};
use super::scaled::{Activation, OutputType, ScaledOperand, ScaledRequest};

/// A product `[M, K] · [N, K]ᵀ` on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeProblem {
    /// M, N and K, without padding.
    pub shape: [usize; 3],
    /// The formats of both operands.
    pub formats: [Fp8Format; 2],
    /// The type of the result.
    pub output: NativeOutput,
    /// The type of the bias, where there is one.
    pub bias: Option<DType>,
    /// What is applied after the bias.
    pub activation: Activation,
    /// Whether the amax of the result is wanted.
    pub amax: bool,
    /// Whether tensor cores may sum with fewer bits.
    pub fast_accumulation: bool,
}

/// The type of the result of a product on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeOutput {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8, scaled.
    Fp8(Fp8Format),
}

impl NativeProblem {
    /// A GEMM of codes, with nothing but scales.
    pub(crate) fn of_gemm<B: Backend>(
        [lhs, rhs]: [&GemmOperand<B>; 2],
        options: &GemmOptions,
    ) -> Self {
        Self {
            shape: [lhs.rows, rhs.rows, options.k],
            formats: [lhs.format, rhs.format],
            output: NativeOutput::Float(options.dtype.into()),
            bias: None,
            activation: Activation::None,
            amax: false,
            fast_accumulation: options.fast_accumulation,
        }
    }

    /// A scaled product with its epilogue.
    pub(crate) fn of_scaled<B: Backend>(
        [a, b_t]: [&ScaledOperand<B>; 2],
        request: &ScaledRequest<B>,
    ) -> Self {
        let ([m, k], [n, _]) = (a.codes.shape().dims(), b_t.codes.shape().dims());
        Self {
            shape: [m, n, k],
            formats: [a.format, b_t.format],
            output: match &request.output {
                OutputType::Float(dtype) => NativeOutput::Float(*dtype),
                OutputType::Fp8 { format, .. } => NativeOutput::Fp8(*format),
            },
            bias: request.bias.as_ref().map(TensorMetadata::dtype),
            activation: request.activation,
            amax: request.amax,
            fast_accumulation: request.fast_accumulation,
        }
    }
}
