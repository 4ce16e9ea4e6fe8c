//! One training run, by Burn's Learner, the same for every precision and backend.

use std::fs::{self, File, TryLockError};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::data::dataloader::DataLoader;
use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::{Adaptor, ItemLazy, LossInput, LossMetric};
use burn::train::{InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep};
use burn_fp8::optim::{Fp8Optimizer, LossScaledOptimizer};
use burn_fp8::report::metric::{Fp8Metric, Statistic};
use burn_fp8::report::{Observatory, ObservatoryOptions};
use burn_fp8::{Fp8Matmul, Report};

use crate::checkpoint;
use crate::curve::{self, Course, Curve, Patience};
use crate::loader::{self, Batch, TrainLoader, ValidLoader};
use crate::model::{self, Gpt};
use crate::ngram;
use crate::precision::{Setup, for_compute};
use crate::probe::{self, StepContext};
use crate::progress::Silent;
use crate::recorder::WholeFileRecorder;
use crate::run::{self, Folder, Outcome, Settings};
use crate::size::Shape;
use crate::text::Text;

/// The learning rate rises over so many steps, and falls to a hundredth by a cosine over all.
const WARMUP: usize = 50;
const GRADIENT_NORM: f32 = 1.0;
const WEIGHT_DECAY: f32 = 0.1;

/// What to train, and where to leave it.
pub struct Plan<'a> {
    /// The text.
    pub text: &'a Text,
    /// The shape of the model and the length of the training.
    pub shape: Shape,
    /// What the folder will say of the run.
    pub settings: Settings,
    /// What it computes with.
    pub setup: Setup,
    /// Where it is kept.
    pub folder: Folder,
    /// Whether to go on with the run of the folder.
    pub resume: bool,
    /// Whether to show nothing on the way.
    pub quiet: bool,
    /// The log of what is measured of FP8 on the way; none where nothing is.
    pub observe: Option<PathBuf>,
}

/// A finished run.
pub struct Trained<B: Backend> {
    /// The model, without its graph.
    pub model: Gpt<B>,
    /// What it came to.
    pub outcome: Outcome,
    /// What watched it.
    pub observatory: Option<Observatory>,
}

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
        let (loss, gradients) = step.observe(|| {
            let model = for_compute::<B, _>(self);
            let loss = model.loss(inputs, targets);
            (loss.clone().inner(), step.setup.loss_scale().scale(loss).backward())
        });
        TrainOutput::new(self, gradients, Loss(loss))
    }
}

impl<B: Fp8Matmul> InferenceStep for Gpt<B> {
    type Input = Batch<B>;
    type Output = Loss<B>;

    fn step(&self, batch: Batch<B>) -> Loss<B> {
        let model = for_compute::<B, _>(self);
        Loss(model.loss(batch.inputs, batch.targets))
    }
}

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

/// Trains a model, or goes on with it, or loads it where it is trained.
///
/// # Errors
/// Where the folder holds another run, one that cannot be gone on with, or cannot be written.
pub fn train<B>(plan: Plan) -> Result<Trained<B::InnerBackend>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let Plan { text, shape, settings, setup, folder, resume, quiet, observe } = plan;
    let device = B::Device::default();
    setup.check::<B>(&device)?;
    let model = new_model::<B>(&shape, text.vocabulary.width(), settings.seed, &setup)?;
    // Nothing is written before all that was asked for is known to be possible.
    check(&folder, &settings, resume)?;
    if let Some(outcome) = run::read_json::<Outcome>(&folder.outcome())? {
        let model = model::load::<B::InnerBackend, _>(model.valid(), &folder.weights())
            .context("the run has ended, but its weights cannot be read; remove outcome.json and --resume makes them again from the last checkpoint")?;
        if observe.is_some() {
            eprintln!("warning: --observe: the run has ended already, so nothing is observed");
        }
        return Ok(Trained { model, outcome, observatory: None });
    }
    if let Some(log) = observe.as_ref().filter(|log| log.exists()) {
        bail!("--observe: {} is there already; remove it, or choose another name", log.display());
    }
    // Before what is there is read; a new run has no folder yet.
    let locked = resume.then(|| lock(&folder)).transpose()?;
    let points = curve::read(&folder.losses())?;

    let optimizer = optimizer::<B>(&setup);
    let scheduler = schedule(&shape, settings.epochs * shape.steps)?;
    let checkpoint = checkpoint::last_whole::<B, _, _>(
        &folder.checkpoints(),
        points.len(),
        &model,
        &optimizer,
        &scheduler,
    )?;
    let done = checkpoint.unwrap_or(0);
    if resume && !quiet {
        match checkpoint {
            Some(epoch) => eprintln!("going on from the checkpoint of epoch {epoch}"),
            None => eprintln!("there is no checkpoint yet: training from the beginning"),
        }
    }
    let first_step = (done * shape.steps) as u64;
    let options = |log| ObservatoryOptions::default().with_log(log).with_first_step(first_step);
    make_folder(folder.path())?;
    let _alone = match locked {
        Some(locked) => locked,
        None => lock(&folder)?,
    };
    // Only now: a log without its run would be in the way of the next attempt.
    let observatory =
        observe.map(|log| Observatory::new(options(log)).context("--observe")).transpose()?;
    // Burn would not tell that it could not. After the log: without it, checkpoints would be the remains of a run.
    make_folder(&folder.checkpoints())?;
    run::write_json(&folder.settings(), &settings)?;
    // Not into the picture that the Learner draws on a terminal.
    let is_plain = quiet || !std::io::stdout().is_terminal();
    let course = Course {
        epochs: settings.epochs,
        valid_batches: shape.valid_batches,
        quiet: quiet || !is_plain,
    };
    let curve = Curve::new(&folder.losses(), points[..done].to_vec(), course)?;
    // A run that was killed after its last epoch has nothing left to train, also where patience made it the last.
    let is_stuck = settings.patience.is_some_and(|epochs| curve::is_stuck(&points[..done], epochs));
    let last_epoch = if is_stuck { done } else { settings.epochs };
    let context = Arc::new(StepContext { setup: setup.clone(), observatory: observatory.clone() });
    let valid: Arc<[u8]> = text.valid.as_slice().into();
    let characters = text.vocabulary.len();
    let train_loader = TrainLoader::<B>::new(
        text.train.as_slice().into(),
        shape,
        settings.seed,
        done,
        context.clone(),
        device.clone(),
    );
    let (stopwatch, begun) = (train_loader.stopwatch(), train_loader.epochs());
    let valid_loader = ValidLoader::<B::InnerBackend>::new(valid, shape, context.clone(), device);
    let mut training = SupervisedTraining::new(
        folder.path(),
        Arc::new(train_loader) as Arc<dyn DataLoader<B, _>>,
        Arc::new(valid_loader),
    )
    .metric_train_numeric(LossMetric::<burn::backend::Flex>::new())
    .metric_valid_numeric(LossMetric::<burn::backend::Flex>::new())
    .with_metric_logger(curve.clone())
    .with_application_logger(None)
    .with_file_checkpointer(WholeFileRecorder::default())
    .with_checkpointing_strategy(checkpoint::Last(2))
    .num_epochs(last_epoch);
    if is_plain {
        training = training.renderer(Silent);
    }
    if let Some(observatory) = &observatory {
        for statistic in [Statistic::WorstSqnr, Statistic::Flushed, Statistic::Saturated] {
            let metric = Fp8Metric::new(observatory.clone(), statistic);
            training = training.metric_train_numeric(metric);
        }
    }
    if let Some(epoch) = checkpoint {
        training = training.checkpoint(epoch);
    }
    if let Some(epochs) = settings.patience {
        training = training.early_stopping(Patience { curve: curve.clone(), epochs });
    }
    let interrupter = training.interrupter();
    // A single device: the Learner runs the steps on this thread, where the scopes of the setup hold.
    let trained = setup.scope(|| training.launch(Learner::new(model, optimizer, scheduler)));
    drop(trained.renderer);
    if interrupter.should_stop() {
        let reason = interrupter.get_message().unwrap_or_else(|| "by the user".into());
        if reason.contains("Recorder error") {
            let place = folder.checkpoints();
            return Err(anyhow!("cannot write a checkpoint to {}: {reason}", place.display()));
        }
        return Err(anyhow!("interrupted: {reason}; go on with --resume"));
    }

    // Another thread may still be computing the last of them.
    let losses = curve.wait(begun.load(Ordering::Relaxed));
    let seconds = stopwatch.total().as_secs_f64();
    let trained_tokens = (losses.len() - done) * shape.steps * shape.batch * shape.context;
    // Not the memory of what follows, nor that of a resume, which has more than training to hold.
    let peak_memory = (done == 0).then(run::peak_memory).flatten();
    let untrained = new_model::<B>(&shape, text.vocabulary.width(), settings.seed, &setup)?;
    let step = products_of_a_step(&untrained, setup.anew()?, &shape, text);
    let step_flops = probe::step_flops(&shape, text.vocabulary.width());
    ensure!(
        3 * probe::forward_flops(&step) == step_flops,
        "the products of a step are others than the shape of the model says:\n{step}"
    );
    let pairs = || loader::valid_pairs(&text.valid, &shape);
    let outcome = Outcome {
        bigram_loss: ngram::bigram_loss(&text.train, pairs(), characters),
        unigram_loss: ngram::unigram_loss(&text.train, pairs().map(|pair| pair[1]), characters),
        tokens_per_second: (trained_tokens > 0).then(|| trained_tokens as f64 / seconds),
        seconds,
        peak_memory,
        fp8_share: probe::fp8_flops(&step) as f64 / step_flops as f64,
        resumed: done > 0,
        losses,
    };
    model::save::<B::InnerBackend, _>(&trained.model, &folder.weights())?;
    run::write_json(&folder.outcome(), &outcome)?;
    Ok(Trained { model: trained.model, outcome, observatory })
}

/// AdamW, which leaves the state of FP8 layers and of delayed and loss scaling to those that know of it, and carries it in its record.
fn optimizer<B: AutodiffBackend + Fp8Matmul>(
    setup: &Setup,
) -> LossScaledOptimizer<Fp8Optimizer<OptimizerAdaptor<AdamW, Gpt<B>, B>>>
where
    B::InnerBackend: Fp8Matmul,
{
    let adamw = AdamWConfig::new()
        .with_weight_decay(WEIGHT_DECAY)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(GRADIENT_NORM)));
    let optimizer = Fp8Optimizer::new(adamw.init());
    let optimizer = match setup.delayed() {
        Some(state) => optimizer.with_delayed_state(state.clone()),
        None => optimizer,
    };
    LossScaledOptimizer::new(optimizer, setup.loss_scale().clone())
}

/// The learning rate of each of so many steps.
fn schedule(shape: &Shape, steps: usize) -> Result<ComposedLrScheduler> {
    let peak = shape.learning_rate;
    ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(1.0 / WARMUP as f64, 1.0, WARMUP))
        .cosine(CosineAnnealingLrSchedulerConfig::new(peak, steps).with_min_lr(peak / 100.0))
        .init()
        .map_err(|error| anyhow!("learning rate: {error}"))
}

/// The matrix products of a training step, whose result is thrown away, and its state with it.
fn products_of_a_step<B>(model: &Gpt<B>, setup: Setup, shape: &Shape, text: &Text) -> Report
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let step = Arc::new(StepContext { setup, observatory: None });
    let starts: Vec<_> = (0..shape.batch).collect();
    let batch = loader::batch(&text.train, &starts, shape.context, &step, &B::Device::default());
    let (_, report) = step.setup.scope(|| burn_fp8::trace(|| drop(TrainStep::step(model, batch))));
    report
}

/// Checks that the folder is free for a new run, or holds the one to go on with.
fn check(folder: &Folder, settings: &Settings, resume: bool) -> Result<()> {
    let path = folder.path().display();
    let remains = [folder.losses(), folder.checkpoints(), folder.outcome(), folder.weights()];
    match run::read_json::<Settings>(&folder.settings())? {
        Some(begun) if resume => begun
            .check_same(settings)
            .with_context(|| format!("cannot go on with {path}; choose another --out")),
        Some(_) => Err(anyhow!(
            "{path} holds a run already: go on with it (--resume), or choose another --out"
        )),
        None if resume => Err(anyhow!("{path} holds no run to go on with (there is no run.json)")),
        // Or the new run would take them for its own.
        None => match remains.into_iter().find(|file| file.exists()) {
            Some(file) => Err(anyhow!(
                "{} is there, but no run.json that tells what run it is of; choose another --out",
                file.display()
            )),
            None => Ok(()),
        },
    }
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))
}

/// Makes the folder that of this process alone, until what is returned is dropped.
fn lock(folder: &Folder) -> Result<File> {
    let path = folder.lock();
    let lock = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let path = folder.path().display();
            return Err(anyhow!("another process trains in {path}: wait for it, or end it"));
        }
        // A file system without locks: nobody else is known of.
        Err(TryLockError::Error(_)) => {}
    }
    Ok(lock)
}
