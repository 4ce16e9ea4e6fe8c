//! A product for tensor cores without its tensors: all that decides whether there is an algorithm for it.

use burn_backend::{Backend, DType, FloatDType, Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, Operand, Recipe};

use super::matrix::{MatrixOf, Scales, WHOLE};
use super::product::{Activation, EpilogueOf, OutputType};
use super::scalar::Scalar;

/// A product `[M, K] · [K, N]` on tensor cores, or a batch of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// M, N and K, without padding.
    pub shape: [usize; 3],
    /// How many products there are.
    pub batch: usize,
    /// The formats of both operands.
    pub formats: [Fp8Format; 2],
    /// The type of the result.
    pub output: ProblemOutput,
    /// The type of C, where one is added.
    pub added: Option<DType>,
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
    /// The elements that share a scale in both operands, where they have several: across what is summed, and along it.
    pub blocks: Option<[[usize; 2]; 2]>,
}

/// The product of both scales, where the host knows it and it is a normal number: then it travels with the call.
pub fn host_factor<F>(scales: [&Scalar<F>; 2]) -> Option<f32> {
    match scales {
        [Scalar::Host(a), Scalar::Host(b)] => Some(a * b).filter(|factor| factor.is_normal()),
        _ => None,
    }
}

/// The type of the result of a product on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemOutput {
    /// F32, BF16 or F16.
    Float(FloatDType),
    /// FP8, scaled.
    Fp8(Fp8Format),
}

/// The elements that share a scale in the left and in the right operand of a product over K, given as rows and columns: across what is summed, and
/// along it, [`usize::MAX`] where that is all of it. None where both have one scale.
pub fn blocks_of([lhs, rhs]: [[usize; 2]; 2], k: usize) -> Option<[[usize; 2]; 2]> {
    let blocks = [lhs, [rhs[1], rhs[0]]];
    let along = |[across, along]: [usize; 2]| match along >= k && !matches!(along, 32 | 128) {
        true => [across, usize::MAX],
        false => [across, along],
    };
    (blocks != [WHOLE; 2]).then(|| blocks.map(along))
}

/// The shape `[…, M, N]` of a product of tensors of these shapes, whose leading dimensions broadcast.
pub fn shape_of([lhs, rhs]: [Shape; 2]) -> Shape {
    let mut shape = lhs;
    let last = shape.num_dims() - 1;
    for dim in 0..last - 1 {
        if shape[dim] == 1 {
            shape[dim] = rhs[dim];
        }
    }
    shape[last] = rhs[last];
    shape
}

impl Problem {
    /// The product `lhs` `[…, M, K]` times `rhs` `[…, K, N]`, of one rank, whose leading dimensions broadcast.
    pub fn new<B: Backend>(
        [lhs, rhs]: [&MatrixOf<B>; 2],
        epilogue: &EpilogueOf<B>,
        fast_accumulation: bool,
    ) -> Self {
        let shape = shape_of([lhs.shape(), rhs.shape()]);
        let last = shape.num_dims() - 1;
        let [m, k, n] = [shape[last - 1], lhs.shape()[last], shape[last]];
        let factor = match (&lhs.scales, &rhs.scales) {
            (Scales::One(a), Scales::One(b)) => host_factor([a, b]),
            _ => None,
        };
        Self {
            shape: [m, n, k],
            batch: shape[..last - 1].iter().product(),
            formats: [lhs.format, rhs.format],
            output: match &epilogue.output {
                OutputType::Float(dtype) => ProblemOutput::Float(*dtype),
                OutputType::Fp8 { format, .. } => ProblemOutput::Fp8(*format),
            },
            added: epilogue.added.as_ref().map(|added| added.c.dtype()),
            bias: epilogue.bias.as_ref().map(TensorMetadata::dtype),
            activation: epilogue.activation,
            amax: epilogue.amax,
            fast_accumulation,
            host_factor: factor.is_some(),
            blocks: blocks_of([lhs.scales.block(), rhs.scales.block()], k),
        }
    }

    /// A product of one block by one, to ask whether there are any of a recipe with several scales.
    pub fn of_recipe(recipe: &Recipe) -> Self {
        let operands = [Operand::Input, Operand::Weight];
        let block = |operand| {
            let block = recipe.granularity().block(operand);
            [block.across, block.along]
        };
        Self {
            shape: [128; 3],
            batch: 1,
            formats: operands.map(|operand| recipe.formats.of(operand)),
            output: ProblemOutput::Float(FloatDType::BF16),
            added: None,
            bias: None,
            activation: Activation::None,
            amax: false,
            fast_accumulation: false,
            host_factor: false,
            blocks: Some(operands.map(block)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::host_factor;
    use crate::engine::Scalar;

    #[test]
    fn scales_travel_as_one_factor_where_their_product_is_normal() {
        let factor = |a, b| host_factor::<()>([&Scalar::Host(a), &Scalar::Host(b)]);
        assert_eq!(factor(0.5, 0.25), Some(0.125));
        assert_eq!(factor(2f32.powi(-100), 2f32.powi(90)), Some(2f32.powi(-10)));
        assert_eq!(factor(2f32.powi(-63), 2f32.powi(-63)), Some(f32::MIN_POSITIVE));
        assert_eq!(factor(2f32.powi(-63), 2f32.powi(-64)), None);
        assert_eq!(factor(2f32.powi(64), 2f32.powi(64)), None);
    }
}
