//! Mixed precision and loss scaling in Burn's `Learner`: its checkpoints hold the state of loss scaling.

mod common;

use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::lr_scheduler::constant::ConstantLr;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{InferenceStep, Learner, RegressionOutput, TrainOutput, TrainStep};
use burn_fp8::optim::{Fp8Optimizer, LossScaledOptimizer};
use burn_fp8::policy::{self, DynamicLossScale, LossScale, LossScaleRule, LossScaleState, Policy};
use common::learner::{Batch, Sample, loader, training};
use common::models::{initialized, parameters};
use common::{Outer, Random};

const INPUTS: usize = 24;
const TARGETS: usize = 16;
const BATCH: usize = 16;
const BATCHES: usize = 3;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
    #[module(skip)]
    loss_scale: LossScale,
}

impl<B: Backend> Model<B> {
    fn regression(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let view = policy::cast_module_to_compute(self);
        let x = view.first.forward(policy::cast_to_compute(batch.x));
        let output = policy::cast_to_output(view.second.forward(relu(x)));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.regression(batch);
        TrainOutput::new(self, self.loss_scale.scale(output.loss.clone()).backward(), output)
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.regression(batch)
    }
}

fn samples(seed: u64, batches: usize) -> Vec<Sample> {
    let mut random = Random(seed);
    let mut numbers = |count| (0..count).map(|_| random.unit()).collect::<Vec<f32>>();
    (0..batches * BATCH).map(|_| (numbers(INPUTS), numbers(TARGETS))).collect()
}

/// Trains `epochs` in all, from the checkpoint of an earlier one or from the start.
fn train<B: AutodiffBackend>(
    folder: &Path,
    model: &Model<B>,
    epochs: usize,
    checkpoint: Option<usize>,
) -> (Vec<(String, Vec<u32>)>, LossScaleState) {
    // So large that the first gradients are not finite in f16, and growing again.
    let rule = DynamicLossScale::default().with_loss_scale(2f32.powi(28)).with_factor(16.0);
    let loss_scale = LossScale::new(LossScaleRule::Dynamic(rule.with_period(5))).unwrap();
    let model = Model { loss_scale: loss_scale.clone(), ..model.clone() };
    let inner = Fp8Optimizer::new(AdamWConfig::new().init());
    let optimizer = LossScaledOptimizer::new(inner, loss_scale.clone());
    let training = training(
        folder,
        loader::<B>(samples(1, BATCHES), BATCH),
        loader::<B::InnerBackend>(samples(2, 1), BATCH),
        epochs,
        checkpoint,
    );
    let model = training.launch(Learner::new(model, optimizer, ConstantLr::from(0.01))).model;
    (parameters(&model), loss_scale.export())
}

fn resumes<B: AutodiffBackend>() {
    let device = Default::default();
    let model = initialized(Model::<B> {
        first: LinearConfig::new(INPUTS, 32).init(&device),
        second: LinearConfig::new(32, TARGETS).init(&device),
        loss_scale: LossScale::none(),
    });
    let folder = || tempfile::tempdir().expect("a temporary folder");
    let whole = train(folder().path(), &model, 4, None);
    let interrupted = folder();
    let (_, half_way) = train(interrupted.path(), &model, 2, None);
    let resumed = train(interrupted.path(), &model, 4, Some(2));
    assert!(whole.0 == resumed.0, "a resumed run ends elsewhere");
    assert_eq!(whole.1, resumed.1);
    assert!(whole.0 != parameters(&model), "twelve steps change something");
    let LossScaleRule::Dynamic(rule) = half_way.rule else { panic!("it is dynamic") };
    assert!(half_way.skipped > 0 && rule.counter > 0, "{half_way:?}");
    assert!(whole.1.skipped < 12, "{:?}", whole.1);
}

#[test]
fn a_learner_trains_in_f16_and_resumes_to_equal_bits() {
    Policy::parse("p=f32,c=f16,o=f32").unwrap().scope(resumes::<Autodiff<Flex>>);
}

#[test]
fn a_learner_trains_in_f16_and_fp8_and_resumes_to_equal_bits() {
    Policy::parse("p=f32,c=f16,o=f32,m=fp8").unwrap().scope(resumes::<Outer<Flex>>);
}
