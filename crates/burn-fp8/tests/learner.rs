//! Burn's `Learner`: checkpoints, gradient clipping, learning-rate schedules, accumulation, several devices.

mod common;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::backend::{Autodiff, Flex};
use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, MultiDeviceOptim, RegressionOutput, TrainOutput,
    TrainStep, TrainingStrategy,
};
use burn_fp8::nn::{Fp8DotGeneralConfig, Fp8Linear};
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{DelayedState, Fp8Config, Fp8Matmul, Recipe};
use common::learner::{Batch, Sample, loader, training};
use common::{Outer, Random, bits, values};

const INPUTS: usize = 32;
const HIDDEN: usize = 24;
const TARGETS: usize = 16;
const BATCH: usize = 16;
const EPOCHS: usize = 4;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: Layer<B>,
    second: Layer<B>,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a model has two of them")]
enum Layer<B: Backend> {
    Plain(Linear<B>),
    Fp8(Fp8Linear<B>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Layers {
    #[default]
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
    fn fp8(&self) -> &Fp8Linear<B> {
        match self {
            Self::Fp8(layer) => layer,
            Self::Plain(_) => panic!("a plain layer"),
        }
    }
}

impl<B: Fp8Matmul> Model<B> {
    fn new(device: &B::Device, layers: Layers) -> Self {
        // Flex draws random numbers from one generator for all threads: models that must be equal take turns.
        static RANDOM_NUMBERS: Mutex<()> = Mutex::new(());
        let _alone = RANDOM_NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        B::seed(device, 3);
        let config = Fp8DotGeneralConfig::new().with_amax_history_length(4);
        let layer = |inputs, outputs| {
            let linear = LinearConfig::new(inputs, outputs).init::<B>(device);
            // Drawn now, in this order.
            linear.num_params();
            match layers {
                Layers::Plain => Layer::Plain(linear),
                Layers::Fp8 => Layer::Fp8(Fp8Linear::from_linear(linear, &config)),
            }
        };
        Self { first: layer(INPUTS, HIDDEN), second: layer(HIDDEN, TARGETS) }
    }

    fn regression(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let output = self.second.forward(relu(self.first.forward(batch.x)));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }

    fn bits(&self) -> Vec<u32> {
        let mut all = vec![];
        for layer in [&self.first, &self.second] {
            let weight = match layer {
                Layer::Plain(layer) => &layer.weight,
                Layer::Fp8(layer) => &layer.weight,
            };
            all.extend(bits(&values(weight.val())));
            let Layer::Fp8(layer) = layer else { continue };
            for state in [&layer.dot.input, &layer.dot.kernel, &layer.dot.output_grad] {
                all.extend(bits(&values(state.scale.val())));
                all.extend(bits(&values(state.amax_history.val())));
            }
        }
        all
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
        let output = self.regression(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Fp8Matmul> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.regression(batch)
    }
}

fn samples(seed: u64, count: usize) -> Vec<Sample> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.spread(INPUTS), random.spread(TARGETS))).collect()
}

/// How a run differs from the plain one.
#[derive(Clone, Copy, Default)]
struct Options {
    epochs: usize,
    checkpoint: Option<usize>,
    accumulation: Option<usize>,
    devices: Option<(usize, MultiDeviceOptim)>,
    layers: Layers,
}

fn train<B, O>(folder: &Path, optimizer: O, options: Options) -> Model<B::InnerBackend>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    O: Optimizer<Model<B>, B> + 'static,
{
    let model = Model::<B>::new(&Default::default(), options.layers);
    let scheduler = CosineAnnealingLrSchedulerConfig::new(0.02, 3 * EPOCHS).init();
    let mut training = training(
        folder,
        loader::<B>(samples(1, 3 * BATCH), BATCH),
        loader::<B::InnerBackend>(samples(2, BATCH), BATCH),
        options.epochs,
        options.checkpoint,
    );
    if let Some(batches) = options.accumulation {
        training = training.grads_accumulation(batches);
    }
    if let Some((devices, optim)) = options.devices {
        let devices = vec![B::Device::default(); devices];
        let strategy = ExecutionStrategy::multi(devices, optim);
        training = training.with_training_strategy(TrainingStrategy::Default(strategy));
    }
    let scheduler = scheduler.expect("a valid schedule");
    training.launch(Learner::new(model, optimizer, scheduler)).model
}

fn adamw<B>() -> burn::optim::adaptor::OptimizerAdaptor<burn::optim::AdamW, Model<B>, B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let clipping = GradientClippingConfig::Norm(0.5);
    AdamWConfig::new().with_grad_clipping(Some(clipping)).init()
}

#[test]
fn layers_train_and_resume_to_equal_bits() {
    type B = Autodiff<Flex>;
    let folder = || tempfile::tempdir().expect("a temporary folder");
    let run = |folder: &Path, epochs, checkpoint| {
        let options = Options { epochs, checkpoint, ..Options::default() };
        train::<B, _>(folder, Fp8Optimizer::new(adamw()), options)
    };
    let whole = run(folder().path(), EPOCHS, None);
    let interrupted = folder();
    run(interrupted.path(), 2, None);
    let resumed = run(interrupted.path(), EPOCHS, Some(2));
    assert!(whole.bits() == resumed.bits(), "a resumed run ends elsewhere");
    assert!(whole.bits() != run(folder().path(), 2, None).bits(), "two more epochs change nothing");
    // Twelve steps: every entry of a history of four is of this run, and scales have left 1.
    for state in [&whole.first.fp8().dot.input, &whole.second.fp8().dot.output_grad] {
        assert!(values(state.amax_history.val()).iter().all(|amax| *amax > 0.0));
        assert_ne!(values(state.scale.val()), [1.0]);
    }
}

#[test]
fn the_decorator_trains_and_resumes_to_equal_bits() {
    type B = Outer<Flex>;
    let folder = || tempfile::tempdir().expect("a temporary folder");
    // The state is new each time, as in another process: what a checkpoint holds of it is in the optimizer's record.
    let run = |folder: &Path, epochs, checkpoint, carried: bool| {
        let state = DelayedState::new();
        let mut optimizer = Fp8Optimizer::new(adamw::<B>());
        if carried {
            optimizer = optimizer.with_delayed_state(state.clone());
        }
        let options = Options { epochs, checkpoint, layers: Layers::Plain, ..Options::default() };
        let config = Fp8Config::default().with_recipe(Recipe::delayed().with_history_length(4));
        let model = state.scope(|| config.scope(|| train::<B, _>(folder, optimizer, options)));
        (model.bits(), state.export())
    };
    let (whole, whole_state) = run(folder().path(), EPOCHS, None, true);
    assert_eq!(whole_state.sites.len(), 2);
    assert!(whole_state.sites[0].input.entries().iter().all(|amax| *amax > 0.0), "twelve steps");
    let interrupted = folder();
    run(interrupted.path(), 2, None, true);
    let (resumed, resumed_state) = run(interrupted.path(), EPOCHS, Some(2), true);
    assert!(whole == resumed, "a resumed run ends elsewhere");
    assert_eq!(whole_state, resumed_state);
    // The record matters: without it the histories start anew.
    let interrupted = folder();
    run(interrupted.path(), 2, None, false);
    let (forgetful, _) = run(interrupted.path(), EPOCHS, Some(2), false);
    assert!(whole != forgetful, "the carried state has no influence");
}

/// The message of the panic that a training ends with.
fn panic_of(run: impl FnOnce() + Send + 'static) -> String {
    let payload = std::thread::spawn(run).join().expect_err("the training must not go on");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => (*payload.downcast::<&str>().expect("a message")).to_owned(),
    }
}

#[test]
fn accumulation_by_the_learner_is_stopped() {
    type B = Autodiff<Flex>;
    let message = panic_of(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options { epochs: 1, accumulation: Some(2), ..Options::default() };
        train::<B, _>(folder.path(), Fp8Optimizer::new(adamw()), options);
    });
    assert!(message.contains("Fp8GradientsAccumulator"), "{message}");
}

#[test]
fn accumulation_of_one_batch_is_no_accumulation() {
    type B = Autodiff<Flex>;
    let bits = [None, Some(1)].map(|accumulation| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options { epochs: 1, accumulation, ..Options::default() };
        train::<B, _>(folder.path(), Fp8Optimizer::new(adamw()), options).bits()
    });
    assert!(bits[0] == bits[1]);
}

#[test]
fn several_devices_that_add_gradients_are_stopped() {
    type B = Autodiff<Flex>;
    for optim in [MultiDeviceOptim::OptimMainDevice, MultiDeviceOptim::OptimSharded] {
        let message = panic_of(move || {
            let folder = tempfile::tempdir().expect("a temporary folder");
            // Flex has one device; the Learner adds the gradients of its two workers all the same.
            let devices = Some((2, optim));
            let options = Options { epochs: 1, devices, ..Options::default() };
            train::<B, _>(folder.path(), Fp8Optimizer::new(adamw()), options);
        });
        assert!(message.contains("Fp8GradientsAccumulator"), "{optim:?}: {message}");
    }
}

#[test]
fn a_plain_optimizer_is_stopped() {
    type B = Autodiff<Flex>;
    let message = panic_of(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = Options { epochs: 1, ..Options::default() };
        train::<B, _>(folder.path(), adamw(), options);
    });
    assert!(message.contains("Fp8Optimizer"), "{message}");
}
