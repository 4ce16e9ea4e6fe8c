//! What a scaled product is to do beside multiplying, and what it returns.

use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::{SplitK, SplitOrder};

use super::handle::Fp8Tensor;
use crate::engine::{Activation, OutputType, ScalarOf};

/// What [`scaled_matmul`](crate::scaled_matmul) makes of the product `[M, N]`: its type, what is added, a bias, an activation, the amax.
///
/// | option                | default | what cuBLASLt has, so what is accepted                                                          |
/// |-----------------------|---------|-------------------------------------------------------------------------------------------------|
/// | output                | F32     | F32, BF16, F16; E4M3; E5M2 where one operand is E5M2                                            |
/// | C `[M, N]` and beta   | none    | C of the type of the output; BF16 or F16, and that of the bias, with FP8 output                  |
/// | bias `[N]`            | none    | BF16 with F32 and BF16 output, F16 with F16 output, either of them with FP8 output              |
/// | activation            | none    | [`Activation::Relu`], [`Activation::Gelu`], with a bias or without                              |
/// | amax                  | no      | with FP8 output                                                                                 |
/// | fast accumulation     | no      | always                                                                                          |
/// | split K               | no      | never: emulated, with one scale for each line, and the sums of tensor cores                      |
///
/// A device without BF16 or F16, which is none with FP8 hardware, has no such output, and F32 stands for that type in C and a bias.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{FloatDType, Tensor};
/// use burn_fp8::{Activation, Fp8Format, ScaledMatmulOptions};
///
/// let bias = Tensor::<Flex, 1>::ones([32], &Default::default()).cast(FloatDType::BF16);
/// let options = ScaledMatmulOptions::fp8(Fp8Format::E4M3, 0.5)
///     .with_bias(bias)
///     .with_activation(Activation::Relu)
///     .with_amax();
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct ScaledMatmulOptions<B: Backend> {
    pub(super) output: OutputType<B::FloatTensorPrimitive>,
    pub(super) c: Option<(Tensor<B, 2>, f32)>,
    pub(super) bias: Option<Tensor<B, 1>>,
    pub(super) activation: Activation,
    pub(super) amax: bool,
    pub(super) fast_accumulation: bool,
    pub(super) split: Option<SplitK>,
}

/// A product in f32, with nothing applied to it.
impl<B: Backend> Default for ScaledMatmulOptions<B> {
    fn default() -> Self {
        Self::float(FloatDType::F32)
    }
}

impl<B: Backend> ScaledMatmulOptions<B> {
    /// A product rounded to F32, BF16 or F16, without bias and activation.
    pub fn float(dtype: FloatDType) -> Self {
        Self::of(OutputType::Float(dtype))
    }

    /// A product quantized to FP8 with a given scale, an `f32` or a tensor `[1]`; without bias and activation.
    ///
    /// The scale is the dequantization multiplier of the result, as everywhere here. The product is multiplied by its reciprocal `1 / scale`, one
    /// f32: this is what cuBLASLt takes as `D_SCALE` and XLA's `__cublas$lt$matmul$f8` as `d_scale`. So codes may differ by one from those of
    /// [`Fp8Tensor::quantize_with`](crate::Fp8Tensor::quantize_with), which divides, unless the scale is a power of two. Values beyond the largest number,
    /// infinities too, become that (clamping); NaN stays NaN.
    pub fn fp8(format: Fp8Format, scale: impl Into<ScalarOf<B>>) -> Self {
        Self::of(OutputType::Fp8 { format, scale: scale.into() })
    }

    fn of(output: OutputType<B::FloatTensorPrimitive>) -> Self {
        let activation = Activation::None;
        Self {
            output,
            c: None,
            bias: None,
            activation,
            amax: false,
            fast_accumulation: false,
            split: None,
        }
    }

    /// Adds `beta × c` to the product, before the bias: `fma(product of codes, scale of a × scale of b, RN(beta × c))` with the
    /// [sums](crate::Fp8Config::sums) of tensor cores. `c` is `[M, N]`, without a gradient; where `beta` is 0 it is not read, as in cuBLAS.
    pub fn with_c(self, c: Tensor<B, 2>, beta: f32) -> Self {
        Self { c: Some((c, beta)), ..self }
    }

    /// Adds a bias `[N]` to each row. It must have no gradient: take it from the model's `valid()`, or use `bias.detach().set_require_grad(false)`.
    pub fn with_bias(self, bias: Tensor<B, 1>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies an activation, after the bias.
    pub fn with_activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// Returns the largest magnitude of the result in f32, before it is scaled and rounded to FP8: what the scale of the next result is made
    /// of. NaN where there is a NaN.
    pub fn with_amax(self) -> Self {
        Self { amax: true, ..self }
    }

    /// One chain over K, as PyTorch's `use_fast_accum`: tensor cores sum with fewer bits. Emulated products do so with their [sums](crate::Fp8Config::sums), and sum in f32 otherwise.
    pub fn with_fast_accumulation(self) -> Self {
        Self { fast_accumulation: true, ..self }
    }

    /// Splits K as a recorded call of cuBLASLt did, so that its bits can be had again: with the [sums](crate::Fp8Config::sums) of tensor cores, emulated. Which products
    /// cuBLASLt splits is its own choice, of card, version and workspace.
    ///
    /// `splits` is 1 to 1,024. [`scaled_matmul`](crate::scaled_matmul) refuses another number, f32 sums, several scales along K, and
    /// [`Execution::Native`](crate::Execution::Native).
    pub fn with_split_k(self, splits: usize, order: SplitOrder) -> Self {
        Self { split: Some(SplitK { splits, order }), ..self }
    }
}

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
