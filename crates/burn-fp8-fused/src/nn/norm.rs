//! Normalization by the root of the mean square.

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::Graph;
use crate::ops::rms_norm;

/// Burn's `RmsNorm` as one operation, which keeps its input alone: the same parameters by the same names, so that its records load.
/// Burn's layer calls several operations, which no backend sees as one: a decorator cannot fuse it.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::{RmsNorm, RmsNormConfig};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_fused::nn::FusedRmsNorm;
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let norm: RmsNorm<B> = RmsNormConfig::new(64).init(&device);
/// let fused = FusedRmsNorm::from(norm); // and back: RmsNorm::from(fused)
/// let x = Tensor::random([2, 10, 64], Distribution::Default, &device);
/// assert_eq!(fused.forward::<3>(x).dims(), [2, 10, 64]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct FusedRmsNorm<B: Backend> {
    /// One factor for each element of a row.
    pub gamma: Param<Tensor<B, 1>>,
    /// Added to the mean of the squares.
    pub epsilon: f64,
}

impl<B: Graph> FusedRmsNorm<B> {
    /// From `[…, d_model]` to the same shape.
    ///
    /// # Panics
    /// Where rows are not as long as gamma, or of another type.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        rms_norm(x, self.gamma.val(), self.epsilon)
    }
}

impl<B: Backend> From<RmsNorm<B>> for FusedRmsNorm<B> {
    fn from(RmsNorm { gamma, epsilon }: RmsNorm<B>) -> Self {
        Self { gamma, epsilon }
    }
}

impl<B: Backend> From<FusedRmsNorm<B>> for RmsNorm<B> {
    fn from(FusedRmsNorm { gamma, epsilon }: FusedRmsNorm<B>) -> Self {
        Self { gamma, epsilon }
    }
}

impl<B: Backend> ModuleDisplay for FusedRmsNorm<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.shape().dims();
        content.add("d_model", &d_model).add("epsilon", &self.epsilon).optional()
    }
}
