//! The scales of a layer: those of its state.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType};
use burn_fp8_core::{Layouts, Operand};

use crate::engine::{Fp8Engine, Quantized, QuantizedCodes, QuantizedMatrix, Scalar};
use crate::ops::flax::{self, Keep};
use crate::product::scheme::{Gemms, Quantizer};

/// Quantizes the operands of one pass as Flax does, with scales that were chosen before.
pub(super) struct LayerQuantizer<'a, B: Fp8Engine> {
    /// By operand: those of this pass.
    scales: [Option<FloatTensor<B>>; 3],
    /// The type that operands are divided in.
    compute_dtype: FloatDType,
    gemms: &'a Gemms,
}

impl<'a, B: Fp8Engine> LayerQuantizer<'a, B> {
    /// Of the forward pass: input and weight.
    pub(super) fn of_operands(
        [input, weight]: [FloatTensor<B>; 2],
        dtype: DType,
        gemms: &'a Gemms,
    ) -> Self {
        Self { scales: [Some(input), Some(weight), None], compute_dtype: dtype.into(), gemms }
    }

    /// Of the backward pass.
    pub(super) fn of_output_grad(scale: FloatTensor<B>, dtype: DType, gemms: &'a Gemms) -> Self {
        Self { scales: [None, None, Some(scale)], compute_dtype: dtype.into(), gemms }
    }

    fn scale(&self, operand: Operand) -> FloatTensor<B> {
        self.scales[operand as usize].clone().expect("an operand of this pass")
    }

    /// The amax of a tensor, where the observatory asks for it.
    fn observed(&self, tensor: &FloatTensor<B>) -> Option<Scalar<B>> {
        self.gemms.tap.as_ref().map(|_| Scalar::Device(B::fp8_amax(tensor.clone())))
    }
}

impl<B: Fp8Engine> Quantizer<B> for LayerQuantizer<'_, B> {
    fn quantize(&self, tensor: &FloatTensor<B>, operand: Operand, save: bool) -> Quantized<B> {
        let format = self.gemms.recipe.formats.of(operand);
        let keep = if save { Keep::Codes } else { Keep::Values };
        let scale = self.scale(operand);
        let quantized = flax::quantize::<B>(tensor, scale, format, self.compute_dtype, keep);
        Quantized { amax: self.observed(tensor), ..quantized }
    }

    fn quantize_codes(&self, tensor: &FloatTensor<B>, operand: Operand) -> QuantizedCodes<B> {
        let format = self.gemms.recipe.formats.of(operand);
        let scale = self.scale(operand);
        let quantized = flax::quantize_codes::<B>(tensor, scale, format, self.compute_dtype);
        QuantizedCodes { amax: self.observed(tensor), ..quantized }
    }

    fn quantize_matrix(
        &self,
        tensor: &FloatTensor<B>,
        operand: Operand,
        layouts: Layouts,
    ) -> QuantizedMatrix<B> {
        let format = self.gemms.recipe.formats.of(operand);
        let (scale, dtype) = (self.scale(operand), self.compute_dtype);
        let matrix = flax::quantize_matrix::<B>(tensor, scale, format, dtype, layouts);
        QuantizedMatrix { amax: self.observed(tensor), ..matrix }
    }
}
