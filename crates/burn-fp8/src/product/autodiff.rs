//! Products of `Fp8Backend<Autodiff<B>>`: quantized once, multiplied on `B`, with backward steps of their own.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, TensorMetadata};

use super::gemms;
use super::operand::SavedOperand;
use super::ops::Fp8Products;
use super::plan::Product;
use crate::engine::tensor::add_bias;
use crate::engine::{Fp8Engine, ScalarOf};

impl<B: Fp8Engine, C: CheckpointStrategy> Fp8Products for Autodiff<B, C> {
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        tensors.iter().any(|tensor| tensor.is_tracked())
    }

    fn fp8_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        tracked::<B, C, 2>(lhs, rhs, [], product)
    }

    fn fp8_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        product: Product,
    ) -> FloatTensor<Self> {
        match bias {
            Some(bias) => tracked::<B, C, 3>(x, weight, [bias], product),
            None => tracked::<B, C, 2>(x, weight, [], product),
        }
    }

    // Burn's Autodiff has no second derivative of a linear layer; the panic is Burn's own.
    fn fp8_linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        _product: Product,
    ) -> FloatTensor<Self> {
        <Self as burn::tensor::ops::ModuleOps<Self>>::linear_x_backward(weight, output_grad)
    }

    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        _product: Product,
    ) -> FloatTensor<Self> {
        <Self as burn::tensor::ops::ModuleOps<Self>>::linear_weight_backward(x, output_grad)
    }
}

/// The backward step of a product: straight through the quantization of its operands.
///
/// Holds the operands as codes, not as nodes of the graph: a gradient checkpoint never runs the quantization again.
#[derive(Debug)]
struct Fp8Step;

#[derive(Clone, Debug)]
struct Saved<B: Fp8Engine> {
    operands: [Option<SavedOperand<B>>; 2],
    amaxes: [Option<ScalarOf<B>>; 2],
    shapes: [Shape; 2],
    product: Product,
}

/// `N` parents: the two operands, and a bias where there is one.
impl<B: Fp8Engine, const N: usize> Backward<B, N> for Fp8Step {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let Saved { operands, amaxes, shapes, product } = ops.state;
        let output_grad = grads.consume::<B>(&ops.node);
        let [lhs, rhs, bias] = [0, 1, 2].map(|parent| ops.parents.get(parent).cloned().flatten());
        let bias_grad = bias.map(|node| (node, B::linear_bias_backward(output_grad.clone())));
        let [lhs_amax, rhs_amax] = amaxes;
        let gemms::Gradients { operands: [grad_lhs, grad_rhs], amax } =
            gemms::backward::<B>(output_grad, operands, shapes, &product, &product.gemms);
        product.deposit::<B>([lhs_amax, rhs_amax, amax]);
        for (node, grad) in [(lhs, grad_lhs), (rhs, grad_rhs)] {
            if let (Some(node), Some(grad)) = (node, grad) {
                grads.register::<B>(node.id, grad);
            }
        }
        if let Some((node, grad)) = bias_grad {
            grads.register::<B>(node.id, grad);
        }
    }
}

fn tracked<B: Fp8Engine, C: CheckpointStrategy, const N: usize>(
    lhs: FloatTensor<Autodiff<B, C>>,
    rhs: FloatTensor<Autodiff<B, C>>,
    bias: impl IntoIterator<Item = FloatTensor<Autodiff<B, C>>>,
    mut product: Product,
) -> FloatTensor<Autodiff<B, C>> {
    let shapes = [lhs.shape(), rhs.shape()];
    // An operand is needed only for the gradient of the other one.
    let save = [rhs.is_tracked(), lhs.is_tracked()];
    let bias = bias.into_iter().next();
    if save.contains(&true) {
        let is_leaf = rhs.node.order == 0 && rhs.is_tracked();
        product.take_site(is_leaf.then_some(rhs.node.id.value));
    }
    let nodes = [Some(lhs.node), Some(rhs.node), bias.as_ref().map(|bias| bias.node.clone())];
    let nodes: Vec<_> = nodes.into_iter().flatten().collect();
    let nodes: [_; N] = nodes.try_into().expect("N counts the operands and the bias");

    let gemms::Forward { output, saved: operands, amaxes } =
        gemms::forward::<B>(lhs.primitive, rhs.primitive, &product, &product.gemms, save);
    let output = add_bias::<B>(output, bias.map(|bias| bias.primitive));

    match Backward::<B, N>::prepare::<C>(Fp8Step, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(Saved { operands, amaxes, shapes, product }, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
