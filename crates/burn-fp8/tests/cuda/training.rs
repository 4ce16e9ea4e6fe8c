//! A model trained on tensor cores, and emulated, learns as the same model does on the host.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::activation::relu;

use crate::common::*;
use crate::host::Layer;
use crate::on_cuda_and_rehearsed;
use crate::support::{is_small, normal, rounded, ways};

const INPUTS: usize = 64;
const HIDDEN: usize = 128;
const CLASSES: usize = 16;
const BATCH: usize = 128;
const STEPS: u64 = 40;
const RATE: f64 = 0.05;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(dtype: FloatDType) -> Self {
        let device = Default::default();
        let layer = |seed, inputs: usize, outputs: usize| {
            let mut layer = LinearConfig::new(inputs, outputs).init::<B>(&device);
            let weight = tensor::<B, 2>(&weight(seed, inputs, outputs), [inputs, outputs]);
            layer.weight = Param::from_tensor(weight.cast(dtype));
            let bias = tensor::<B, 1>(&vec![0.0; outputs], [outputs]).cast(dtype);
            layer.bias = Some(Param::from_tensor(bias));
            layer
        };
        Self { first: layer(1, INPUTS, HIDDEN), second: layer(2, HIDDEN, CLASSES) }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(relu(self.first.forward(x)))
    }
}

fn weight(seed: u64, inputs: usize, outputs: usize) -> Vec<f32> {
    let scale = (2.0 / inputs as f32).sqrt();
    normal(seed, inputs * outputs).iter().map(|w| w * scale).collect()
}

/// Points around one centre for each class; row `i` belongs to class `i` modulo their number.
fn points(seed: u64) -> Vec<f32> {
    let centres = normal(77, CLASSES * INPUTS);
    let noise = normal(1000 + seed, BATCH * INPUTS);
    let point = |index: usize| centres[(index / INPUTS % CLASSES) * INPUTS + index % INPUTS];
    (0..BATCH * INPUTS).map(|index| point(index) + 0.7 * noise[index]).collect()
}

fn batch<B: Backend>(seed: u64, dtype: FloatDType) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let classes: Vec<i32> = (0..BATCH).map(|row| (row % CLASSES) as i32).collect();
    let classes = Tensor::from_data(TensorData::new(classes, [BATCH]), &Default::default());
    (tensor::<B, 2>(&points(seed), [BATCH, INPUTS]).cast(dtype), classes)
}

fn losses<B: AutodiffBackend>(config: Fp8Config, dtype: FloatDType) -> Vec<f32> {
    let state = DelayedState::new();
    let mut net = Net::<B>::new(dtype);
    let mut optimizer = SgdConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&Default::default());
    config.scope(|| {
        (0..STEPS)
            .map(|step| {
                state.step(|| {
                    let (x, classes) = batch::<B>(step, dtype);
                    let logits = net.forward(x).cast(FloatDType::F32);
                    let loss = loss.forward(logits, classes);
                    let grads = GradientsParams::from_grads(loss.backward(), &net);
                    net = optimizer.step(RATE, net.clone(), grads);
                    values(loss)[0]
                })
            })
            .collect()
    })
}

/// The losses of the same training on the host.
fn expected(recipe: Recipe, dtype: FloatDType) -> Vec<f32> {
    let mut first = Layer::new(weight(1, INPUTS, HIDDEN), HIDDEN, recipe, dtype);
    let mut second = Layer::new(weight(2, HIDDEN, CLASSES), CLASSES, recipe, dtype);
    let steps = (0..STEPS).map(|step| {
        let mut hidden = first.forward(&rounded(points(step), dtype));
        hidden.iter_mut().for_each(|x| *x = x.max(0.0));
        let logits = second.forward(&hidden);
        let mut loss = 0.0;
        let mut grad = vec![];
        for (row, logits) in logits.chunks(CLASSES).enumerate() {
            let powers: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
            let sum: f64 = powers.iter().sum();
            let share = |class: usize| powers[class] / sum;
            loss -= share(row % CLASSES).ln() / BATCH as f64;
            grad.extend((0..CLASSES).map(|class| {
                let target = if class == row % CLASSES { 1.0 } else { 0.0 };
                ((share(class) - target) / BATCH as f64) as f32
            }));
        }
        let mut grad = second.backward(&rounded(grad, dtype), RATE as f32);
        grad.iter_mut().zip(&hidden).for_each(|(grad, x)| *grad *= f32::from(*x > 0.0));
        first.backward(&grad, RATE as f32);
        loss as f32
    });
    steps.collect()
}

#[track_caller]
fn check<B: Backend, D: AutodiffBackend>(recipe: Recipe, dtype: FloatDType, what: &str) {
    let expected = expected(recipe, dtype);
    for way in ways::<B>() {
        let what = format!("{} {what}", way.name);
        let losses = losses::<D>(way.config.with_recipe(recipe), dtype);
        // Sums in another order move few codes. The host rounds to bf16 after each operation, Burn not after each; tensor cores keep less.
        let tolerance = match (way.sums, dtype) {
            (Sums::Of(_), FloatDType::F32) => 1e-3,
            _ => 0.05,
        };
        println!("{what}: {losses:.4?}, on the host {expected:.4?}");
        let last = losses[losses.len() - 1];
        assert!(last < losses[0] / 2.0, "{what}: it learns: {losses:?}");
        assert_eq!(losses.len(), expected.len(), "{what}");
        for (step, (loss, expected)) in losses.iter().zip(&expected).enumerate() {
            let difference = (loss - expected).abs();
            assert!(
                difference <= tolerance * expected.max(0.1),
                "{what} {step}: {loss}, not {expected}"
            );
        }
    }
}

fn follows_the_host<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Inner<B>: AutodiffBackend,
{
    let (current, delayed) = (Recipe::current(), Recipe::delayed());
    check::<B, Outer<B>>(current, FloatDType::F32, "current, f32");
    check::<B, Outer<B>>(delayed, FloatDType::BF16, "delayed, bf16");
    if is_small() {
        return;
    }
    check::<B, Outer<B>>(current, FloatDType::BF16, "current, bf16");
    check::<B, Outer<B>>(current.with_power_of_two(true), FloatDType::F32, "powers of two, f32");
    check::<B, Outer<B>>(delayed, FloatDType::F32, "delayed, f32");
    check::<B, Inner<B>>(current, FloatDType::F32, "the other order, current, f32");
}

on_cuda_and_rehearsed!([follows_the_host]);
