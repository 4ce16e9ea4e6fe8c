//! What Burn's Learner is made of: a step, the optimizer, the learning rate, and nothing to show.

use anyhow::{Result, anyhow};
use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, SimpleOptimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::{Adaptor, ItemLazy, LossInput, MetricDefinition};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use burn_fp8::Fp8Matmul;
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8_train::policy::cast_module_to_compute;
use burn_fp8_train::{LossScaledOptimizer, Moments8, Moments8Config, PeersOptimizer};

use crate::loader::Batch;
use crate::model::Gpt;
use crate::precision::Setup;
use crate::size::Shape;

/// The learning rate rises over so many steps, and falls to a hundredth by a cosine over all.
const WARMUP: usize = 50;
const CLIPPING: Option<GradientClippingConfig> = Some(GradientClippingConfig::Norm(1.0));
const WEIGHT_DECAY: f32 = 0.1;

/// The loss of a step, for the Learner's metrics.
pub struct Loss<B: Backend>(Tensor<B, 1>);

impl<B: Backend> ItemLazy for Loss<B> {
    type ItemSync = Loss<burn::backend::Flex>;

    fn sync(self) -> Self::ItemSync {
        Loss(Tensor::from_data(self.0.into_data(), &Default::default()))
    }
}

impl<B: Backend> Adaptor<LossInput<B>> for Loss<B> {
    fn adapt(&self) -> LossInput<B> {
        LossInput::new(self.0.clone())
    }
}

impl<B> TrainStep for Gpt<B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    type Input = Batch<B>;
    type Output = Loss<B::InnerBackend>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<Self::Output> {
        let Batch { inputs, targets, step } = batch;
        let sequences = inputs.dims()[0];
        let (loss, gradients) = step.observe(|| {
            let model = cast_module_to_compute(self);
            let loss = model.loss(inputs, targets);
            (loss.clone().inner(), step.setup.loss_scale().scale(loss).backward())
        });
        TrainOutput::new(self, gradients, Loss(step.of_all_peers(loss, sequences)))
    }
}

impl<B: Fp8Matmul> InferenceStep for Gpt<B> {
    type Input = Batch<B>;
    type Output = Loss<B>;

    fn step(&self, batch: Batch<B>) -> Loss<B> {
        let Batch { inputs, targets, step } = batch;
        let sequences = inputs.dims()[0];
        let loss = cast_module_to_compute(self).loss(inputs, targets);
        Loss(step.of_all_peers(loss, sequences))
    }
}

/// An optimizer of single tensors, wrapped for the state of FP8, for loss scaling, and for gradients of all peers.
pub type Optimizer<S, B> =
    PeersOptimizer<LossScaledOptimizer<Fp8Optimizer<OptimizerAdaptor<S, Gpt<B>, B>>>>;

/// A new model, as the seed draws it and the setup wants it.
///
/// # Errors
/// Where the setup names layers that the model does not have.
pub fn new_model<B: Fp8Matmul>(
    shape: &Shape,
    characters: usize,
    seed: u64,
    setup: &Setup,
) -> Result<Gpt<B>> {
    let device = B::Device::default();
    B::seed(&device, seed);
    setup.layers(Gpt::new(shape, characters, &device))
}

/// AdamW for the batches of a training, of which each peer has a part.
pub fn adamw<B>(setup: &Setup, shape: &Shape) -> Optimizer<AdamW, B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let adamw = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY).with_grad_clipping(CLIPPING);
    wrapped(adamw.init(), setup, shape)
}

/// The same with moments in FP8, rounded at random.
pub fn adamw8<B>(setup: &Setup, shape: &Shape, seed: u64) -> Optimizer<Moments8, B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let adamw = Moments8Config::adamw().with_weight_decay(WEIGHT_DECAY.into());
    let adamw = adamw.with_seed(Some(seed));
    wrapped(adamw.with_grad_clipping(CLIPPING).init(), setup, shape)
}

/// Leaves the state of FP8 layers and of delayed and loss scaling to those that know of it, which carry it in their record.
fn wrapped<B, S>(
    optimizer: OptimizerAdaptor<S, Gpt<B>, B>,
    setup: &Setup,
    shape: &Shape,
) -> Optimizer<S, B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend>,
{
    let optimizer = Fp8Optimizer::new(optimizer);
    let optimizer = match setup.delayed() {
        Some(state) => optimizer.with_delayed_state(state.clone()),
        None => optimizer,
    };
    let optimizer = LossScaledOptimizer::new(optimizer, setup.loss_scale().clone());
    let optimizer = PeersOptimizer::new(optimizer, setup.peers().clone()).with_wire(setup.wire());
    // There is a checkpoint after each epoch.
    let mut optimizer = optimizer.with_feedback_over(shape.steps);
    optimizer.set_samples(setup.part(shape.batch).len());
    optimizer
}

/// The learning rate of each of so many steps.
pub fn schedule(shape: &Shape, steps: usize) -> Result<ComposedLrScheduler> {
    let peak = shape.learning_rate;
    ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(1.0 / WARMUP as f64, 1.0, WARMUP))
        .cosine(CosineAnnealingLrSchedulerConfig::new(peak, steps).with_min_lr(peak / 100.0))
        .init()
        .map_err(|error| anyhow!("learning rate: {error}"))
}

/// What is shown where there is no terminal to draw on: nothing. The curve prints a line an epoch.
pub struct Silent;

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, _: MetricState) {}
    fn update_valid(&mut self, _: MetricState) {}
    fn render_train(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
    fn render_valid(&mut self, _: TrainingProgress, _: Vec<ProgressType>) {}
}

impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    fn render_test(&mut self, _: EvaluationProgress, _: Vec<ProgressType>) {}
}

impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}
