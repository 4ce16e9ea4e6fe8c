//! What a backward step keeps of a tensor: itself, or its codes.

use burn_backend::{DType, FloatDType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Fp8Format, Recipe, Saved};

use crate::engine::tensor::{cast, reshape};
use crate::engine::{Fp8Engine, MatrixOf, Request, ScaleRule, Wanted};

/// Elements of a row that share a scale: as in COAT (H. Xi et al., 2025).
const GROUP: usize = 128;

/// A tensor of the forward pass.
#[derive(Clone, Debug)]
pub(super) enum Kept<B: Fp8Engine> {
    Whole(FloatTensor<B>),
    /// In E4M3, the rows of a matrix in groups.
    Codes {
        matrix: MatrixOf<B>,
        shape: Shape,
        dtype: FloatDType,
    },
}

impl<B: Fp8Engine> Kept<B> {
    /// Keeps a tensor so, where the backend is on the host and it is no f64; else as it is.
    pub(super) fn new(tensor: FloatTensor<B>, saved: Saved) -> Self {
        let (shape, dtype) = (tensor.shape(), tensor.dtype());
        let is_whole = saved == Saved::Whole || !B::FP8_ON_HOST || dtype == DType::F64;
        if is_whole || shape.num_elements() == 0 {
            return Self::Whole(tensor);
        }
        let width = shape.last().copied().unwrap_or(1);
        let rows = reshape::<B>(tensor, Shape::new([shape.num_elements() / width, width]));
        let request = Request {
            format: Fp8Format::E4M3,
            block: [1, GROUP],
            rule: ScaleRule::Current(Recipe::current()),
            wanted: Wanted::Codes,
        };
        Self::Codes { matrix: B::fp8_quantize(rows, request), shape, dtype: dtype.into() }
    }

    /// The tensor, or what its codes stand for.
    pub(super) fn restore(self) -> FloatTensor<B> {
        match self {
            Self::Whole(tensor) => tensor,
            Self::Codes { matrix, shape, dtype } => {
                cast::<B>(reshape::<B>(B::fp8_dequantize(matrix), shape), dtype)
            }
        }
    }
}
