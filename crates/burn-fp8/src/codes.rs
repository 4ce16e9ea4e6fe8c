//! Tensors of FP8 codes.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_fp8_core::{Fp8Format, Overflow};

use crate::Scalar;
use crate::matmul::{Codes, Fp8Matmul, Quantize, ScaleRule};

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

    /// A tensor of the numbers that `codes` stand for, one byte each, row by row.
    ///
    /// # Panics
    /// Where there are not as many bytes as the shape has elements.
    pub fn from_bytes(
        codes: &[u8],
        shape: [usize; D],
        format: Fp8Format,
        device: &B::Device,
    ) -> Self {
        let values: Vec<f32> = codes.iter().map(|code| format.decode(*code)).collect();
        let values =
            Tensor::<B, D>::from_data(TensorData::new(values, shape), (device, DType::F32));
        let scale = ScaleRule::Given(Scalar::Host(1.0), Overflow::NonSaturating);
        let request = Quantize { format, scale, save: true };
        let quantized = B::fp8_quantize(values.into_primitive().tensor(), request);
        Self::new(quantized.codes.expect("the codes were asked for"), format)
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
