//! Tensors of FP8 codes.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_fp8_core::Fp8Format;

use crate::matmul::{Codes, Fp8Matmul};

/// A tensor of FP8 numbers, without a scale, held as its backend can.
#[derive(Clone, Debug)]
pub struct Fp8Codes<B: Backend, const D: usize> {
    codes: Codes<B>,
    format: Fp8Format,
}

impl<B: Fp8Matmul, const D: usize> Fp8Codes<B, D> {
    pub(crate) fn new(codes: Codes<B>, format: Fp8Format) -> Self {
        Self { codes, format }
    }

    /// The format.
    pub fn format(&self) -> Fp8Format {
        self.format
    }

    /// The numbers, in f32. A constant of the graph.
    pub fn values(&self) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(B::fp8_values(self.codes.clone())))
    }

    /// The codes, row by row, one byte each. Waits for the device.
    pub fn to_bytes(&self) -> Vec<u8> {
        let values = self.values().into_data().to_vec::<f32>().expect("the values are f32");
        let encode =
            |value: &f32| self.format.encode(*value, burn_fp8_core::Overflow::NonSaturating);
        values.iter().map(encode).collect()
    }
}
