//! Products in FP8 on a backend: quantized once, multiplied, with a backward step of their own where gradients are tracked.

use burn_backend::{Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::ProductKind;

use super::frozen::{self, FrozenOptions};
use super::gemms;
use super::operand::SavedOperand;
use super::plan::Product;
use crate::engine::{Fp8Engine, Graph, Leaf, MatrixOf, ScalarOf, Step, values, without_graph};

/// The right operand of a product of this kind, as a parameter that outlives the step, if it is one in the graph.
pub(crate) fn weight<B: Graph>(kind: ProductKind, rhs: &FloatTensor<B>) -> Option<Leaf> {
    match kind {
        ProductKind::Linear => B::leaf(rhs),
        // Data may stand on the right, too.
        ProductKind::Matmul if B::is_tracked(rhs) => B::leaf(rhs),
        _ => None,
    }
}

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]` in FP8, or any left operand and a matrix, plus a bias `[N]`. The result has the type of `lhs`.
pub(super) fn multiply<B: Graph>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    mut product: Product,
) -> FloatTensor<B> {
    let shapes = [lhs.shape(), rhs.shape()];
    // An operand is needed only for the gradient of the other one.
    let save = [B::is_tracked(&rhs), B::is_tracked(&lhs)];
    if save.contains(&true) {
        let kind = product.gemms.kind;
        product.take_site(weight::<B>(kind, &rhs), B::parameter(&rhs));
    }
    let run = || {
        let [x, y] = values::<B, 2>([&lhs, &rhs]);
        let bias = bias.clone().map(B::value);
        let gemms::Forward { output, saved: operands, amaxes } =
            gemms::forward::<B::Inner>(x, y, bias, &product, save);
        product.enter::<B::Inner>(&amaxes);
        (output, Saved { operands, amaxes, shapes, product })
    };
    match &bias {
        Some(bias) => B::record([&lhs, &rhs, bias], run),
        None => B::record([&lhs, &rhs], run),
    }
}

/// `x` `[M, K]`, f32, f16 or bf16, not empty, times a frozen weight `[K, N]` in FP8, plus a bias `[N]`: `[M, N]`, all of the type of `x`. Gradients reach `x` and the bias.
pub(super) fn frozen<B: Graph>(
    x: FloatTensor<B>,
    weight: MatrixOf<B>,
    bias: Option<FloatTensor<B>>,
    options: &FrozenOptions,
) -> FloatTensor<B> {
    let run = || {
        let (weight, bias) = (without_graph::<B>(weight), bias.clone().map(B::value));
        let x = B::value(x.clone());
        (frozen::multiply::<B::Inner>(x, weight.clone(), bias, options), FrozenWeight(weight))
    };
    match &bias {
        Some(bias) => B::record([&x, bias], run),
        None => B::record([&x], run),
    }
}

/// What the backward step of a product takes: straight through the quantization of its operands.
#[derive(Clone, Debug)]
struct Saved<B: Fp8Engine> {
    operands: [Option<SavedOperand<B>>; 2],
    amaxes: [Option<ScalarOf<B>>; 2],
    shapes: [Shape; 2],
    product: Product,
}

/// `N` operands: the two factors, and a bias where there is one.
impl<B: Fp8Engine, const N: usize> Step<B, N> for Saved<B> {
    fn backward(self, grad: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N] {
        let Self { operands, amaxes: [lhs, rhs], shapes, product } = self;
        let wants_bias = wanted.get(2) == Some(&true);
        let bias = wants_bias.then(|| B::linear_bias_backward(grad.clone()));
        let gemms::Gradients { operands, amax } =
            gemms::backward::<B>(grad, operands, shapes, &product);
        product.deposit::<B>([lhs, rhs, amax]);
        let mut gradients = operands.into_iter().chain([bias]);
        [(); N].map(|()| gradients.next().flatten())
    }
}

/// Straight through the quantization of the input; the weight has no gradient.
#[derive(Clone, Debug)]
struct FrozenWeight<B: Fp8Engine>(MatrixOf<B>);

impl<B: Fp8Engine, const N: usize> Step<B, N> for FrozenWeight<B> {
    fn backward(self, grad: FloatTensor<B>, wanted: [bool; N]) -> [Option<FloatTensor<B>>; N] {
        let wants_bias = wanted.get(1) == Some(&true);
        let bias = wants_bias.then(|| B::linear_bias_backward(grad.clone()));
        let mut gradients = [Some(frozen::x_backward::<B>(grad, self.0)), bias].into_iter();
        [(); N].map(|()| gradients.next().flatten())
    }
}
