//! A product of given codes with its epilogue: what a backend is asked for, and what it answers.

use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::codes::CodesPrimitive;
use super::launch::{LaunchNote, Otherwise};
use super::scalar::Scalar;

/// An operand: a matrix of codes, row by row, whose rows lie along K.
///
/// A backend with strided tensors may hold [`CodesPrimitive::Bytes`] and [`CodesPrimitive::Values`] as a view in another layout.
#[derive(Clone, Debug)]
pub struct ScaledOperand<B: Backend> {
    /// The codes.
    pub codes: CodesPrimitive<B>,
    /// Their format.
    pub format: Fp8Format,
    /// Their scale.
    pub scale: Scalar<B>,
}

/// What is to be made of a product. [`scaled_matmul`](crate::scaled_matmul) has checked it.
#[derive(Clone, Debug)]
pub struct ScaledRequest<B: Backend> {
    /// The type of the result.
    pub output: OutputType<B>,
    /// A bias `[N]`: BF16 or F16 as cuBLASLt wants it, or F32 where the device has not got that. Not tracked.
    pub bias: Option<FloatTensor<B>>,
    /// What is applied after the bias.
    pub activation: Activation,
    /// Whether the amax is wanted. Only with FP8 output.
    pub amax: bool,
    /// Whether tensor cores may sum with fewer bits.
    pub fast_accumulation: bool,
    /// What becomes of it where there is no algorithm on tensor cores.
    pub otherwise: Otherwise,
    /// Where it leaves what ran it, if anybody wants to know.
    pub note: Option<LaunchNote>,
}

/// The type of the result of a product.
#[derive(Clone, Debug)]
pub enum OutputType<B: Backend> {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8.
    Fp8 {
        /// The format.
        format: Fp8Format,
        /// The dequantization multiplier of the result: its reciprocal is cuBLASLt's `D_SCALE`.
        scale: Scalar<B>,
    },
}

/// A product, as asked for.
#[derive(Clone, Debug)]
pub struct ScaledProduct<B: Backend> {
    /// The result `[M, N]`.
    pub values: ScaledValues<B>,
    /// Its amax before output scale and rounding, f32 `[1]`, where it was asked for.
    pub amax: Option<FloatTensor<B>>,
}

/// The result of a product.
#[derive(Clone, Debug)]
pub enum ScaledValues<B: Backend> {
    /// Of the type that was asked for.
    Float(FloatTensor<B>),
    /// Codes, row by row.
    Codes(CodesPrimitive<B>),
}

/// What is applied to each element after the bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`: the approximation of cuBLASLt and of JAX's `gelu(approximate=True)`, not the error
    /// function that [`burn::tensor::activation::gelu`] has.
    Gelu,
}
