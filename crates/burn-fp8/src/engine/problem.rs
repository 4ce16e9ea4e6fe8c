//! A product for tensor cores without its tensors: all that decides whether there is an algorithm for it.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, TensorMetadata};
use burn_fp8_core::{Fp8Format, Operand, Recipe};

use super::blocks::BlockCodes;
use super::matrix::{GemmOperand, GemmOptions};
use super::scalar::Scalar;
use super::scaled::{Activation, OutputType, ScaledOperand, ScaledRequest};

/// A product `[M, K] · [N, K]ᵀ` on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NativeProblem {
    /// M, N and K, without padding.
    pub shape: [usize; 3],
    /// The formats of both operands.
    pub formats: [Fp8Format; 2],
    /// The type of the result.
    pub output: NativeOutput,
    /// The type of the bias, where there is one.
    pub bias: Option<DType>,
    /// What is applied after the bias.
    pub activation: Activation,
    /// Whether the amax of the result is wanted.
    pub amax: bool,
    /// Whether tensor cores may sum with fewer bits.
    pub fast_accumulation: bool,
    /// Whether the product is multiplied by one factor instead of two scales on the device: the host knows both.
    pub host_factor: bool,
    /// The blocks of both operands that have a scale each, where they have several: their rows, and their elements along K.
    pub blocks: Option<[[usize; 2]; 2]>,
}

/// The product of both scales, where the host knows it and it is a normal number: then it travels with the call.
pub(crate) fn host_factor<B: Backend>(scales: [&Scalar<B>; 2]) -> Option<f32> {
    match scales {
        [Scalar::Host(a), Scalar::Host(b)] => Some(a * b).filter(|factor| factor.is_normal()),
        _ => None,
    }
}

/// The type of the result of a product on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NativeOutput {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8, scaled.
    Fp8(Fp8Format),
}

impl NativeProblem {
    /// A product with one scale on the device for each operand, and nothing else.
    const fn plain(shape: [usize; 3], formats: [Fp8Format; 2], output: FloatDType) -> Self {
        Self {
            shape,
            formats,
            output: NativeOutput::Float(output),
            bias: None,
            activation: Activation::None,
            amax: false,
            fast_accumulation: false,
            host_factor: false,
            blocks: None,
        }
    }

    /// A GEMM of codes, with nothing but scales.
    pub(crate) fn of_gemm<B: Backend>(
        [lhs, rhs]: [&GemmOperand<B>; 2],
        options: &GemmOptions,
    ) -> Self {
        let shape = [lhs.rows, rhs.rows, options.k];
        Self {
            fast_accumulation: options.fast_accumulation,
            host_factor: host_factor([&lhs.scale, &rhs.scale]).is_some(),
            ..Self::plain(shape, [lhs.format, rhs.format], options.dtype.into())
        }
    }

    /// A GEMM of codes with scales of blocks, `[M, K]` and `[N, K]`.
    pub(crate) fn of_blocks<B: Backend>(
        [lhs, rhs]: [&BlockCodes<B>; 2],
        options: &GemmOptions,
    ) -> Self {
        let [[m, k], [n, _]] = [lhs, rhs].map(|operand| operand.codes.shape().dims());
        Self {
            fast_accumulation: options.fast_accumulation,
            blocks: Some([lhs.block, rhs.block]),
            ..Self::plain([m, n, k], [lhs.format, rhs.format], options.dtype.into())
        }
    }

    /// A product of one block by one, to ask whether there are any of a recipe with scales of blocks.
    pub(crate) fn of_recipe(recipe: &Recipe) -> Self {
        let operands = [Operand::Input, Operand::Weight];
        let block = |operand| {
            let block = recipe.granularity().block(operand).expect("a recipe with blocks");
            [block.across, block.along]
        };
        let formats = operands.map(|operand| recipe.formats.of(operand));
        Self {
            fast_accumulation: true,
            blocks: Some(operands.map(block)),
            ..Self::plain([128; 3], formats, FloatDType::BF16)
        }
    }

    /// A scaled product with its epilogue.
    pub(crate) fn of_scaled<B: Backend>(
        [a, b_t]: [&ScaledOperand<B>; 2],
        request: &ScaledRequest<B>,
    ) -> Self {
        let ([m, k], [n, _]) = (a.codes.shape().dims(), b_t.codes.shape().dims());
        Self {
            shape: [m, n, k],
            formats: [a.format, b_t.format],
            output: match &request.output {
                OutputType::Float(dtype) => NativeOutput::Float(*dtype),
                OutputType::Fp8 { format, .. } => NativeOutput::Fp8(*format),
            },
            bias: request.bias.as_ref().map(TensorMetadata::dtype),
            activation: request.activation,
            amax: request.amax,
            fast_accumulation: request.fast_accumulation,
            host_factor: host_factor([&a.scale, &b_t.scale]).is_some(),
            blocks: None,
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;

    use super::host_factor;
    use crate::engine::Scalar;

    #[test]
    fn scales_travel_as_one_factor_where_their_product_is_normal() {
        let factor = |a, b| host_factor::<Flex>([&Scalar::Host(a), &Scalar::Host(b)]);
        assert_eq!(factor(0.5, 0.25), Some(0.125));
        assert_eq!(factor(2f32.powi(-100), 2f32.powi(90)), Some(2f32.powi(-10)));
        assert_eq!(factor(2f32.powi(-63), 2f32.powi(-63)), Some(f32::MIN_POSITIVE));
        assert_eq!(factor(2f32.powi(-63), 2f32.powi(-64)), None);
        assert_eq!(factor(2f32.powi(64), 2f32.powi(64)), None);
    }
}
