//! What a scaled product returns.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use super::tensor::Fp8Tensor;

/// What [`scaled_matmul`](crate::scaled_matmul) returns.
#[derive(Clone, Debug)]
pub struct ScaledOutput<B: Backend> {
    /// The result `[M, N]`.
    pub d: ScaledMatrix<B>,
    /// Its largest magnitude before output scale and rounding, f32 `[1]`, on the device; where it was
    /// [asked for](crate::ScaledMatmulOptions::with_amax).
    pub amax: Option<Tensor<B, 1>>,
}

/// The result of a scaled product, of the type that was asked for.
#[derive(Clone, Debug)]
pub enum ScaledMatrix<B: Backend> {
    /// In F32, BF16 or F16.
    Float(Tensor<B, 2>),
    /// In FP8, with the scale that was given.
    Fp8(Fp8Tensor<B, 2>),
}

impl<B: Backend> ScaledOutput<B> {
    /// The result as a float tensor.
    ///
    /// # Panics
    /// Where the output is FP8.
    #[track_caller]
    pub fn into_float(self) -> Tensor<B, 2> {
        match self.d {
            ScaledMatrix::Float(tensor) => tensor,
            ScaledMatrix::Fp8(tensor) => {
                panic!("the output is {}, not float: use into_fp8()", tensor.format())
            }
        }
    }

    /// The result as an FP8 tensor.
    ///
    /// # Panics
    /// Where the output is not FP8.
    #[track_caller]
    pub fn into_fp8(self) -> Fp8Tensor<B, 2> {
        match self.d {
            ScaledMatrix::Fp8(tensor) => tensor,
            ScaledMatrix::Float(tensor) => {
                panic!("the output is {:?}, not FP8: use into_float()", tensor.dtype())
            }
        }
    }
}
