//! Products of `Fp8Backend<Autodiff<B>>`: quantized once, multiplied on `B`, with backward steps of their own.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use super::{
    Codes, Fp8Matmul, NativeProblem, OutputType, Product, Quantize, Quantized, SavedOperand,
    ScaleRule, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues, add_bias, products, run,
};
use crate::ops::{DotOptions, QdqOptions, steps};
use crate::{Capability, Fallback, Fp8Format, Scalar};

/// A tensor of `Autodiff<B>`; burn-autodiff does not export the name.
type AutodiffTensor<B, C> = FloatTensor<Autodiff<B, C>>;

impl<B: Fp8Matmul, C: CheckpointStrategy> Fp8Matmul for Autodiff<B, C> {
    // Quantized tensors are constants of the graph: those of `B`, untracked. Products quantize on `B`; only
    // `Autodiff<Autodiff<B>>` comes here with tracked tensors.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        let tensor = untracked::<B, C>(tensor);
        let Quantize { format, scale, save } = request;
        let request = Quantize { format, scale: inner_rule(scale), save };
        let Quantized { values, codes, scale, amax, format } = B::fp8_quantize(tensor, request);
        Quantized {
            values: AutodiffTensor::<B, C>::new(values),
            codes: codes.map(constant_codes),
            scale: constant(scale),
            amax: amax.map(constant),
            format,
        }
    }

    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (Codes<Self>, Scalar<Self>) {
        let (codes, scale) =
            B::fp8_quantize_codes(untracked::<B, C>(tensor), format, inner_rule(scale));
        (constant_codes(codes), constant(scale))
    }

    fn fp8_values(codes: Codes<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_values(inner_codes(codes)))
    }

    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: Codes<Self>) -> FloatTensor<Self> {
        match x.is_tracked() {
            true => Self::fp8_plain_matmul(x, Self::fp8_values(codes)),
            false => {
                AutodiffTensor::<B, C>::new(B::fp8_matmul_codes(x.primitive, inner_codes(codes)))
            }
        }
    }

    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        tensors.iter().any(|tensor| tensor.is_tracked())
    }

    fn fp8_capability(device: &Self::Device) -> Capability {
        B::fp8_capability(device)
    }

    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        B::fp8_check_native(device, problem)
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

    // Codes are constants of the graph, and `scaled_matmul` refuses a tracked bias: so is the result.
    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        let operand = |ScaledOperand { codes, format, scale }| ScaledOperand {
            codes: inner_codes(codes),
            format,
            scale: inner(scale),
        };
        let ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note } =
            request;
        let output = match output {
            OutputType::Float(dtype) => OutputType::Float(dtype),
            OutputType::Fp8 { format, scale } => OutputType::Fp8 { format, scale: inner(scale) },
        };
        let bias = bias.map(|bias| bias.primitive);
        let request =
            ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note };
        let ScaledProduct { values, amax } =
            B::fp8_scaled_matmul(operand(a), operand(b_t), request);
        let values = match values {
            ScaledValues::Float(values) => ScaledValues::Float(AutodiffTensor::<B, C>::new(values)),
            ScaledValues::Codes(codes) => ScaledValues::Codes(constant_codes(codes)),
        };
        ScaledProduct { values, amax: amax.map(AutodiffTensor::<B, C>::new) }
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_amax(tensor.primitive))
    }

    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        steps::quantize_dequantize::<B, C>(x, scale, format, compute_dtype)
    }

    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        steps::in_qdq::<B, C>(x, state, options)
    }

    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        steps::out_qdq::<B, C>(x, state, options)
    }

    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        steps::dot::<B, C>(x, kernel, states, options)
    }
}

fn inner_codes<B: Fp8Matmul, C: CheckpointStrategy>(codes: Codes<Autodiff<B, C>>) -> Codes<B> {
    match codes {
        Codes::Bytes(codes, format) => Codes::Bytes(codes, format),
        Codes::Packed(words, shape, format) => Codes::Packed(words, shape, format),
        Codes::Values(values) => Codes::Values(values.primitive),
    }
}

fn constant_codes<B: Fp8Matmul, C: CheckpointStrategy>(codes: Codes<B>) -> Codes<Autodiff<B, C>> {
    match codes {
        Codes::Bytes(codes, format) => Codes::Bytes(codes, format),
        Codes::Packed(words, shape, format) => Codes::Packed(words, shape, format),
        Codes::Values(values) => Codes::Values(AutodiffTensor::<B, C>::new(values)),
    }
}

/// The tensor of `B`. Panics where it has a gradient.
fn untracked<B: Fp8Matmul, C: CheckpointStrategy>(tensor: AutodiffTensor<B, C>) -> FloatTensor<B> {
    assert!(
        !tensor.is_tracked(),
        "a tensor with a gradient cannot be quantized here: FP8 products have no second derivative, and frozen layers no \
         derivative; run this part in burn_fp8::high_precision, or detach the tensor"
    );
    tensor.primitive
}

fn inner_rule<B: Fp8Matmul, C: CheckpointStrategy>(
    rule: ScaleRule<Autodiff<B, C>>,
) -> ScaleRule<B> {
    match rule {
        ScaleRule::Current(recipe) => ScaleRule::Current(recipe),
        ScaleRule::Delayed(amax, recipe) => ScaleRule::Delayed(inner(amax), recipe),
        ScaleRule::Given(scale, overflow) => ScaleRule::Given(inner(scale), overflow),
    }
}

fn inner<B: Fp8Matmul, C: CheckpointStrategy>(scalar: Scalar<Autodiff<B, C>>) -> Scalar<B> {
    match scalar {
        Scalar::Host(value) => Scalar::Host(value),
        Scalar::Device(tensor) => Scalar::Device(tensor.primitive),
    }
}

fn constant<B: Fp8Matmul, C: CheckpointStrategy>(scalar: Scalar<B>) -> Scalar<Autodiff<B, C>> {
    match scalar {
        Scalar::Host(value) => Scalar::Host(value),
        Scalar::Device(tensor) => Scalar::Device(AutodiffTensor::<B, C>::new(tensor)),
    }
}

/// The backward step of a product: straight through the quantization of its operands.
///
/// Holds the operands as codes, not as nodes of the graph: a gradient checkpoint never runs the quantization again.
#[derive(Debug)]
struct Fp8Step;

#[derive(Clone, Debug)]
struct Saved<B: Fp8Matmul> {
    operands: [Option<SavedOperand<B>>; 2],
    amaxes: [Option<Scalar<B>>; 2],
    shapes: [Shape; 2],
    product: Product,
}

/// `N` parents: the two operands, and a bias where there is one.
impl<B: Fp8Matmul, const N: usize> Backward<B, N> for Fp8Step {
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
        let products::Gradients { operands: [grad_lhs, grad_rhs], amax } =
            run::backward::<B>(output_grad, operands, shapes, &product);
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

fn tracked<B: Fp8Matmul, C: CheckpointStrategy, const N: usize>(
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

    let products::Forward { output, saved: operands, amaxes } =
        run::forward::<B>(lhs.primitive, rhs.primitive, &product, save);
    let output = add_bias::<B>(output, bias.map(|bias| bias.primitive));

    match Backward::<B, N>::prepare::<C>(Fp8Step, nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(Saved { operands, amaxes, shapes, product }, output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
