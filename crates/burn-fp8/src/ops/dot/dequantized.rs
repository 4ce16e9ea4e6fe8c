//! Operands dequantized before they are multiplied: [`DotMode::QuantizeDequantize`](crate::ops::DotMode::QuantizeDequantize).

use burn::tensor::DType;
use burn::tensor::ops::FloatTensor;

use crate::engine::{Fp8Engine, Quantized, Scalar};
use crate::ops::flax;
use crate::product::Multiply;

pub(super) struct Dequantized;

impl<B: Fp8Engine> Multiply<B> for Dequantized {
    fn multiply(factors: [Quantized<B>; 2], dtype: DType) -> FloatTensor<B> {
        let [lhs, rhs] = factors.map(|operand| dequantize::<B>(operand, dtype));
        B::fp8_matmul_values(lhs, rhs)
    }
}

/// The operand in the type of the product, then in f32.
fn dequantize<B: Fp8Engine>(operand: Quantized<B>, dtype: DType) -> FloatTensor<B> {
    let Quantized { values, scale, .. } = operand;
    if dtype == DType::F32 {
        // The same product, in place where the backend can.
        return B::fp8_rescale(values, &scale, &Scalar::Host(1.0));
    }
    let scale = scale.on_device(&B::float_device(&values));
    flax::cast::<B>(flax::dequantize::<B>(values, scale, dtype), DType::F32)
}
