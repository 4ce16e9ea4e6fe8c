//! Tensors in FP8, on their way into a product and saved for the backward pass.

use burn::tensor::Shape;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn_fp8_core::{Fp8Format, Overflow, Recipe};

use super::matrix::MeasuredOperand;
use super::{Fp8Matmul, Rows, portable};
use crate::{Scalar, report};

/// What to quantize a tensor to, and what to keep of it.
#[derive(Clone, Debug)]
pub struct Quantize<B: Backend> {
    /// The format of the codes.
    pub format: Fp8Format,
    /// How the scale is chosen.
    pub scale: ScaleRule<B>,
    /// Whether the codes will be needed again, in the backward pass.
    pub save: bool,
}

/// How the scale of a tensor is chosen.
#[derive(Clone, Debug)]
pub enum ScaleRule<B: Backend> {
    /// From the amax of the tensor. Finite values saturate, the others stay visible: [`Overflow::SaturateFinite`].
    Current(Recipe),
    /// From this amax, of earlier steps; from that of the tensor where it is 0. Overflow as for `Current`.
    Delayed(Scalar<B>, Recipe),
    /// This scale, positive and finite, and this treatment of overflow.
    Given(Scalar<B>, Overflow),
}

/// A quantized tensor, ready to be multiplied.
#[derive(Clone, Debug)]
pub struct Quantized<B: Backend> {
    /// The values of the codes, without their scale: f32, of the shape of the tensor.
    pub values: FloatTensor<B>,
    /// The codes, where they were asked for.
    pub codes: Option<Codes<B>>,
    /// The scale: `x ≈ values × scale`.
    pub scale: Scalar<B>,
    /// The largest finite magnitude of the tensor, 0 if there are none; not where the scale was given.
    pub amax: Option<Scalar<B>>,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// FP8 codes as a backend holds them.
#[derive(Clone, Debug)]
pub enum Codes<B: Backend> {
    /// One byte an element.
    Bytes(IntTensor<B>, Fp8Format),
    /// Four codes in an i32, the first in its lowest byte, row by row; the last may have bytes to spare. With the shape of the
    /// tensor.
    Packed(IntTensor<B>, Shape, Fp8Format),
    /// The values of the codes, where the backend cannot hold bytes.
    Values(FloatTensor<B>),
}

/// A quantized tensor on its way into a product.
#[derive(Clone, Debug)]
pub(crate) struct Measured<B: Backend> {
    pub(crate) quantized: Quantized<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

/// An operand kept for the backward pass.
#[derive(Clone, Debug)]
pub(crate) enum SavedOperand<B: Fp8Matmul> {
    /// In FP8.
    Fp8(SavedCodes<B>),
    /// In FP8, with scales per row.
    Rows(Rows<B, Codes<B>>),
    /// In FP8, laid out for the native product that needs it.
    Matrix(MeasuredOperand<B>),
    /// As it came, for a product in high precision.
    High(FloatTensor<B>),
}

/// The codes of an operand.
#[derive(Clone, Debug)]
pub(crate) struct SavedCodes<B: Backend> {
    pub(crate) codes: Codes<B>,
    pub(crate) scale: Scalar<B>,
    pub(crate) format: Fp8Format,
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Matmul> Measured<B> {
    pub(crate) fn quantize(tensor: &FloatTensor<B>, request: Quantize<B>) -> Self {
        Self::new(tensor, B::fp8_quantize(tensor.clone(), request))
    }

    /// A tensor that has been quantized.
    pub(crate) fn new(tensor: &FloatTensor<B>, quantized: Quantized<B>) -> Self {
        let saturated = report::is_tracing()
            .then(|| portable::count_saturated::<B>(tensor, &quantized.scale, quantized.format));
        Self { quantized, saturated }
    }

    /// The codes, to be kept, where they were asked for.
    pub(crate) fn codes(&self) -> Option<SavedCodes<B>> {
        Some(SavedCodes {
            codes: self.quantized.codes.clone()?,
            scale: self.quantized.scale.clone(),
            format: self.quantized.format,
            saturated: self.saturated.clone(),
        })
    }
}

impl<B: Backend> Measured<B> {
    /// The same operand with its values in another layout or shape.
    pub(crate) fn map(self, f: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>) -> Self {
        let Self { quantized, saturated } = self;
        let values = f(quantized.values);
        Self { quantized: Quantized { values, ..quantized }, saturated }
    }
}

impl<B: Fp8Matmul> SavedCodes<B> {
    /// Decodes the operand, to be multiplied again.
    pub(crate) fn restore(self, amax: Option<Scalar<B>>) -> Measured<B> {
        let Self { codes, scale, format, saturated } = self;
        let values = B::fp8_values(codes.clone());
        let quantized = Quantized { values, codes: Some(codes), scale, amax, format };
        Measured { quantized, saturated }
    }
}
