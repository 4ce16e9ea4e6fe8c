//! Products of `Fp8Backend<Autodiff<B>>`: quantized once, multiplied on `B`, with backward steps of their own.

use burn_autodiff::{
    Autodiff, checkpoint::base::Checkpointer, checkpoint::strategy::CheckpointStrategy,
    grads::Gradients, ops::Backward, ops::Ops, ops::OpsKind,
};
use burn_backend::{FloatDType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Pointwise, ProductKind};

use super::activation::ActivationScale;
use super::attention;
use super::frozen::{self, FrozenOptions};
use super::gemms;
use super::norm;
use super::operand::SavedOperand;
use super::ops::Fp8Products;
use super::plan::Product;
use super::pointwise;
use crate::engine::{AttentionGradients, AttentionOf, Fp8Engine, MatrixOf, ScalarOf};
use crate::host;
use crate::weights::Leaf;

impl<B: Fp8Engine, C: CheckpointStrategy> Fp8Products for Autodiff<B, C> {
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        tensors.iter().any(|tensor| tensor.is_tracked())
    }

    fn fp8_weight(kind: ProductKind, rhs: &FloatTensor<Self>) -> Option<Leaf> {
        match kind {
            ProductKind::Linear => host::leaf(rhs),
            // Data may stand on the right, too.
            ProductKind::Matmul if rhs.is_tracked() => host::leaf(rhs),
            _ => None,
        }
    }

    fn fp8_nothing<const N: usize>(
        operands: [&FloatTensor<Self>; N],
        shape: Shape,
    ) -> FloatTensor<Self> {
        let step = host::begin::<B, C, _, N>(NothingStep, operands);
        let values = operands.map(|tensor| host::untracked(tensor.clone()));
        let device = host::float_device::<B>(&values[0]);
        let dtype = values[0].dtype().into();
        let output = B::float_zeros(shape, &device, dtype);
        match step {
            OpsKind::Tracked(prep) => {
                let shapes = values.iter().map(TensorMetadata::shape).collect();
                prep.finish((shapes, device, dtype), output)
            }
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
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
        <Self as burn_backend::ops::ModuleOps<Self>>::linear_x_backward(weight, output_grad)
    }

    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        _product: Product,
    ) -> FloatTensor<Self> {
        <Self as burn_backend::ops::ModuleOps<Self>>::linear_weight_backward(x, output_grad)
    }

    fn fp8_frozen(
        x: FloatTensor<Self>,
        weight: MatrixOf<Self>,
        options: FrozenOptions,
    ) -> FloatTensor<Self> {
        if options.activation == ActivationScale::Unquantized {
            return frozen::multiply::<Self>(x, weight, &options);
        }
        let step = host::begin::<B, C, _, 1>(FrozenStep, [&x]);
        let weight = weight.map(&mut (), |_, x| host::untracked(x), |_, x| x);
        let output = frozen::multiply::<B>(host::untracked(x.clone()), weight.clone(), &options);
        match step {
            OpsKind::Tracked(prep) => prep.finish(weight, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn fp8_attention(
        qkv: [FloatTensor<Self>; 3],
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        match attention.bias {
            Some(_) => attend::<B, C, 3, 4>(qkv, attention, |qkv| qkv),
            None => attend::<B, C, 3, 3>(qkv, attention, |qkv| qkv),
        }
    }

    fn fp8_self_attention(
        qkv: FloatTensor<Self>,
        kv_heads: usize,
        attention: AttentionOf<Self>,
    ) -> FloatTensor<Self> {
        let apart = |[qkv]: [_; 1]| attention::apart::<B>(qkv, kv_heads);
        match attention.bias {
            Some(_) => attend::<B, C, 1, 2>([qkv], attention, apart),
            None => attend::<B, C, 1, 1>([qkv], attention, apart),
        }
    }

    fn fp8_pointwise_op(operation: Pointwise, x: FloatTensor<Self>) -> FloatTensor<Self> {
        let step = host::begin::<B, C, _, 1>(PointwiseStep, [&x]);
        let (output, saved) = pointwise::forward::<B>(operation, host::untracked(x.clone()));
        match step {
            OpsKind::Tracked(prep) => prep.finish(saved, output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    }

    fn fp8_layer_norm_op(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        match beta {
            Some(_) => normalize::<B, C, 3>(x, gamma, beta, epsilon),
            None => normalize::<B, C, 2>(x, gamma, beta, epsilon),
        }
    }
}

/// The backward step of a product of nothing.
#[derive(Debug)]
struct NothingStep;

impl<B: Fp8Engine, const N: usize> Backward<B, N> for NothingStep {
    /// The shapes of the operands, their device and their type.
    type State = (Vec<Shape>, B::Device, FloatDType);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        grads.consume::<B>(&ops.node);
        let (shapes, device, dtype) = ops.state;
        for (node, shape) in ops.parents.into_iter().zip(shapes) {
            if let Some(node) = node {
                grads.register::<B>(node.id, B::float_zeros(shape, &device, dtype));
            }
        }
    }
}

/// `N` counts input, gamma, and beta where there is one.
fn normalize<B: Fp8Engine, C: CheckpointStrategy, const N: usize>(
    x: FloatTensor<Autodiff<B, C>>,
    gamma: FloatTensor<Autodiff<B, C>>,
    beta: Option<FloatTensor<Autodiff<B, C>>>,
    epsilon: f64,
) -> FloatTensor<Autodiff<B, C>> {
    let parents: Vec<_> = [Some(&x), Some(&gamma), beta.as_ref()].into_iter().flatten().collect();
    let parents: [_; N] = parents.try_into().expect("N counts the operands and beta");
    let step = host::begin::<B, C, _, N>(NormStep, parents);
    // The tensors stay until the step is registered, as those of products do.
    let value = |tensor: &host::Tracked<B>| host::untracked(tensor.clone());
    let beta_value = beta.as_ref().map(value);
    let (output, saved) = norm::forward::<B>(value(&x), value(&gamma), beta_value, epsilon);
    match step {
        OpsKind::Tracked(prep) => prep.finish(saved, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// The backward step of layer normalization.
#[derive(Debug)]
struct NormStep;

impl<B: Fp8Engine, const N: usize> Backward<B, N> for NormStep {
    type State = norm::Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        for (node, grad) in ops.parents.iter().zip(norm::backward::<B>(grad, ops.state)) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// The backward step of attention: queries, keys and values, or one tensor of all three, and the bias where there is one more parent.
#[derive(Debug)]
struct AttentionStep<const OPERANDS: usize>;

impl<B: Fp8Engine, const OPERANDS: usize, const N: usize> Backward<B, N>
    for AttentionStep<OPERANDS>
{
    type State = attention::Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let wants_bias = ops.parents.get(OPERANDS).is_some_and(Option::is_some);
        let gradients: Vec<_> = match OPERANDS {
            1 => {
                let AttentionGradients { operands, bias } =
                    attention::self_backward::<B>(grad, ops.state, wants_bias);
                operands.into_iter().chain(bias).collect()
            }
            _ => {
                let AttentionGradients { operands, bias } =
                    attention::backward::<B>(grad, ops.state, wants_bias);
                operands.into_iter().chain(bias).collect()
            }
        };
        for (node, grad) in ops.parents.iter().zip(gradients) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
    }
}

/// `N` counts the operands and the bias; `apart` takes queries, keys and values from the operands.
fn attend<B: Fp8Engine, C: CheckpointStrategy, const OPERANDS: usize, const N: usize>(
    operands: [FloatTensor<Autodiff<B, C>>; OPERANDS],
    attention: AttentionOf<Autodiff<B, C>>,
    apart: impl FnOnce([FloatTensor<B>; OPERANDS]) -> [FloatTensor<B>; 3],
) -> FloatTensor<Autodiff<B, C>> {
    let parents: Vec<_> = operands.iter().chain(&attention.bias).collect();
    let parents: [_; N] = parents.try_into().expect("N counts the operands and the bias");
    let step = host::begin::<B, C, _, N>(AttentionStep::<OPERANDS>, parents);
    // The tensors stay until the step is registered, as those of products do.
    let values = operands.each_ref().map(|tensor| host::untracked(tensor.clone()));
    let inner = attention.clone().map(host::untracked);
    let attention::Forward { output, saved } = attention::forward::<B>(apart(values), &inner);
    match step {
        OpsKind::Tracked(prep) => prep.finish(saved, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// The backward step of an operation on single elements.
#[derive(Debug)]
struct PointwiseStep;

impl<B: Fp8Engine> Backward<B, 1> for PointwiseStep {
    type State = pointwise::Saved<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        if let [Some(x)] = ops.parents {
            grads.register::<B>(x.id, pointwise::backward::<B>(grad, ops.state));
        }
    }
}

/// The backward step of a product with a frozen weight: straight through the quantization of the input; the weight has no gradient.
#[derive(Debug)]
struct FrozenStep;

impl<B: Fp8Engine> Backward<B, 1> for FrozenStep {
    /// The weight.
    type State = MatrixOf<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        if let [Some(x)] = ops.parents {
            grads.register::<B>(x.id, frozen::x_backward::<B>(grad, ops.state));
        }
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
        let kind = product.gemms.kind;
        product.take_site(Autodiff::<B, C>::fp8_weight(kind, &rhs), host::parameter(&rhs));
    }
    let parents: Vec<_> = [Some(&lhs), Some(&rhs), bias.as_ref()].into_iter().flatten().collect();
    let parents: [_; N] = parents.try_into().expect("N counts the operands and the bias");
    let step = host::begin::<B, C, _, N>(Fp8Step, parents);

    // The tensors stay until the step is registered: they hold their places in the graph, which another thread may clear up meanwhile.
    let value = |tensor: &host::Tracked<B>| host::untracked(tensor.clone());
    let gemms::Forward { output, saved: operands, amaxes } = gemms::forward::<B>(
        value(&lhs),
        value(&rhs),
        bias.as_ref().map(value),
        &product,
        &product.gemms,
        save,
    );
    product.enter::<B>(&amaxes);

    match step {
        OpsKind::Tracked(prep) => prep.finish(Saved { operands, amaxes, shapes, product }, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
