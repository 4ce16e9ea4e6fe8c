//! Operands in FP8 on their way into products, and saved for the backward pass.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn_fp8_core::{Fp8Format, Granularity};

use crate::engine::{
    BlockCodes, CodesPrimitive, Fp8Engine, GemmOperand, Quantized, QuantizedMatrix, Scalar,
    portable,
};
use crate::report::{self, PendingOperand};

/// A quantized tensor on its way into a product.
#[derive(Clone, Debug)]
pub(crate) struct Measured<B: Backend> {
    pub(crate) quantized: Quantized<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

/// An operand kept for the backward pass.
#[derive(Clone, Debug)]
pub(crate) enum SavedOperand<B: Fp8Engine> {
    /// In FP8.
    Fp8(SavedCodes<B>),
    /// In FP8, with scales per row.
    Rows(Rows<B, CodesPrimitive<B>>),
    /// In FP8, with scales of blocks.
    Blocks(MeasuredBlocks<B>),
    /// In FP8, laid out for the native product that needs it.
    Matrix(MeasuredOperand<B>),
    /// As it came, for a product in high precision.
    High(FloatTensor<B>),
}

/// The codes of an operand.
#[derive(Clone, Debug)]
pub(crate) struct SavedCodes<B: Backend> {
    pub(crate) codes: CodesPrimitive<B>,
    pub(crate) scale: Scalar<B>,
    pub(crate) format: Fp8Format,
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Engine> Measured<B> {
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
    /// What a trace is told of it.
    pub(crate) fn pending(&self) -> PendingOperand {
        let Quantized { format, scale, .. } = &self.quantized;
        PendingOperand::per_tensor::<B>(*format, scale.clone(), self.saturated.clone())
    }

    /// The same operand with its values in another layout or shape.
    pub(crate) fn map(self, f: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>) -> Self {
        let Self { quantized, saturated } = self;
        let values = f(quantized.values);
        Self { quantized: Quantized { values, ..quantized }, saturated }
    }
}

impl<B: Fp8Engine> SavedCodes<B> {
    /// Decodes the operand, to be multiplied again.
    pub(crate) fn restore(self) -> Measured<B> {
        let Self { codes, scale, format, saturated } = self;
        let values = B::fp8_values(codes.clone());
        let quantized = Quantized { values, codes: Some(codes), scale, amax: None, format };
        Measured { quantized, saturated }
    }
}

/// A quantized matrix on its way into products.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredMatrix<B: Backend> {
    pub(crate) matrix: QuantizedMatrix<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

/// An operand of a GEMM, and how much of it saturated.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredOperand<B: Backend> {
    pub(crate) operand: GemmOperand<B>,
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Backend> MeasuredOperand<B> {
    /// What a trace is told of it: not the codes, which a trace must not hold.
    pub(crate) fn pending(&self) -> PendingOperand {
        let GemmOperand { format, scale, .. } = &self.operand;
        PendingOperand::per_tensor::<B>(*format, scale.clone(), self.saturated.clone())
    }
}

impl<B: Fp8Engine> MeasuredMatrix<B> {
    /// A tensor that has been quantized.
    pub(crate) fn new(tensor: &FloatTensor<B>, matrix: QuantizedMatrix<B>) -> Self {
        let saturated = report::is_tracing()
            .then(|| portable::count_saturated::<B>(tensor, &matrix.scale, matrix.format));
        Self { matrix, saturated }
    }
}

impl<B: Backend> MeasuredMatrix<B> {
    /// The matrix as a factor whose columns are summed over. Panics where its rows were not asked for.
    pub(crate) fn by_rows(&self) -> MeasuredOperand<B> {
        let operand = self.matrix.by_rows().expect("the rows were asked for");
        MeasuredOperand { operand, saturated: self.saturated.clone() }
    }

    /// The matrix as a factor whose rows are summed over. Panics where its transpose was not asked for.
    pub(crate) fn by_columns(&self) -> MeasuredOperand<B> {
        let operand = self.matrix.by_columns().expect("the transpose was asked for");
        MeasuredOperand { operand, saturated: self.saturated.clone() }
    }
}

/// Codes, or their values, with scales that broadcast against them.
#[derive(Clone, Debug)]
pub(crate) struct Rows<B: Fp8Engine, T> {
    pub(super) codes: T,
    /// f32, 1 along the dimension that is summed over.
    pub(crate) scales: FloatTensor<B>,
    pub(crate) format: Fp8Format,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Engine, T> Rows<B, T> {
    pub(super) fn map<U>(self, codes: impl FnOnce(T) -> U) -> Rows<B, U> {
        let Self { codes: old, scales, format, saturated } = self;
        Rows { codes: codes(old), scales, format, saturated }
    }
}

impl<B: Fp8Engine, T> Rows<B, T> {
    /// What a trace is told of it.
    pub(crate) fn pending(&self) -> PendingOperand {
        PendingOperand::per_row::<B>(self.format, self.scales.clone(), self.saturated.clone())
    }
}

/// An operand with scales of blocks.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredBlocks<B: Fp8Engine> {
    pub(super) codes: BlockCodes<B>,
    pub(super) granularity: Granularity,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(super) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Engine> MeasuredBlocks<B> {
    /// What a trace is told of it.
    pub(super) fn pending(&self) -> PendingOperand {
        let BlockCodes { scales, format, .. } = self.codes.clone();
        PendingOperand::of_scales::<B>(format, self.granularity, scales, self.saturated.clone())
    }
}
