//! Attention, GELU and dropout as one operation each, against Burn's own operations.

use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::tensor::activation::{self, softmax};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use burn_fp8_next::nn::{AttentionInput, Fp8AttentionConfig, Fp8Linear, Fp8MlpConfig};
use burn_fp8_next::ops::{self, AttentionOptions};
use burn_fp8_next::{AttentionPrecision, Dropout, Fp8Config, high_precision, trace};

use crate::common::*;

const HEADS: [usize; 2] = [4, 2];
const LENGTHS: [usize; 2] = [70, 81];
const WIDTH: usize = 24;

fn numbers<const D: usize>(shape: [usize; D], seed: usize, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 10_007) as f32 / 5003.0 - 1.0;
    tensor(&(0..count).map(number).collect::<Vec<_>>(), shape, device)
}

fn hidden<const D: usize>(shape: [usize; D], every: usize, device: &Device) -> Tensor<D, Bool> {
    let count: usize = shape.iter().product();
    let hidden: Vec<bool> = (0..count).map(|i| i % every == 1).collect();
    Tensor::from_data(TensorData::new(hidden, shape), device)
}

/// The root mean square of errors, relative to that of the reference.
fn error(x: &[f32], exact: &[f32]) -> f32 {
    assert_eq!(x.len(), exact.len());
    let size: f32 = exact.iter().map(|x| x * x).sum();
    (x.iter().zip(exact).map(|(x, exact)| (x - exact).powi(2)).sum::<f32>() / size).sqrt()
}

/// The output and the gradients of queries, keys, values and the bias.
fn results(run: impl FnOnce([Tensor<4>; 3], Tensor<4>) -> Tensor<4>) -> Vec<Vec<f32>> {
    let device = Device::flex().autodiff();
    let ([heads, kv_heads], [queries, keys]) = (HEADS, LENGTHS);
    let q = numbers([2, heads, queries, WIDTH], 1, &device).require_grad();
    let k = numbers([2, kv_heads, keys, WIDTH], 2, &device).require_grad();
    let v = numbers([2, kv_heads, keys, WIDTH], 3, &device).require_grad();
    let bias = numbers([1, heads, queries, keys], 4, &device).require_grad();
    let y = run([q.clone(), k.clone(), v.clone()], bias.clone());
    let grads = (y.clone() * numbers(y.dims(), 5, &device)).sum().backward();
    let of = |tensor: Tensor<4>| values(tensor.grad(&grads).expect("it was used"));
    [vec![values(y)], [q, k, v, bias].map(of).into()].concat()
}

#[test]
fn attention_and_its_gradients_are_those_of_burns_operations() {
    let ([heads, kv_heads], [queries, keys]) = (HEADS, LENGTHS);
    let device = Device::flex();
    let pad = hidden([2, keys], 5, &device);
    let mask = hidden([2, 1, queries, keys], 7, &device);
    let scores_shape = [2, heads, queries, keys];
    let exact = results(|[q, k, v], bias| {
        let spread = |x: Tensor<4>| {
            let x: Tensor<5> = x.unsqueeze_dim(2).repeat_dim(2, heads / kv_heads);
            x.reshape([2, heads, keys, WIDTH])
        };
        let mut scores = q.matmul(spread(k).transpose()) / (WIDTH as f32).sqrt();
        scores = (scores / 0.8).tanh() * 0.8 + bias;
        let ahead = |index: usize| index % keys > index / keys + (keys - queries);
        let ahead: Vec<bool> = (0..queries * keys).map(ahead).collect();
        let ahead = TensorData::new(ahead, [1, 1, queries, keys]);
        let ahead = Tensor::<4, Bool>::from_data(ahead, &device);
        for mask in [pad.clone().reshape([2, 1, 1, keys]), mask.clone(), ahead] {
            scores = scores.mask_fill(mask.expand(scores_shape), -1e6);
        }
        softmax(scores, 3).matmul(spread(v))
    });
    let ours = |precision| {
        results(|[q, k, v], bias| {
            let options = AttentionOptions {
                causal: true,
                softcap: Some(0.8),
                bias: Some(bias),
                mask_pad: Some(pad.clone()),
                mask: Some(mask.clone()),
                precision,
                ..Default::default()
            };
            ops::attention(q, k, v, options)
        })
    };
    for (precision, bound) in [
        (AttentionPrecision::High, 3e-6),
        (AttentionPrecision::Bf16, 0.01),
        (AttentionPrecision::Fp8, 0.12),
    ] {
        for (x, exact) in ours(precision).iter().zip(&exact) {
            assert!(error(x, exact) <= bound, "{precision}: {}", error(x, exact));
        }
    }
    let high = ours(AttentionPrecision::High);
    assert_eq!(high_precision(|| ours(AttentionPrecision::Fp8)), high);
}

#[test]
fn the_layer_takes_the_place_of_burns() {
    let device = Device::flex();
    let burns = MultiHeadAttentionConfig::new(32, 4).with_dropout(0.0).init(&device);
    let mut layer = Fp8AttentionConfig::new(32, 4).init(&device);
    let pad = hidden([2, 11], 4, &device);
    let attn = hidden([2, 9, 11], 5, &device);
    let (x, y) = (numbers([2, 9, 32], 1, &device), numbers([2, 11, 32], 2, &device));
    let input = MhaInput::new(x.clone(), y.clone(), y.clone());
    let expected = burns.forward(input.mask_pad(pad.clone()).mask_attn(attn.clone())).context;
    layer.query = burns.query.into();
    layer.key = burns.key.into();
    layer.value = burns.value.into();
    layer.output = burns.output.into();
    let input = AttentionInput::new(x, y.clone(), y).mask_pad(pad).mask_attn(attn);
    let context = Fp8Config::off().scope(|| layer.forward(input.clone()));
    assert!(error(&values(context.clone()), &values(expected)) < 1e-6);

    // Dropout changes it, the same seed alike; and the linear layers run in FP8.
    let dropout = |seed| input.clone().dropout(Dropout::new(0.5, seed).unwrap());
    let run = |input| Fp8Config::off().scope(|| values(layer.forward(input)));
    assert_eq!(run(dropout(1)), run(dropout(1)));
    assert_ne!(run(dropout(1)), run(dropout(2)));
    let (fp8, report) = burn_fp8_next::trace(|| layer.forward(input.clone()));
    assert_eq!(report.fp8().count(), 4);
    let of_fp8 = error(&values(fp8), &values(context));
    assert!((1e-3..0.2).contains(&of_fp8), "{of_fp8}");
}

type F<'a> = dyn Fn(Tensor<3>) -> Tensor<3> + 'a;

/// The output, and the gradient of the input for an output gradient that is the input.
fn run(x: Tensor<3>, f: &F<'_>) -> [Vec<f32>; 2] {
    let x = x.require_grad();
    let y = f(x.clone());
    let grads = (y.clone() * x.clone().detach()).sum().backward();
    [values(y), values(x.grad(&grads).expect("it was used"))]
}

/// Output and gradients against Burn's operations with the same weights; and in FP8 all products of a step.
#[test]
fn an_mlp_is_burns_layers_around_an_activation() {
    let device = Device::flex().autodiff();
    let results = |f: &F<'_>| run(numbers([2, 24, 48], 1, &device), f);
    let layer = |x: Tensor<3>, layer: &Fp8Linear| {
        let y = x.matmul(layer.weight.val().unsqueeze());
        match &layer.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    };
    let gated = Fp8MlpConfig::swiglu(48, 64).init(&device);
    let plain = Fp8MlpConfig::new(48, 64).init(&device);
    assert!(gated.up.bias.is_none() && plain.gate.is_none() && plain.up.bias.is_some());
    high_precision(|| {
        let gate = gated.gate.as_ref().expect("it is gated");
        let burns = |x: Tensor<3>| {
            layer(activation::silu(layer(x.clone(), gate)) * layer(x, &gated.up), &gated.down)
        };
        let pairs = [
            (results(&|x| gated.forward(x)), results(&burns)),
            (
                results(&|x| plain.forward(x)),
                results(&|x| layer(activation::gelu(layer(x, &plain.up)), &plain.down)),
            ),
        ];
        for (ours, burns) in pairs {
            for (ours, burns) in ours.iter().zip(&burns) {
                assert!(error(ours, burns) < 1e-5);
            }
        }
    });
    let (_, report) = trace(|| results(&|x| gated.forward(x)));
    assert_eq!(report.fp8().count(), 9);
}

#[test]
fn gelu_silu_and_dropout_are_the_same_forward_and_backward() {
    let device = Device::flex().autodiff();
    let run = |f: &F<'_>| run(numbers([3, 40, 50], 1, &device) * 4.0, f);
    let pairs: [[&F<'_>; 2]; 2] =
        [[&ops::gelu, &activation::gelu], [&ops::silu, &activation::silu]];
    for [ours, burns] in pairs {
        let ([y, grad], [exact, exact_grad]) = (run(ours), run(burns));
        assert!(error(&y, &exact) < 1e-6 && error(&grad, &exact_grad) < 1e-6);
    }

    let dropout = Dropout::new(0.25, 3).unwrap();
    let [y, grad] = run(&|x| ops::dropout(x, dropout));
    assert_eq!(y, grad);
    let dropped = y.iter().filter(|y| **y == 0.0).count();
    assert!((1300..1700).contains(&dropped), "{dropped}");
}
