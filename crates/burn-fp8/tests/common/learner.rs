//! What tests of Burn's `Learner` share: a model of two layers, samples, their loader, a training of several epochs, a renderer.

use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::nn::loss::{MseLoss, Reduction};
use burn::record::NamedMpkFileRecorder;
use burn::tensor::activation::relu;
use burn::train::metric::{LossMetric, MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, RegressionOutput,
    SupervisedTraining, TrainOutput, TrainStep, TrainingStrategy,
};
use burn_fp8::report::{Observatory, named};
use burn_fp8_train::policy::{self, LossScale};

use super::*;

pub const INPUTS: usize = 32;
pub const HIDDEN: usize = 24;
pub const TARGETS: usize = 16;
pub const BATCH: usize = 16;
/// Of an epoch.
pub const BATCHES: usize = 3;
/// Of a whole run.
pub const EPOCHS: usize = 4;

/// A layer of either kind.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has two of them")]
pub enum Layer<B: Backend> {
    Plain(Linear<B>),
    Fp8(Fp8Linear<B>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layers {
    Fp8,
    Plain,
}

impl<B: Fp8Matmul> Layer<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        match self {
            Self::Plain(layer) => layer.forward(x),
            Self::Fp8(layer) => layer.forward(x),
        }
    }

    /// The FP8 layer that it is.
    pub fn fp8(&self) -> &Fp8Linear<B> {
        match self {
            Self::Fp8(layer) => layer,
            Self::Plain(_) => panic!("a plain layer"),
        }
    }
}

#[derive(Module, Debug)]
pub struct Model<B: Backend> {
    pub first: Layer<B>,
    pub second: Layer<B>,
    #[module(skip)]
    pub loss_scale: LossScale,
    #[module(skip)]
    pub observatory: Option<Observatory>,
}

impl<B: Fp8Matmul> Model<B> {
    /// The same each time.
    pub fn new(layers: Layers) -> Self {
        let mut random = Random(3);
        let config = Fp8DotGeneralConfig::new().with_amax_history_length(4);
        let mut layer = |inputs: usize, outputs: usize| {
            let mut numbers =
                |count| random.units(count).iter().map(|x| x / 5.0).collect::<Vec<_>>();
            let (weight, bias) = (numbers(inputs * outputs), numbers(outputs));
            let linear = Linear {
                weight: Param::from_tensor(super::tensor(&weight, [inputs, outputs])),
                bias: Some(Param::from_tensor(super::tensor(&bias, [outputs]))),
            };
            match layers {
                Layers::Plain => Layer::Plain(linear),
                Layers::Fp8 => Layer::Fp8(Fp8Linear::from_linear(linear, &config)),
            }
        };
        let (first, second) = (layer(INPUTS, HIDDEN), layer(HIDDEN, TARGETS));
        Self { first, second, loss_scale: LossScale::none(), observatory: None }
    }

    fn regression(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let view = policy::cast_module_to_compute(self);
        let x = policy::cast_to_compute(batch.x);
        let hidden = || relu(named("first", || view.first.forward(x)));
        let output = policy::cast_to_output(named("second", || view.second.forward(hidden())));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl<B> TrainStep for Model<B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let step = || {
            let output = self.regression(batch);
            TrainOutput::new(self, self.loss_scale.scale(output.loss.clone()).backward(), output)
        };
        match &self.observatory {
            Some(observatory) => observatory.step(step),
            None => step(),
        }
    }
}

impl<B: Fp8Matmul> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.regression(batch)
    }
}

/// An input and what a model is to make of it.
pub type Sample = (Vec<f32>, Vec<f32>);

pub fn samples(seed: u64, batches: usize) -> Vec<Sample> {
    let mut random = Random(seed);
    (0..batches * BATCH).map(|_| (random.spread(INPUTS), random.spread(TARGETS))).collect()
}

#[derive(Clone, Debug)]
pub struct Batch<B: Backend> {
    pub x: Tensor<B, 2>,
    pub y: Tensor<B, 2>,
}

#[derive(Clone)]
struct Stack;

impl<B: Backend> Batcher<B, Sample, Batch<B>> for Stack {
    fn batch(&self, samples: Vec<Sample>, device: &B::Device) -> Batch<B> {
        let count = samples.len();
        let (x, y): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        let tensor = |rows: Vec<Vec<f32>>| {
            let width = rows[0].len();
            Tensor::from_data(TensorData::new(rows.concat(), [count, width]), device)
        };
        Batch { x: tensor(x), y: tensor(y) }
    }
}

pub fn loader<B: Backend>(samples: Vec<Sample>) -> Arc<dyn DataLoader<B, Batch<B>>> {
    DataLoaderBuilder::new(Stack).batch_size(BATCH).build(InMemDataset::new(samples))
}

/// How a run differs from the plain one.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// In all.
    pub epochs: usize,
    /// The epoch of an earlier run to go on from.
    pub checkpoint: Option<usize>,
    pub accumulation: Option<usize>,
    pub devices: Option<(usize, MultiDeviceOptim)>,
}

pub fn train<B, O>(
    folder: &Path,
    model: Model<B>,
    optimizer: O,
    options: Options,
) -> Model<B::InnerBackend>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    O: Optimizer<Model<B>, B> + 'static,
{
    let scheduler = CosineAnnealingLrSchedulerConfig::new(0.02, BATCHES * EPOCHS).init();
    let (train, valid) = (loader::<B>(samples(1, BATCHES)), loader(samples(2, 1)));
    let mut training = SupervisedTraining::new(folder, train, valid)
        .renderer(Shown::default())
        .with_application_logger(None)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_file_checkpointer(NamedMpkFileRecorder::<FullPrecisionSettings>::new())
        .num_epochs(options.epochs);
    if let Some(epoch) = options.checkpoint {
        training = training.checkpoint(epoch);
    }
    if let Some(batches) = options.accumulation {
        training = training.grads_accumulation(batches);
    }
    if let Some((devices, optim)) = options.devices {
        let strategy = ExecutionStrategy::multi(vec![B::Device::default(); devices], optim);
        training = training.with_training_strategy(TrainingStrategy::Default(strategy));
    }
    training.launch(Learner::new(model, optimizer, scheduler.expect("a valid schedule"))).model
}

/// A renderer that keeps the numbers of training, as text and as they are.
#[derive(Clone, Default)]
pub struct Shown(pub Arc<Mutex<Vec<(String, f64)>>>);

impl MetricsRendererTraining for Shown {
    fn update_train(&mut self, state: MetricState) {
        if let MetricState::Numeric(entry, value) = state {
            let value = match value {
                NumericEntry::Value(value) => value,
                NumericEntry::Aggregated { aggregated_value, .. } => aggregated_value,
            };
            self.0.lock().expect("unpoisoned").push((entry.serialized_entry.formatted, value));
        }
    }
    fn update_valid(&mut self, _: MetricState) {}
    fn render_train(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
    fn render_valid(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Shown {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for Shown {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}
