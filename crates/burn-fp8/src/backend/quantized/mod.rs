//! Burn's quantized tensors, where they hold FP8.
//!
//! A [`QuantScheme`] whose values are E4M3 or E5M2 gets the codes and scales of this crate, whatever the configuration says: Burn 0.21 on Flex rounds such values
//! to integers, and NdArray refuses them. Tensors of other schemes are those of the backend inside, and go to it.
//!
//! `scheme` reads what a scheme says. `make` quantizes, and reads and writes data. `view` moves codes and scales. `ops` is what Burn's traits ask for: what it
//! does not do itself are Burn's defaults, which dequantize.

mod make;
mod ops;
mod scheme;
mod view;

use core::fmt;

use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::{IntTensor, QuantizedTensor};
use burn_backend::{
    Backend, BackendTypes, DType, QTensorPrimitive, Shape, TensorMetadata, TensorPrimitive,
};

use super::{Fp8Backend, Fp8Matmul};
use crate::engine::MatrixOf;
use crate::product::Held;

pub(crate) use make::{from_matrix, into_matrix};
pub(super) use ops::{
    OnCodes, dequantize, q_cat, q_device, q_from_data, q_from_inner, q_inner, q_into_data,
    q_is_require_grad, q_matmul, quantize, quantize_dynamic, tr_execute,
};

/// A quantized tensor of [`Fp8Backend<B>`].
pub enum Fp8QTensor<B: BackendTypes> {
    /// Of a scheme whose values are E4M3 or E5M2.
    Fp8(QCodes<B>),
    /// Of another one.
    Other(B::QuantizedTensorPrimitive),
}

/// Codes of FP8 and their scales, of a tensor of any rank.
pub struct QCodes<B: BackendTypes> {
    shape: Shape,
    scheme: QuantScheme,
    /// `[…, R, C]`; of one dimension, `[1, C]`.
    held: Held<B>,
}

impl<B: BackendTypes> Clone for Fp8QTensor<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Fp8(codes) => Self::Fp8(codes.clone()),
            Self::Other(tensor) => Self::Other(tensor.clone()),
        }
    }
}

impl<B: BackendTypes> Clone for QCodes<B> {
    fn clone(&self) -> Self {
        Self { shape: self.shape.clone(), scheme: self.scheme, held: self.held.clone() }
    }
}

impl<B: BackendTypes> fmt::Debug for Fp8QTensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8(codes) => codes.fmt(f),
            Self::Other(tensor) => tensor.fmt(f),
        }
    }
}

impl<B: BackendTypes> fmt::Debug for QCodes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, scheme, held } = self;
        let mut shown = f.debug_struct("QCodes");
        shown.field("shape", shape).field("scheme", scheme).field("held", held).finish()
    }
}

impl<B: Backend> QCodes<B> {
    /// The codes as they lie.
    fn matrix(&self) -> MatrixOf<B> {
        self.held.get()
    }
}

impl<B: BackendTypes> TensorMetadata for Fp8QTensor<B> {
    fn dtype(&self) -> DType {
        match self {
            Self::Fp8(codes) => DType::QFloat(codes.scheme),
            Self::Other(tensor) => tensor.dtype(),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Fp8(codes) => codes.shape.clone(),
            Self::Other(tensor) => tensor.shape(),
        }
    }
}

impl<B: BackendTypes> QTensorPrimitive for Fp8QTensor<B> {
    fn scheme(&self) -> &QuantScheme {
        match self {
            Self::Fp8(codes) => &codes.scheme,
            Self::Other(tensor) => tensor.scheme(),
        }
    }

    fn default_scheme() -> QuantScheme {
        B::QuantizedTensorPrimitive::default_scheme()
    }
}

/// Whether a tensor holds FP8.
pub(super) fn is_fp8<B: BackendTypes>(tensor: &Fp8QTensor<B>) -> bool {
    matches!(tensor, Fp8QTensor::Fp8(_))
}

/// A tensor that does not, as the backend inside has it.
pub(super) fn other<B: BackendTypes>(tensor: Fp8QTensor<B>) -> B::QuantizedTensorPrimitive {
    match tensor {
        Fp8QTensor::Other(tensor) => tensor,
        Fp8QTensor::Fp8(_) => unreachable!("FP8 has operations of its own"),
    }
}

/// What the backend inside gives, as the decorator has it.
pub(super) trait Own<Target> {
    fn own(self) -> Target;
}

impl<B: BackendTypes> Own<Fp8QTensor<B>> for QuantizedTensor<B> {
    fn own(self) -> Fp8QTensor<B> {
        Fp8QTensor::Other(self)
    }
}

impl<B: BackendTypes> Own<(Fp8QTensor<B>, IntTensor<B>)> for (QuantizedTensor<B>, IntTensor<B>) {
    fn own(self) -> (Fp8QTensor<B>, IntTensor<B>) {
        (Fp8QTensor::Other(self.0), self.1)
    }
}

impl<B: Fp8Matmul> Own<TensorPrimitive<Fp8Backend<B>>> for TensorPrimitive<B> {
    fn own(self) -> TensorPrimitive<Fp8Backend<B>> {
        match self {
            Self::Float(tensor) => TensorPrimitive::Float(tensor),
            Self::QFloat(tensor) => TensorPrimitive::QFloat(Fp8QTensor::Other(tensor)),
        }
    }
}
