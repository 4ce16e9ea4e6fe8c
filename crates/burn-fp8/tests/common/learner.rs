//! What tests of Burn's `Learner` share: samples, their loader, a training of several epochs, a renderer.

use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::LrScheduler;
use burn::module::AutodiffModule;
use burn::optim::Optimizer;
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn::train::metric::{LossMetric, MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn::train::{
    InferenceStep, LearningComponentsMarker, RegressionOutput, SupervisedTraining, TrainStep,
};

/// An input and what a model is to make of it.
pub type Sample = (Vec<f32>, Vec<f32>);

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

pub fn loader<B: Backend>(samples: Vec<Sample>, batch: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
    DataLoaderBuilder::new(Stack).batch_size(batch).build(InMemDataset::new(samples))
}

type Training<B, L, M, O> = SupervisedTraining<LearningComponentsMarker<B, L, M, O>>;

/// A training of `epochs` in all, from the checkpoint of an earlier one or from the start.
pub fn training<B, L, M, O>(
    folder: &Path,
    train: Arc<dyn DataLoader<B, Batch<B>>>,
    valid: Arc<dyn DataLoader<B::InnerBackend, Batch<B::InnerBackend>>>,
    epochs: usize,
    checkpoint: Option<usize>,
) -> Training<B, L, M, O>
where
    B: AutodiffBackend,
    L: LrScheduler + 'static,
    M: AutodiffModule<B> + TrainStep<Input = Batch<B>, Output = RegressionOutput<B>>,
    M: Display + 'static,
    M::InnerModule:
        InferenceStep<Input = Batch<B::InnerBackend>, Output = RegressionOutput<B::InnerBackend>>,
    O: Optimizer<M, B> + 'static,
{
    let training = Training::<B, L, M, O>::new(folder, train, valid)
        .renderer(Shown::default())
        .with_application_logger(None)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .with_file_checkpointer(NamedMpkFileRecorder::<FullPrecisionSettings>::new())
        .num_epochs(epochs);
    match checkpoint {
        Some(epoch) => training.checkpoint(epoch),
        None => training,
    }
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
