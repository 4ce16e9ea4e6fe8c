//! Operands without elements: forward and backward, in each order of the decorators, with FP8 on and off.

use burn::backend::NdArray;
use burn::nn::LayerNormConfig;
use burn::tensor::TensorPrimitive;
use burn::tensor::activation::gelu;
use burn::tensor::module::attention;
use burn_fp8::AttentionPrecision;
use burn_fp8::fused::ops::{self, AttentionOptions};

use crate::common::*;

/// The shapes of both operands, and of their product.
type Case<const D: usize> = [[usize; D]; 3];

const MATRICES: [Case<2>; 6] = [
    [[0, 4], [4, 3], [0, 3]],
    [[3, 4], [4, 0], [3, 0]],
    [[3, 0], [0, 4], [3, 4]],
    [[0, 0], [0, 0], [0, 0]],
    [[0, 32], [32, 32], [0, 32]],
    [[32, 0], [0, 32], [32, 32]],
];

const BATCHES: [Case<3>; 7] = [
    [[0, 2, 2], [1, 2, 2], [0, 2, 2]],
    [[1, 2, 2], [0, 2, 2], [0, 2, 2]],
    [[0, 2, 2], [0, 2, 2], [0, 2, 2]],
    [[2, 0, 3], [2, 3, 4], [2, 0, 4]],
    [[2, 0, 3], [1, 3, 4], [2, 0, 4]],
    [[2, 3, 0], [1, 0, 4], [2, 3, 4]],
    [[2, 3, 4], [2, 4, 0], [2, 3, 0]],
];

/// Inputs of layers that have no elements.
const INPUTS: [[usize; 3]; 2] = [[0, 8, 32], [4, 0, 32]];

/// Whatever an operand holds, nothing of it is multiplied. It is a part of a larger tensor.
fn infinite<B: Backend, const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    let larger = Tensor::full(shape.map(|size| size + 1), f32::INFINITY, &Default::default());
    larger.slice(shape.map(|size| 0..size))
}

/// Nothing, or zeros, of this shape.
#[track_caller]
fn is_nothing<B: Backend, const D: usize>(tensor: Tensor<B, D>, shape: [usize; D], what: &str) {
    assert_eq!(tensor.dims(), shape, "{what}");
    assert!(values(tensor).iter().all(|value| *value == 0.0), "{what}");
}

/// A result has this shape and nothing in it. The gradients of its operands.
#[track_caller]
fn backward<B: AutodiffBackend, const D: usize>(
    y: Tensor<B, D>,
    shape: [usize; D],
    what: &str,
) -> B::Gradients {
    is_nothing(y.clone(), shape, what);
    y.sum().backward()
}

/// There is a gradient, with nothing in it.
#[track_caller]
fn has_none<B: AutodiffBackend, const D: usize>(
    of: &Tensor<B, D>,
    grads: &B::Gradients,
    what: &str,
) {
    is_nothing(of.grad(grads).expect("tracked"), of.dims(), what);
}

fn multiply<B: AutodiffBackend, const D: usize>(cases: &[Case<D>]) {
    for [lhs, rhs, output] in cases {
        let [a, b] = [lhs, rhs].map(|shape| infinite::<B, D>(*shape).require_grad());
        let what = format!("{lhs:?} times {rhs:?}");
        let grads = backward(a.clone().matmul(b.clone()), *output, &what);
        has_none(&a, &grads, &what);
        has_none(&b, &grads, &what);
    }
}

fn layers<B: AutodiffBackend>() {
    for (x, weight, output) in [
        ([0, 8, 32], [32, 32], [0, 8, 32]),
        ([4, 0, 32], [32, 48], [4, 0, 48]),
        ([2, 3, 0], [0, 5], [2, 3, 5]),
    ] {
        let bias = Tensor::<B, 1>::full([weight[1]], 2.0, &Default::default());
        let layer = linear(infinite(weight), Some(bias));
        let x = infinite::<B, 3>(x).require_grad();
        let grads = backward(layer.forward(x.clone()) - 2.0, output, "the bias alone");
        has_none(&x, &grads, "x");
        has_none(&layer.weight.val(), &grads, "weight");
        let of_bias = grad(&layer.bias.expect("with bias").val(), &grads);
        assert_eq!(of_bias, vec![(output[0] * output[1]) as f32; weight[1]]);
    }
}

/// Asked of the backend itself, as `Autodiff` does outside of the decorator.
fn backwards<B: Backend>() {
    let of = |shape: [usize; 3]| infinite::<B, 3>(shape).into_primitive().tensor();
    let weight = infinite::<B, 2>([4, 3]).into_primitive().tensor();
    let x = TensorPrimitive::Float(B::linear_x_backward(weight, of([0, 2, 3])));
    is_nothing(Tensor::<B, 3>::from_primitive(x), [0, 2, 4], "x");
    let w = TensorPrimitive::Float(B::linear_weight_backward(of([0, 2, 4]), of([0, 2, 3])));
    is_nothing(Tensor::<B, 2>::from_primitive(w), [4, 3], "weight");
}

#[test]
fn products_of_nothing_are_nothing_or_zeros_and_so_are_their_gradients() {
    fn all<B: AutodiffBackend>() {
        for config in [Fp8Config::default(), every_matmul(), Fp8Config::off()] {
            config.scope(|| {
                multiply::<B, 2>(&MATRICES);
                multiply::<B, 3>(&BATCHES);
                layers::<B>();
            });
        }
    }
    all::<Outer<Flex>>();
    all::<Inner<Flex>>();
    all::<Outer<NdArray>>();
    all::<Inner<NdArray>>();
    backwards::<Fp8Backend<Flex>>();
    backwards::<Fp8Backend<NdArray>>();
}

/// FP8 layers of an input that is empty.
fn fp8_layers<B: AutodiffBackend + Fp8Matmul>(what: &str) {
    for shape @ [batch, rows, _] in INPUTS {
        let x = ones::<B, 3>(shape).require_grad();
        let layer = Fp8LinearConfig::new(32, 16).with_bias(false).init(&Default::default());
        let grads = backward(layer.forward(x.clone()), [batch, rows, 16], what);
        has_none(&x, &grads, what);
        has_none(&layer.weight.val(), &grads, what);
        let frozen = FrozenLinear::from_weight(ones([32, 16]), None, ActivationScale::Current);
        let y = frozen.expect("not empty").forward(ones::<B, 3>(shape));
        is_nothing(y, [batch, rows, 16], what);
    }
}

/// What else goes through the decorator, with nothing in it: attention, normalization, activations, FP8 layers.
#[test]
fn other_operations_of_nothing_are_nothing_too() {
    fn check<B: AutodiffBackend + Fp8Matmul>() {
        let config = Fp8Config::default();
        let precisions = [AttentionPrecision::High, AttentionPrecision::Fp8];
        let fused = precisions.map(|precision| config.with_attention(Some(precision)));
        for config in [config, every_matmul(), Fp8Config::off()].into_iter().chain(fused) {
            let what = format!("{config:?}");
            config.scope(|| {
                for [batch, queries, keys] in [[0, 16, 16], [2, 0, 16], [0, 0, 16]] {
                    let [q, k, v] = [queries, keys, keys]
                        .map(|length| ones::<B, 4>([batch, 2, length, 16]).require_grad());
                    let [a, b, c] = [&q, &k, &v].map(Clone::clone);
                    let y = attention(a, b, c, None, None, Default::default());
                    let grads = backward(y, [batch, 2, queries, 16], &what);
                    [&q, &k, &v].iter().for_each(|x| has_none(x, &grads, &what));
                }
                for shape in INPUTS {
                    let x = ones::<B, 3>(shape).require_grad();
                    let norm = LayerNormConfig::new(32).init(&Default::default());
                    let grads = backward(gelu(norm.forward(x.clone())), shape, &what);
                    has_none(&x, &grads, &what);
                }
                fp8_layers::<B>(&what);
            });
        }
    }
    check::<Outer<Flex>>();
    check::<Outer<NdArray>>();
    // Layers have no decorator around them.
    fp8_layers::<Autodiff<Flex>>("Flex");
    fp8_layers::<Autodiff<NdArray>>("NdArray");
}

/// Attention of queries, keys and values, apart and in one tensor, of which nothing is there.
#[test]
fn attention_as_an_operation_of_nothing_is_nothing() {
    fn check<B: AutodiffBackend + Fp8Matmul>() {
        for [batch, length] in [[0, 4], [1, 0], [0, 0]] {
            let [q, k, v] =
                [2, 1, 1].map(|heads| ones::<B, 4>([batch, heads, length, 16]).require_grad());
            let y = ops::attention(q.clone(), k, v, AttentionOptions::default());
            has_none(&q, &backward(y, [batch, 2, length, 16], "apart"), "apart");
            let qkv = ones::<B, 4>([batch, length, 6, 16]).require_grad();
            let y = ops::self_attention(qkv.clone(), 1, AttentionOptions::default());
            has_none(&qkv, &backward(y, [batch, 4, length, 16], "in one"), "in one");
        }
    }
    check::<Outer<Flex>>();
    check::<Autodiff<Flex>>();
    check::<Outer<NdArray>>();
}
