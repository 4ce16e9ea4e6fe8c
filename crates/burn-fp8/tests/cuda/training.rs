//! A model trained on tensor cores, and emulated on the same device, learns as it does on Flex, whose products have tests of their own.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::activation::relu;

use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{emulated, is_small, ways};

const INPUTS: usize = 64;
const HIDDEN: usize = 128;
const CLASSES: usize = 16;
const BATCH: usize = 128;
const STEPS: u64 = 40;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Net<B> {
    fn new(dtype: FloatDType) -> Self {
        let layer = |seed, inputs: usize, outputs: usize| {
            let weight = Random(seed).normals(inputs * outputs);
            let weight = tensor::<B, 2>(&weight, [inputs, outputs]) * (2.0 / inputs as f32).sqrt();
            let bias = Tensor::<B, 1>::zeros([outputs], &Default::default());
            linear(weight.cast(dtype).detach(), Some(bias.cast(dtype)))
        };
        Self { first: layer(1, INPUTS, HIDDEN), second: layer(2, HIDDEN, CLASSES) }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(relu(self.first.forward(x)))
    }
}

/// Points around one centre for each class; row `i` belongs to class `i` modulo their number.
fn batch<B: Backend>(seed: u64, dtype: FloatDType) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let centres = tensor::<B, 2>(&Random(77).normals(CLASSES * INPUTS), [CLASSES, INPUTS]);
    let noise = tensor::<B, 2>(&Random(1000 + seed).normals(BATCH * INPUTS), [BATCH, INPUTS]);
    let classes: Vec<i32> = (0..BATCH).map(|row| (row % CLASSES) as i32).collect();
    let classes = Tensor::from_data(TensorData::new(classes, [BATCH]), &Default::default());
    ((centres.repeat_dim(0, BATCH / CLASSES) + noise * 0.7).cast(dtype), classes)
}

fn losses<B: AutodiffBackend>(config: Fp8Config, dtype: FloatDType) -> Vec<f32> {
    let state = DelayedState::new();
    let mut net = Net::<B>::new(dtype);
    let mut optimizer = SgdConfig::new().init();
    let loss = CrossEntropyLossConfig::new().init(&Default::default());
    let mut step = |step| {
        let (x, classes) = batch::<B>(step, dtype);
        let logits = net.forward(x).cast(FloatDType::F32);
        let loss = loss.forward(logits, classes);
        let grads = GradientsParams::from_grads(loss.backward(), &net);
        net = optimizer.step(0.05, net.clone(), grads);
        values(loss)[0]
    };
    config.scope(|| (0..STEPS).map(|index| state.step(|| step(index))).collect())
}

#[track_caller]
fn check<B: Backend, D: AutodiffBackend, F: AutodiffBackend>(recipe: Recipe, dtype: FloatDType) {
    let expected = losses::<F>(emulated().with_recipe(recipe), dtype);
    for way in ways::<B>() {
        let what = format!("{} {recipe} {dtype:?}", way.name);
        let losses = losses::<D>(way.config.with_recipe(recipe), dtype);
        // Sums in another order move few codes. Backends round to bf16 after other operations; tensor cores keep less.
        let tolerance = match (way.sums, dtype) {
            (Sums::TensorCores, _) | (_, FloatDType::BF16) => 0.05,
            _ => 1e-3,
        };
        println!("{what}: {losses:.4?}, on Flex {expected:.4?}");
        assert!(losses[losses.len() - 1] < losses[0] / 2.0, "{what}: it learns: {losses:?}");
        for (step, (loss, expected)) in losses.iter().zip(&expected).enumerate() {
            let near = (loss - expected).abs() <= tolerance * expected.max(0.1);
            assert!(near, "{what} {step}: {loss}, not {expected}");
        }
    }
}

fn follows_flex<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Inner<B>: AutodiffBackend,
{
    let (current, delayed) = (Recipe::current(), Recipe::delayed());
    check::<B, Outer<B>, Outer<Flex>>(current, FloatDType::F32);
    check::<B, Outer<B>, Outer<Flex>>(delayed, FloatDType::BF16);
    if is_small() {
        return;
    }
    check::<B, Outer<B>, Outer<Flex>>(current, FloatDType::BF16);
    check::<B, Outer<B>, Outer<Flex>>(current.with_power_of_two(true), FloatDType::F32);
    check::<B, Outer<B>, Outer<Flex>>(delayed, FloatDType::F32);
    check::<B, Inner<B>, Inner<Flex>>(current, FloatDType::F32);
}

on_cuda_and_rehearsed!([follows_flex]);
