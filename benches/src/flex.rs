//! Where a transformer's training step waits for Flex 0.21: operations of Burn beside the same in one loop on all threads, or in another shape.
//! Material for upstream.

use std::hint::black_box;

use burn::backend::{Autodiff, Flex};
use burn::nn::{DropoutConfig, LayerNormConfig, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::{Distribution, Tensor, TensorPrimitive, activation};
use burn_fp8::{AttentionPrecision, Fp8Backend, Fp8Config};
use rayon::prelude::*;

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "flex";

type B = Autodiff<Flex>;

/// Elements that a thread takes at a time.
const TASK: usize = 1 << 14;

/// Batch, rows and features of char-lm's size `medium`, and the features inside its MLP.
const BATCH: usize = 16;
const ROWS: usize = 128;
const WIDTH: usize = 512;
const HIDDEN: usize = 2048;
const LINEAR: [usize; 3] = [BATCH, ROWS, WIDTH];

/// An operation of Burn, and what it is compared with.
struct Pair {
    names: [String; 2],
    runs: [Box<dyn FnMut()>; 2],
}

impl Pair {
    fn new(
        names: [&str; 2],
        slow: impl FnMut() + 'static,
        reference: impl FnMut() + 'static,
    ) -> Self {
        Self { names: names.map(String::from), runs: [Box::new(slow), Box::new(reference)] }
    }
}

/// Measures each.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| {
        let measure = |Pair { names, runs: [mut slow, mut reference] }| {
            let [name, other] = &names;
            let (subject, reference) =
                (Side::new(name, &mut slow), Side::new(other, &mut reference));
            options.compare((GROUP, threads, None), subject, reference)
        };
        pairs().into_iter().map(measure).collect()
    })
}

fn pairs() -> Vec<Pair> {
    vec![linear(false), linear(true), addition(), layer_norm(), gelu(), dropout(), adamw()]
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default())
}

/// Forward, and backward of a gradient that is as large.
fn passes<const D: usize>(
    x: Tensor<B, D>,
    f: impl Fn(Tensor<B, D>) -> Tensor<B, D>,
) -> impl FnMut() {
    let grad = random(x.dims());
    move || {
        let y = f(x.clone().require_grad());
        black_box((y * grad.clone()).sum().backward());
    }
}

/// Burn multiplies the matrices of a batch one by one.
fn linear(with_gradients: bool) -> Pair {
    fn run<const D: usize>(shape: [usize; D], with_gradients: bool) -> impl FnMut() {
        let layer = LinearConfig::new(WIDTH, HIDDEN).init::<B>(&Default::default());
        let x = random(shape);
        let mut output = shape;
        output[D - 1] = HIDDEN;
        let grad = random(output);
        move || match with_gradients {
            false => drop(black_box(layer.forward(x.clone()))),
            true => {
                let y = layer.forward(x.clone().require_grad());
                black_box((y * grad.clone()).sum().backward());
            }
        }
    }
    let what = if with_gradients { "forward and backward" } else { "forward" };
    let name = format!("nn::Linear {WIDTH}→{HIDDEN} of {LINEAR:?}, {what}");
    let reference = format!("the same of {:?}", [BATCH * ROWS, WIDTH]);
    Pair::new(
        [&name, &reference],
        run(LINEAR, with_gradients),
        run([BATCH * ROWS, WIDTH], with_gradients),
    )
}

fn addition() -> Pair {
    const COUNT: usize = 1 << 22;
    let [x, y] = [(); 2].map(|()| random([COUNT]).inner());
    let [a, b] = [(); 2].map(|()| vec![1f32; COUNT]);
    Pair::new(
        ["x + y of 2²² elements", "one loop on all threads"],
        move || drop(black_box(x.clone() + y.clone())),
        move || {
            let mut sums = vec![0f32; COUNT];
            let tasks = sums.par_chunks_mut(TASK).zip(a.par_chunks(TASK)).zip(b.par_chunks(TASK));
            tasks.for_each(|((sums, a), b)| {
                for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
                    *sum = a + b;
                }
            });
            black_box(&sums);
        },
    )
}

fn layer_norm() -> Pair {
    let layer = LayerNormConfig::new(WIDTH).init::<B>(&Default::default());
    let decorated = LayerNormConfig::new(WIDTH).init::<Fp8Backend<B>>(&Default::default());
    let as_one = Fp8Config::off().with_attention(Some(AttentionPrecision::High));
    let name = format!("nn::LayerNorm of {LINEAR:?}, forward and backward");
    Pair::new(
        [&name, "the same with Fp8Config::with_attention"],
        passes(random(LINEAR), move |x| layer.forward(x)),
        passes(random(LINEAR), move |x| {
            let x = Tensor::from_primitive(TensorPrimitive::Float(x.into_primitive().tensor()));
            let y = as_one.scope(|| decorated.forward::<3>(x));
            Tensor::from_primitive(TensorPrimitive::Float(y.into_primitive().tensor()))
        }),
    )
}

fn gelu() -> Pair {
    let shape = [BATCH * ROWS, HIDDEN];
    let name = format!("activation::gelu of {shape:?}, forward and backward");
    Pair::new(
        [&name, "burn_fp8::fused::ops::gelu"],
        passes(random(shape), activation::gelu),
        passes(random(shape), burn_fp8::fused::ops::gelu),
    )
}

fn dropout() -> Pair {
    let layer = DropoutConfig::new(0.1).init();
    let name = format!("nn::Dropout of {LINEAR:?}, forward and backward");
    Pair::new(
        [&name, "burn_fp8::fused::ops::dropout"],
        passes(random(LINEAR), move |x| layer.forward(x)),
        passes(random(LINEAR), |x| burn_fp8::fused::ops::dropout(x, 0.1)),
    )
}

/// The step alone: the gradients are there.
fn adamw() -> Pair {
    const SIDE: usize = 1024;
    let layer = LinearConfig::new(SIDE, SIDE).with_bias(false).init::<B>(&Default::default());
    let mut optimizer = AdamWConfig::new().init();
    let grads = layer.forward(random([16, SIDE])).sum().backward();
    let grad = layer.weight.val().grad(&grads).expect("it was used");
    let id = layer.weight.id;
    let mut layer = Some(layer);
    let mut parts = [(); 3].map(|()| vec![0.1f32; SIDE * SIDE]);
    let gradient = vec![0.1f32; SIDE * SIDE];
    let name = format!("AdamW of {SIDE}×{SIDE} parameters");
    Pair::new(
        [&name, "one loop on all threads"],
        move || {
            let mut grads = GradientsParams::new();
            grads.register(id, grad.clone());
            let model = layer.take().expect("it comes back");
            layer = Some(optimizer.step(1e-4, model, grads));
        },
        move || {
            let [weights, first, second] = &mut parts;
            // Those of the tenth step.
            let corrections = [0.9f32, 0.999].map(|beta| 1.0 / (1.0 - beta.powi(10)));
            let moments = first.par_chunks_mut(TASK).zip(second.par_chunks_mut(TASK));
            let tasks = weights.par_chunks_mut(TASK).zip(moments).zip(gradient.par_chunks(TASK));
            tasks.for_each(|((weights, (first, second)), gradient)| {
                let moments = first.iter_mut().zip(second);
                for ((weight, (first, second)), g) in weights.iter_mut().zip(moments).zip(gradient)
                {
                    *first = 0.9 * *first + 0.1 * g;
                    *second = 0.999 * *second + 0.001 * g * g;
                    let corrected = (*first * corrections[0], *second * corrections[1]);
                    *weight -= 1e-4 * (corrected.0 / (corrected.1.sqrt() + 1e-5) + 1e-4 * *weight);
                }
            });
            black_box(&weights);
        },
    )
}
