//! FP8 codes as a backend holds them.

use burn_backend::{Shape, TensorMetadata};

/// FP8 codes as a backend holds them.
#[derive(Clone, Debug)]
pub enum Codes<F, I> {
    /// One byte an element, in whatever layout the backend has.
    Bytes(I),
    /// Four codes in an i32, the first in its lowest byte, row by row; the last may have bytes to spare. With the shape of the tensor.
    Packed(I, Shape),
    /// The same for tensor cores: rows and columns of each matrix padded with zeros to multiples of [`PADDING`](burn_fp8_core::PADDING),
    /// `[…, R', C' / 4]`. With `[…, R, C]`.
    Padded(I, Shape),
    /// The numbers that the codes stand for, f32, where the backend holds no bytes.
    Values(F),
}

impl<F, I> Codes<F, I> {
    /// The same codes, their tensor handed through `float` or `int`.
    pub fn map<G, J, X>(
        self,
        context: &mut X,
        float: impl Fn(&mut X, F) -> G,
        int: impl Fn(&mut X, I) -> J,
    ) -> Codes<G, J> {
        match self {
            Self::Bytes(codes) => Codes::Bytes(int(context, codes)),
            Self::Packed(words, shape) => Codes::Packed(int(context, words), shape),
            Self::Padded(words, shape) => Codes::Padded(int(context, words), shape),
            Self::Values(values) => Codes::Values(float(context, values)),
        }
    }
}

impl<F: TensorMetadata, I: TensorMetadata> Codes<F, I> {
    /// The shape of the tensor.
    pub fn shape(&self) -> Shape {
        match self {
            Self::Bytes(codes) => codes.shape(),
            Self::Packed(_, shape) | Self::Padded(_, shape) => shape.clone(),
            Self::Values(values) => values.shape(),
        }
    }

    /// How many bytes the codes take.
    pub fn bytes_held(&self) -> usize {
        let (shape, dtype) = match self {
            Self::Bytes(codes) | Self::Packed(codes, _) | Self::Padded(codes, _) => {
                (codes.shape(), codes.dtype())
            }
            Self::Values(values) => (values.shape(), values.dtype()),
        };
        shape.num_elements() * dtype.size()
    }
}
