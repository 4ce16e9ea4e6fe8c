//! Burn's `Learner`: checkpoints, gradient clipping, learning-rate schedules, accumulation, several devices, mixed precision.

use std::path::Path;

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::AdamW;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::train::MultiDeviceOptim;
use burn_fp8_train::LossScaledOptimizer;
use burn_fp8_train::policy::{DynamicLossScale, LossScale, LossScaleRule, LossScaleState};
use tempfile::tempdir;

use crate::common::learner::{EPOCHS, Layers, Model, Options, train};
use crate::common::models::parameters;
use crate::common::*;

type Plain = Autodiff<Flex>;

fn adamw<B>() -> OptimizerAdaptor<AdamW, Model<B>, B>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let clipping = GradientClippingConfig::Norm(0.5);
    AdamWConfig::new().with_grad_clipping(Some(clipping)).init()
}

/// Trains FP8 layers.
fn of_layers(folder: &Path, options: Options) -> Model<Flex> {
    train(folder, Model::<Plain>::new(Layers::Fp8), Fp8Optimizer::new(adamw()), options)
}

/// What a whole run ends with, one that was interrupted and resumed, and the interrupted one.
fn resumed<R>(run: impl Fn(&Path, Options) -> R) -> [R; 3] {
    let folder = || tempdir().expect("a temporary folder");
    let options = |epochs, checkpoint| Options { epochs, checkpoint, ..Options::default() };
    let whole = run(folder().path(), options(EPOCHS, None));
    let interrupted = folder();
    let half = run(interrupted.path(), options(EPOCHS / 2, None));
    [whole, run(interrupted.path(), options(EPOCHS, Some(EPOCHS / 2))), half]
}

#[test]
fn layers_train_and_resume_to_equal_bits() {
    let [whole, resumed, half] = resumed(of_layers);
    assert!(parameters(&whole) == parameters(&resumed), "a resumed run ends elsewhere");
    assert!(parameters(&whole) != parameters(&half), "two more epochs change nothing");
    // Twelve steps: every entry of a history of four is of this run, and scales have left 1.
    for state in [&whole.first.fp8().dot.input, &whole.second.fp8().dot.output_grad] {
        assert!(values(state.amax_history.val()).iter().all(|amax| *amax > 0.0));
        assert_ne!(values(state.scale.val()), [1.0]);
    }
}

#[test]
fn the_decorator_trains_and_resumes_to_equal_bits() {
    type B = Outer<Flex>;
    // The state is new each time, as in another process: what a checkpoint holds of it is in the optimizer's record.
    let run = |folder: &Path, options: Options, carried: bool| {
        let state = DelayedState::new();
        let mut optimizer = Fp8Optimizer::new(adamw::<B>());
        if carried {
            optimizer = optimizer.with_delayed_state(state.clone());
        }
        let config = Fp8Config::default().with_recipe(Recipe::delayed().with_history_length(4));
        let train = || train(folder, Model::<B>::new(Layers::Plain), optimizer, options);
        let model = state.scope(|| config.scope(train));
        (parameters(&model), state.export())
    };
    let [whole, resumed_run, _] = resumed(|folder, options| run(folder, options, true));
    assert_eq!(whole.1.sites.len(), 2);
    assert!(whole.1.sites[0].input.entries().iter().all(|amax| *amax > 0.0), "twelve steps");
    assert!(whole.0 == resumed_run.0, "a resumed run ends elsewhere");
    assert_eq!(whole.1, resumed_run.1);
    // The record matters: without it the histories start anew.
    let [_, forgetful, _] = resumed(|folder, options| run(folder, options, false));
    assert!(whole.0 != forgetful.0, "the carried state has no influence");
}

/// Under a policy with loss scaling: checkpoints hold its state.
fn resumes_in_half_precision<B>()
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    // So large that the first gradients are not finite in f16, and growing again.
    let rule = DynamicLossScale::default().with_loss_scale(2f32.powi(28)).with_factor(16.0);
    let rule = LossScaleRule::Dynamic(rule.with_period(5));
    let run = |folder: &Path, options: Options| -> (Vec<(String, Vec<u32>)>, LossScaleState) {
        let loss_scale = LossScale::new(rule).unwrap();
        let model = Model::<B> { loss_scale: loss_scale.clone(), ..Model::new(Layers::Plain) };
        let inner = Fp8Optimizer::new(AdamWConfig::new().init());
        let optimizer = LossScaledOptimizer::new(inner, loss_scale.clone());
        (parameters(&train(folder, model, optimizer, options)), loss_scale.export())
    };
    let [whole, resumed, half] = resumed(run);
    assert!(whole.0 == resumed.0, "a resumed run ends elsewhere");
    assert_eq!(whole.1, resumed.1);
    assert!(
        whole.0 != parameters(&Model::<B>::new(Layers::Plain)),
        "twelve steps change something"
    );
    let LossScaleRule::Dynamic(rule) = half.1.rule else { panic!("it is dynamic") };
    assert!(half.1.skipped > 0 && rule.counter > 0, "{:?}", half.1);
    assert!(whole.1.skipped < 12, "{:?}", whole.1);
}

#[test]
fn a_learner_trains_in_f16_and_resumes_to_equal_bits() {
    Policy::parse("p=f32,c=f16,o=f32").unwrap().scope(resumes_in_half_precision::<Plain>);
}

#[test]
fn a_learner_trains_in_f16_and_fp8_and_resumes_to_equal_bits() {
    let policy = Policy::parse("p=f32,c=f16,o=f32,m=fp8").unwrap();
    policy.scope(resumes_in_half_precision::<Outer<Flex>>);
}

/// The message of the panic that a training of one epoch ends with.
fn panic_of(train: impl FnOnce(&Path, Options) + Send + 'static, options: Options) -> String {
    let run = move || train(tempdir().expect("a folder").path(), Options { epochs: 1, ..options });
    let payload = std::thread::spawn(run).join().expect_err("the training must not go on");
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => (*payload.downcast::<&str>().expect("a message")).to_owned(),
    }
}

#[test]
fn accumulation_by_the_learner_is_stopped() {
    let options = Options { accumulation: Some(2), ..Options::default() };
    let message = panic_of(|folder, options| drop(of_layers(folder, options)), options);
    says(message, ["Fp8GradientsAccumulator"]);
}

#[test]
fn accumulation_of_one_batch_is_no_accumulation() {
    let [none, one] = [None, Some(1)].map(|accumulation| {
        let folder = tempdir().expect("a temporary folder");
        let options = Options { epochs: 1, accumulation, ..Options::default() };
        parameters(&of_layers(folder.path(), options))
    });
    assert!(none == one);
}

#[test]
fn several_devices_that_add_gradients_are_stopped() {
    for optim in [MultiDeviceOptim::OptimMainDevice, MultiDeviceOptim::OptimSharded] {
        // Flex has one device; the Learner adds the gradients of its two workers all the same.
        let options = Options { devices: Some((2, optim)), ..Options::default() };
        let message = panic_of(|folder, options| drop(of_layers(folder, options)), options);
        says(message, ["Fp8GradientsAccumulator"]);
    }
}

#[test]
fn a_plain_optimizer_is_stopped() {
    let train = |folder: &Path, options| {
        train(folder, Model::<Plain>::new(Layers::Fp8), adamw(), options);
    };
    says(panic_of(train, Options::default()), ["Fp8Optimizer"]);
}
