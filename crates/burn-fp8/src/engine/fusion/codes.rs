//! Codes in a stream: the tensor that they are in, and what is known of them without it.

use burn::tensor::Shape;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;
use burn_fusion::{Fusion, FusionBackend};
use burn_ir::TensorIr;

use super::op::Handles;
use crate::engine::codes::CodesPrimitive;

/// Codes without their tensor.
#[derive(Clone, Debug)]
pub(super) enum Form {
    Bytes(Fp8Format),
    Packed(Shape, Fp8Format),
    Values,
}

impl Form {
    /// The codes without their tensor, which is an int tensor unless they are values.
    pub(super) fn split<B: FusionBackend>(
        codes: CodesPrimitive<Fusion<B>>,
    ) -> (Self, FloatTensor<Fusion<B>>) {
        match codes {
            CodesPrimitive::Bytes(codes, format) => (Self::Bytes(format), codes),
            CodesPrimitive::Packed(words, shape, format) => (Self::Packed(shape, format), words),
            CodesPrimitive::Values(values) => (Self::Values, values),
        }
    }

    /// The codes with their tensor, taken out of the stream's.
    pub(super) fn join<B: FusionBackend>(
        self,
        tensor: &TensorIr,
        handles: &mut Handles<B::FusionRuntime>,
    ) -> CodesPrimitive<B> {
        match self {
            Self::Bytes(format) => {
                CodesPrimitive::Bytes(handles.get_int_tensor::<B>(tensor), format)
            }
            Self::Packed(shape, format) => {
                CodesPrimitive::Packed(handles.get_int_tensor::<B>(tensor), shape, format)
            }
            Self::Values => CodesPrimitive::Values(handles.get_float_tensor::<B>(tensor)),
        }
    }
}
