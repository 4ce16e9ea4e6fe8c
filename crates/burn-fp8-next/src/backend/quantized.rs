//! What quantized tensors are to the traits of Burn 0.22 and 0.23.

use burn_backend::ops::QTensorOps;
use burn_backend::tensor::FloatTensor;
use burn_backend::{BackendTypes, DType, FloatDType, Shape, TensorMetadata};

use super::Fp8Matmul;
use super::common::quantized::OnCodes;
pub(crate) use super::common::quantized::{Fp8QTensor, QCodes};
pub(crate) use crate::words::*;

impl<B: BackendTypes> TensorMetadata for Fp8QTensor<B> {
    type Device = B::Device;

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

    fn device(&self) -> B::Device {
        match self {
            Self::Fp8(codes) => codes.device.clone(),
            Self::Other(tensor) => tensor.device(),
        }
    }

    fn can_mut(&self) -> bool {
        match self {
            Self::Fp8(_) => false,
            Self::Other(tensor) => tensor.can_mut(),
        }
    }
}

/// The numbers. (Burn's `linear` multiplies by a quantized weight as it is, but where gradients are asked for.)
pub(crate) fn dequantize<B: Fp8Matmul>(tensor: Fp8QTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    OnCodes::<B>::dequantize(tensor, dtype)
}

pub(crate) fn q_device<B: BackendTypes>(tensor: &Fp8QTensor<B>) -> B::Device {
    tensor.device()
}
