//! A model trained on tensor cores learns as the same model does in emulation.

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burn_fp8::{DelayedState, Execution, Fp8Config, Fp8Matmul, Recipe};

use crate::common::{Inner, Outer, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{native, normal};

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
        let device = Default::default();
        let layer = |seed, inputs: usize, outputs: usize| {
            let scale = (2.0 / inputs as f32).sqrt();
            let weight: Vec<_> = normal(seed, inputs * outputs).iter().map(|w| w * scale).collect();
            let mut layer = LinearConfig::new(inputs, outputs).init::<B>(&device);
            layer.weight = Param::from_tensor(tensor(&weight, [inputs, outputs]).cast(dtype));
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

/// Points around one centre for each class.
fn batch<B: Backend>(seed: u64, dtype: FloatDType) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let centres = normal(77, CLASSES * INPUTS);
    let noise = normal(1000 + seed, BATCH * INPUTS);
    let point = |index: usize| centres[(index / INPUTS % CLASSES) * INPUTS + index % INPUTS];
    let x: Vec<_> = (0..BATCH * INPUTS).map(|index| point(index) + 0.7 * noise[index]).collect();
    let classes: Vec<i32> = (0..BATCH).map(|row| (row % CLASSES) as i32).collect();
    let classes = Tensor::from_data(TensorData::new(classes, [BATCH]), &Default::default());
    (tensor::<B, 2>(&x, [BATCH, INPUTS]).cast(dtype), classes)
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
                    net = optimizer.step(0.05, net.clone(), grads);
                    values(loss)[0]
                })
            })
            .collect()
    })
}

#[track_caller]
fn check<B: Backend, D: AutodiffBackend>(recipe: Recipe, dtype: FloatDType, what: &str) {
    let config = Fp8Config::default().with_recipe(recipe);
    let native = losses::<D>(config.with_execution(native::<B>().execution), dtype);
    let emulated = losses::<D>(config.with_execution(Execution::FakeQuantized), dtype);
    println!("{what}: native {native:.4?}, emulated {emulated:.4?}");
    let last = native[native.len() - 1];
    assert!(last < native[0] / 2.0, "{what}: it learns: {native:?}");
    for (step, (native, emulated)) in native.iter().zip(&emulated).enumerate() {
        let difference = (native - emulated).abs();
        assert!(difference <= 0.05 * emulated.max(0.1), "{what} {step}: {native} and {emulated}");
    }
}

fn follows_emulation<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
    Inner<B>: AutodiffBackend,
{
    let (current, delayed) = (Recipe::current(), Recipe::delayed());
    check::<B, Outer<B>>(current, FloatDType::F32, "current, f32");
    check::<B, Outer<B>>(current, FloatDType::BF16, "current, bf16");
    check::<B, Outer<B>>(current.with_power_of_two(true), FloatDType::F32, "powers of two, f32");
    check::<B, Outer<B>>(delayed, FloatDType::F32, "delayed, f32");
    check::<B, Outer<B>>(delayed, FloatDType::BF16, "delayed, bf16");
    check::<B, Inner<B>>(current, FloatDType::F32, "the other order, current, f32");
}

on_cuda_and_rehearsed!(follows_emulation);
