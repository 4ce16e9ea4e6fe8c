//! FP8 codes as a backend holds them.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData, TensorMetadata};
use burn_fp8_core::{Fp8Format, Overflow, slice};

use super::tensor::read;

/// FP8 codes as a backend holds them.
#[derive(Clone, Debug)]
pub enum CodesPrimitive<B: Backend> {
    /// One byte an element.
    Bytes(IntTensor<B>, Fp8Format),
    /// Four codes in an i32, the first in its lowest byte, row by row; the last may have bytes to spare. With the shape of the
    /// tensor.
    Packed(IntTensor<B>, Shape, Fp8Format),
    /// The values of the codes, where the backend cannot hold bytes.
    Values(FloatTensor<B>),
}

impl<B: Backend> CodesPrimitive<B> {
    /// As small as the device can hold them.
    pub(crate) fn from_bytes(
        bytes: Vec<u8>,
        shape: Shape,
        format: Fp8Format,
        device: &B::Device,
    ) -> Self {
        if B::supports_dtype(device, DType::U8) {
            let codes = B::int_from_data(TensorData::new(bytes, shape), device);
            Self::Bytes(codes, format)
        } else if B::supports_dtype(device, DType::I32) {
            Self::pack(&bytes, shape, format, device)
        } else {
            let mut values = vec![0.0; bytes.len()];
            slice::decode(&bytes, 1.0, format, &mut values);
            Self::Values(B::float_from_data(TensorData::new(values, shape), device))
        }
    }

    /// Four codes to an i32, the first in its lowest byte.
    pub(crate) fn pack(bytes: &[u8], shape: Shape, format: Fp8Format, device: &B::Device) -> Self {
        let word = |codes: &[u8]| {
            let mut bytes = [0; 4];
            bytes[..codes.len()].copy_from_slice(codes);
            i32::from_le_bytes(bytes)
        };
        let mut words: Vec<_> = bytes.chunks(4).map(word).collect();
        if words.is_empty() {
            // Not every backend has tensors without elements.
            words.push(0);
        }
        let len = words.len();
        Self::Packed(B::int_from_data(TensorData::new(words, [len]), device), shape, format)
    }

    pub(crate) fn shape(&self) -> Shape {
        match self {
            Self::Bytes(codes, _) => codes.shape(),
            Self::Packed(_, shape, _) => shape.clone(),
            Self::Values(values) => values.shape(),
        }
    }

    pub(crate) fn device(&self) -> B::Device {
        match self {
            Self::Bytes(codes, _) | Self::Packed(codes, ..) => B::int_device(codes),
            Self::Values(values) => B::float_device(values),
        }
    }

    /// The same codes, row by row in memory. A transpose may be a view.
    pub(crate) fn contiguous(self) -> Self {
        // Flat tensors are no views; Burn has no operation for it.
        let flat = Shape::new([self.shape().num_elements()]);
        match self {
            Self::Bytes(codes, format) => {
                let shape = codes.shape();
                Self::Bytes(B::int_reshape(B::int_reshape(codes, flat), shape), format)
            }
            Self::Values(values) => {
                let shape = values.shape();
                Self::Values(B::float_reshape(B::float_reshape(values, flat), shape))
            }
            packed @ Self::Packed(..) => packed,
        }
    }

    pub(crate) fn moved_to(self, device: &B::Device) -> Self {
        match self {
            Self::Bytes(codes, format) => Self::Bytes(B::int_to_device(codes, device), format),
            Self::Packed(words, shape, format) => {
                Self::Packed(B::int_to_device(words, device), shape, format)
            }
            Self::Values(values) => Self::Values(B::float_to_device(values, device)),
        }
    }

    pub(crate) fn bytes_held(&self) -> usize {
        let (shape, dtype) = match self {
            Self::Bytes(codes, _) | Self::Packed(codes, ..) => (codes.shape(), codes.dtype()),
            Self::Values(values) => (values.shape(), values.dtype()),
        };
        shape.num_elements() * dtype.size()
    }

    pub(crate) fn into_bytes(self, format: Fp8Format) -> Vec<u8> {
        match self {
            Self::Bytes(codes, _) => read_codes::<B>(codes).to_vec().expect("codes are u8"),
            Self::Packed(words, shape, _) => {
                let words: Vec<i32> =
                    read_codes::<B>(words).to_vec().expect("packed codes are i32");
                let mut bytes: Vec<_> = words.into_iter().flat_map(i32::to_le_bytes).collect();
                bytes.truncate(shape.num_elements());
                bytes
            }
            Self::Values(values) => {
                let values = read::<B>(values);
                let encode = |value: f32| format.encode(value, Overflow::NonSaturating);
                values.into_iter().map(encode).collect()
            }
        }
    }
}

fn read_codes<B: Backend>(codes: IntTensor<B>) -> TensorData {
    burn::tensor::try_read_sync(B::int_into_data(codes))
        .expect("codes are read where blocking on the device is possible")
        .expect("codes can be read from their device")
}
