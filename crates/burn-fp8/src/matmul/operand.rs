//! Tensors in FP8, on their way into a product and saved for the backward pass.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn_fp8_core::{Fp8Format, Recipe};

use super::Fp8Matmul;
use crate::Scale;

/// What to quantize a tensor to, and what to keep of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantize {
    /// The format of the codes.
    pub format: Fp8Format,
    /// How the scale is chosen.
    pub recipe: Recipe,
    /// Whether the codes will be needed again, in the backward pass.
    pub save: bool,
}

/// A quantized tensor, ready to be multiplied.
#[derive(Clone, Debug)]
pub struct Quantized<B: Backend> {
    /// The values of the codes, without their scale: f32, of the shape of the tensor.
    pub values: FloatTensor<B>,
    /// The codes, where they were asked for.
    pub codes: Option<Codes<B>>,
    /// The scale: `x ≈ values × scale`.
    pub scale: Scale<B>,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// FP8 codes as a backend holds them.
#[derive(Clone, Debug)]
pub enum Codes<B: Backend> {
    /// One byte an element.
    Bytes(IntTensor<B>, Fp8Format),
    /// The values of the codes, where the backend cannot hold bytes.
    Values(FloatTensor<B>),
}

/// An operand kept for the backward pass.
#[derive(Clone, Debug)]
pub struct SavedOperand<B: Backend> {
    /// Its codes.
    pub codes: Codes<B>,
    /// Their scale.
    pub scale: Scale<B>,
    /// Their format.
    pub format: Fp8Format,
}

impl<B: Fp8Matmul> Quantized<B> {
    /// Takes the codes out, to be kept.
    pub(crate) fn save(&mut self) -> Option<SavedOperand<B>> {
        let codes = self.codes.take()?;
        Some(SavedOperand { codes, scale: self.scale.clone(), format: self.format })
    }
}

impl<B: Fp8Matmul> SavedOperand<B> {
    /// Decodes the operand, to be multiplied again.
    pub(crate) fn restore(self) -> Quantized<B> {
        let Self { codes, scale, format } = self;
        Quantized { values: B::fp8_values(codes), codes: None, scale, format }
    }
}
