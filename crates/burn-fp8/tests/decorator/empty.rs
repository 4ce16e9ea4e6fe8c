//! Operands without elements: forward and backward, in each order of the decorators, with FP8 on and off.

use burn::backend::NdArray;
use burn::nn::LayerNormConfig;
use burn::tensor::TensorPrimitive;
use burn::tensor::activation::gelu;
use burn::tensor::module::attention;
use burn_fp8::AttentionPrecision;
use burn_fp8::fused::ops::{self, AttentionOptions};
use burn_fp8::nn::ActivationScale;

use crate::common::*;

/// The shapes of both operands, and of their product.
type Case = (&'static [usize], &'static [usize], &'static [usize]);

const MATRICES: [Case; 6] = [
    (&[0, 4], &[4, 3], &[0, 3]),
    (&[3, 4], &[4, 0], &[3, 0]),
    (&[3, 0], &[0, 4], &[3, 4]),
    (&[0, 0], &[0, 0], &[0, 0]),
    (&[0, 32], &[32, 32], &[0, 32]),
    (&[32, 0], &[0, 32], &[32, 32]),
];

const BATCHES: [Case; 7] = [
    (&[0, 2, 2], &[1, 2, 2], &[0, 2, 2]),
    (&[1, 2, 2], &[0, 2, 2], &[0, 2, 2]),
    (&[0, 2, 2], &[0, 2, 2], &[0, 2, 2]),
    (&[2, 0, 3], &[2, 3, 4], &[2, 0, 4]),
    (&[2, 0, 3], &[1, 3, 4], &[2, 0, 4]),
    (&[2, 3, 0], &[1, 0, 4], &[2, 3, 4]),
    (&[2, 3, 4], &[2, 4, 0], &[2, 3, 0]),
];

fn infinite<B: Backend, const D: usize>(shape: &[usize]) -> Tensor<B, D> {
    let shape: [usize; D] = shape.try_into().expect("of this rank");
    // Whatever an operand holds, nothing of it is multiplied.
    Tensor::full(shape, f32::INFINITY, &Default::default())
}

/// Nothing, or zeros, of this shape.
fn is_nothing<B: Backend, const D: usize>(tensor: Tensor<B, D>, shape: &[usize], what: &str) {
    assert_eq!(tensor.dims()[..], *shape, "{what}");
    assert!(values(tensor).iter().all(|value| *value == 0.0), "{what}");
}

fn multiply<B: AutodiffBackend, const D: usize>(cases: &[Case]) {
    for (lhs, rhs, output) in cases {
        let what = format!("{lhs:?} times {rhs:?}");
        let [a, b] = [lhs, rhs].map(|shape| infinite::<B, D>(shape).require_grad());
        let product = a.clone().matmul(b.clone());
        is_nothing(product.clone(), output, &what);
        let grads = product.sum().backward();
        is_nothing(a.grad(&grads).expect("tracked"), lhs, &what);
        is_nothing(b.grad(&grads).expect("tracked"), rhs, &what);
    }
}

fn layers<B: AutodiffBackend>() {
    let device = Default::default();
    for (x, weight, output) in [
        (&[0, 8, 32][..], [32, 32], &[0, 8, 32][..]),
        (&[4, 0, 32], [32, 48], &[4, 0, 48]),
        (&[2, 3, 0], [0, 5], &[2, 3, 5]),
    ] {
        let mut layer = LinearConfig::new(weight[0].max(1), weight[1]).init::<B>(&device);
        layer.weight = Param::from_tensor(infinite(&weight));
        layer.bias = Some(Param::from_tensor(Tensor::full([weight[1]], 2.0, &device)));
        let x = infinite::<B, 3>(x).require_grad();
        let y = layer.forward(x.clone());
        assert_eq!(y.dims()[..], *output);
        assert!(values(y.clone()).iter().all(|y| *y == 2.0), "the bias alone");
        let grads = y.sum().backward();
        is_nothing(x.grad(&grads).expect("tracked"), &x.dims(), "x");
        is_nothing(layer.weight.grad(&grads).expect("tracked"), &weight, "weight");
        let rows = (output[0] * output[1]) as f32;
        let bias = layer.bias.as_ref().and_then(|bias| bias.grad(&grads)).expect("tracked");
        assert_eq!(values(bias), vec![rows; weight[1]]);
    }
}

fn backwards<B: Backend>() {
    let of = |shape: &[usize; 3]| infinite::<B, 3>(shape).into_primitive().tensor();
    let weight = || infinite::<B, 2>(&[4, 3]).into_primitive().tensor();
    let tensor = |primitive| TensorPrimitive::<B>::Float(primitive);
    let x = B::linear_x_backward(weight(), of(&[0, 2, 3]));
    is_nothing(Tensor::<B, 3>::from_primitive(tensor(x)), &[0, 2, 4], "x");
    let w = B::linear_weight_backward(of(&[0, 2, 4]), of(&[0, 2, 3]));
    is_nothing(Tensor::<B, 2>::from_primitive(tensor(w)), &[4, 3], "weight");
}

fn all<B: AutodiffBackend>() {
    for config in [Fp8Config::default(), every_matmul(), Fp8Config::off()] {
        config.scope(|| {
            multiply::<B, 2>(&MATRICES);
            multiply::<B, 3>(&BATCHES);
            layers::<B>();
        });
    }
}

#[test]
fn products_of_nothing_are_nothing_or_zeros_and_so_are_their_gradients() {
    all::<Outer<Flex>>();
    all::<Inner<Flex>>();
    all::<Outer<NdArray>>();
    all::<Inner<NdArray>>();
    backwards::<Fp8Backend<Flex>>();
    backwards::<Fp8Backend<NdArray>>();
}

/// The smallest cases that ended the process.
#[test]
fn a_slice_of_nothing_goes_through_a_linear_layer() {
    type B = Outer<Flex>;
    let device = Default::default();
    let layer = LinearConfig::new(32, 32).init::<B>(&device);
    let x = Tensor::<B, 3>::ones([4, 8, 32], &device).slice([0..0, 0..8]);
    assert_eq!(layer.forward(x).dims(), [0, 8, 32]);
}

/// Layers of this input, which is empty.
fn fp8_layers<B: AutodiffBackend + Fp8Matmul>(shape: [usize; 3], what: &str) {
    let device = Default::default();
    let x = Tensor::<B, 3>::ones(shape, &device).require_grad();
    let layer = Fp8LinearConfig::new(32, 16).with_bias(false).init(&device);
    let y = layer.forward(x.clone());
    is_nothing(y.clone(), &[shape[0], shape[1], 16], what);
    let grads = y.sum().backward();
    is_nothing(x.grad(&grads).expect("tracked"), &shape, what);
    is_nothing(layer.weight.grad(&grads).expect("tracked"), &[32, 16], what);

    let weight = Tensor::<B, 2>::ones([32, 16], &device);
    let frozen = FrozenLinear::from_weight(weight, None, ActivationScale::Current);
    let y = frozen.expect("not empty").forward(Tensor::<B, 3>::ones(shape, &device));
    is_nothing(y, &[shape[0], shape[1], 16], what);
}

/// What else goes through the decorator, with nothing in it: attention, normalization, activations, FP8 layers.
#[test]
fn other_operations_of_nothing_are_nothing_too() {
    fn check<B: AutodiffBackend + Fp8Matmul>(config: Fp8Config) {
        let device = Default::default();
        let what = format!("{config:?}");
        config.scope(|| {
            for [batch, queries, keys] in [[0, 16, 16], [2, 0, 16], [0, 0, 16]] {
                let ones = |length| Tensor::<B, 4>::ones([batch, 2, length, 16], &device);
                let [q, k, v] = [queries, keys, keys].map(|length| ones(length).require_grad());
                let context =
                    attention(q.clone(), k.clone(), v.clone(), None, None, Default::default());
                is_nothing(context.clone(), &[batch, 2, queries, 16], &what);
                let grads = context.sum().backward();
                for tensor in [q, k, v] {
                    is_nothing(tensor.grad(&grads).expect("tracked"), &tensor.dims(), &what);
                }
            }
            for shape in [[0, 8, 32], [4, 0, 32]] {
                let x = Tensor::<B, 3>::ones(shape, &device).require_grad();
                let norm = LayerNormConfig::new(32).init(&device);
                let y = gelu(norm.forward(x.clone()));
                is_nothing(y.clone(), &shape, &what);
                let grads = y.sum().backward();
                is_nothing(x.grad(&grads).expect("tracked"), &shape, &what);
                fp8_layers::<B>(shape, &what);
            }
        });
    }
    let config = Fp8Config::default();
    let precisions = [AttentionPrecision::High, AttentionPrecision::Fp8];
    let fused = precisions.map(|precision| config.with_attention(Some(precision)));
    for config in [config, every_matmul(), Fp8Config::off()].into_iter().chain(fused) {
        check::<Outer<Flex>>(config);
        check::<Outer<NdArray>>(config);
    }
    // Layers have no decorator around them.
    for shape in [[0, 8, 32], [4, 0, 32]] {
        fp8_layers::<Autodiff<Flex>>(shape, "Flex");
        fp8_layers::<Autodiff<NdArray>>(shape, "NdArray");
    }
}

/// Attention of queries, keys and values, apart and in one tensor, of which nothing is there.
#[test]
fn attention_as_an_operation_of_nothing_is_nothing() {
    fn check<B: AutodiffBackend + Fp8Matmul>() {
        for [batch, length] in [[0, 4], [1, 0], [0, 0]] {
            let device = Default::default();
            let ones = |heads| Tensor::<B, 4>::ones([batch, heads, length, 16], &device);
            let [q, k, v] = [2, 1, 1].map(|heads| ones(heads).require_grad());
            let y = ops::attention(q.clone(), k, v, AttentionOptions::default());
            is_nothing(y.clone(), &[batch, 2, length, 16], "apart");
            is_nothing(q.grad(&y.sum().backward()).expect("tracked"), &q.dims(), "apart");

            let qkv = Tensor::<B, 4>::ones([batch, length, 6, 16], &device).require_grad();
            let y = ops::self_attention(qkv.clone(), 1, AttentionOptions::default());
            is_nothing(y.clone(), &[batch, 4, length, 16], "in one");
            is_nothing(qkv.grad(&y.sum().backward()).expect("tracked"), &qkv.dims(), "in one");
        }
    }
    check::<Outer<Flex>>();
    check::<Autodiff<Flex>>();
    check::<Outer<NdArray>>();
}
