//! Layers whose products run in FP8.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;

use crate::ops;

/// An [`nn::Linear`](Linear) whose three products run in FP8 where the configuration says so. Its fields have the names of `Linear`'s, so that
/// records of either load into the other.
#[derive(Module, Debug)]
pub struct Fp8Linear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Fp8Linear {
    /// `[…, inputs]` to `[…, outputs]`.
    ///
    /// # Panics
    /// Where the input does not fit, and on devices other than Flex.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        ops::linear(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

impl From<Linear> for Fp8Linear {
    fn from(Linear { weight, bias, .. }: Linear) -> Self {
        Self { weight, bias }
    }
}
