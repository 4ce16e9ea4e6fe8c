//! One training run, by Burn's Learner, the same for every precision and backend.

mod among;
mod folder;
mod learner;
mod steps;

use std::fs::File;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::data::dataloader::DataLoader;
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::module::{AutodiffModule, Module};
use burn::optim::SimpleOptimizer;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::LossMetric;
use burn::train::{Interrupter, Learner, SupervisedTraining, TrainStep};
use burn_fp8::report::metric::{Fp8Metric, Statistic};
use burn_fp8::report::{Observatory, ObservatoryOptions};
use burn_fp8::{Fp8Matmul, Report};
use burn_fp8_train::share_weights;
use examples_common::{Origin, write_json};

pub use self::among::check_size;
pub use self::learner::new_model;
use self::learner::{Optimizer, Silent};
pub use self::steps::{Phase, training_steps};
use crate::checkpoint::{self, WholeFileRecorder};
use crate::curve::{self, Course, Curve, Point};
use crate::loader::{self, Loader};
use crate::model::{self, Gpt};
use crate::ngram;
use crate::precision::Setup;
use crate::probe::{self, StepContext};
use crate::run::{self, Folder, Moments, Outcome, PROGRAM, Settings};
use crate::size::{Shape, Size};
use crate::text::Text;

/// What to train, and where to leave it.
#[derive(Clone)]
pub struct Plan<'a> {
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

impl Plan<'_> {
    fn new_model<B: Fp8Matmul>(&self) -> Result<Gpt<B>> {
        new_model(&self.shape, self.text.vocabulary.width(), self.settings.seed, &self.setup)
    }

    /// Whether lines are printed instead of the picture that the Learner draws on a terminal, and asks for keys on one: mpirun makes a terminal of stdout alone.
    fn is_plain(&self) -> bool {
        self.quiet || !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal())
    }
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

/// What a folder allows.
enum Start {
    /// The run has ended already.
    Ended(Box<Outcome>),
    Begun(Begun),
}

/// A run that can begin: its folder is that of this process alone.
struct Begun {
    /// The epochs of the checkpoint that it goes on from; 0 where it begins anew.
    done: usize,
    /// The losses so far.
    curve: Curve,
    /// What watches it.
    observatory: Option<Observatory>,
    /// Unlocks the folder when it is dropped.
    _alone: File,
}

/// What the Learner made.
struct Learned<B: Backend> {
    model: Gpt<B>,
    losses: Vec<Point>,
    /// Seconds of training, validation not counted.
    seconds: f64,
    /// The most memory that was held until now, in bytes.
    peak_memory: Option<u64>,
    /// Bytes that this process has sent to the others, those of validation with them.
    sent: usize,
}

/// Trains a model, or goes on with it, or loads it where it is trained. Of several processes, the first returns it, and the others nothing.
///
/// # Errors
/// Where the folder holds another run, one that cannot be gone on with, or cannot be written, or where the processes train other things.
pub fn train<B>(plan: &Plan) -> Result<Option<Trained<B::InnerBackend>>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    match plan.settings.moments {
        Moments::F32 => train_with(plan, learner::adamw::<B>(&plan.setup, &plan.shape)),
        Moments::Fp8 => {
            let seed = plan.settings.seed;
            train_with(plan, learner::adamw8::<B>(&plan.setup, &plan.shape, seed))
        }
    }
}

fn train_with<B, S>(
    plan: &Plan,
    optimizer: Optimizer<S, B>,
) -> Result<Option<Trained<B::InnerBackend>>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend> + 'static,
{
    plan.setup.check::<B>(&B::Device::default())?;
    let peers = plan.setup.peers();
    let options = [plan.resume, plan.observe.is_some()];
    among::check(&plan.setup, plan.shape.batch, &plan.settings, options)?;
    let scheduler = learner::schedule(&plan.shape, plan.settings.epochs * plan.shape.steps)?;
    if peers.rank() > 0 {
        let Some(folder) = among::receive(peers)? else { return Ok(None) };
        let model = plan.new_model::<B>()?;
        let folder = Folder::new(folder.path());
        // What it sees is in the log of rank 0.
        let observe = plan.observe.as_ref().map(|_| folder.path().join("observed.jsonl"));
        let plan = Plan { folder, quiet: true, observe, ..plan.clone() };
        let begun = begin::<B, _, _>(&plan, &model, &optimizer, &scheduler)?;
        learn(&plan, &begun, model, optimizer, scheduler)?;
        return Ok(None);
    }
    let model = plan.new_model::<B>()?;
    if peers.size() > 1 {
        // Draws the weights, which others do not draw before: threads of one process have one generator.
        model.devices();
    }
    let begun = match start::<B, _, _>(plan, &model, &optimizer, &scheduler) {
        Ok(Start::Begun(begun)) => {
            among::hand_out(peers, &plan.folder, Some(begun.done))?;
            begun
        }
        ended => {
            among::hand_out(peers, &plan.folder, None)?;
            let Start::Ended(outcome) = ended? else { unreachable!("it has begun") };
            return finished(plan, model.valid(), *outcome).map(Some);
        }
    };
    let learned = learn(plan, &begun, model, optimizer, scheduler)?;
    let mut outcome = outcome::<B>(plan, begun.done, &learned)?;
    let weights = model::save::<B::InnerBackend, _>(&learned.model, &plan.folder.weights())?;
    outcome.weights_crc32 = Some(weights);
    // Last: it says that the run has ended.
    write_json(&plan.folder.outcome(), &outcome)?;
    Ok(Some(Trained { model: learned.model, outcome, observatory: begun.observatory }))
}

/// Looks into the folder of the run, and makes it ready to be written where there is something to train.
fn start<B, O, S>(plan: &Plan, model: &Gpt<B>, optimizer: &O, scheduler: &S) -> Result<Start>
where
    B: AutodiffBackend + Fp8Matmul,
    O: burn::optim::Optimizer<Gpt<B>, B>,
    S: LrScheduler,
{
    // Nothing is written before all that was asked for is known to be possible.
    folder::check(&plan.folder, &plan.settings, plan.resume)?;
    match run::read_json(&plan.folder.outcome())? {
        Some(outcome) => Ok(Start::Ended(Box::new(outcome))),
        None => begin(plan, model, optimizer, scheduler).map(Start::Begun),
    }
}

/// The model of a run that has ended already.
fn finished<B: Fp8Matmul>(plan: &Plan, model: Gpt<B>, outcome: Outcome) -> Result<Trained<B>> {
    let crc32 = run::weights_crc32(&plan.folder, Some(&outcome));
    let model = model::load::<B, _>(model, &plan.folder.weights(), crc32)
        .context("the run has ended, but its weights cannot be read; remove outcome.json and --resume makes them again from the last checkpoint")?;
    if plan.observe.is_some() {
        eprintln!("warning: --observe: the run has ended already, so nothing is observed");
    }
    Ok(Trained { model, outcome, observatory: None })
}

/// Looks where the run goes on from, and makes its folder ready to be written.
fn begin<B, O, S>(plan: &Plan, model: &Gpt<B>, optimizer: &O, scheduler: &S) -> Result<Begun>
where
    B: AutodiffBackend + Fp8Matmul,
    O: burn::optim::Optimizer<Gpt<B>, B>,
    S: LrScheduler,
{
    let Plan { shape, settings, folder, resume, quiet, observe, .. } = plan;
    if let Some(log) = observe.as_ref().filter(|log| log.exists()) {
        bail!("--observe: {} is there already; remove it, or choose another name", log.display());
    }
    // Before what is there is read; a new run has no folder yet.
    let locked = resume.then(|| folder::lock(folder)).transpose()?;
    let points = curve::read(&folder.losses())?;
    let checkpoint = checkpoint::last_whole::<B, _, _>(
        &folder.checkpoints(),
        points.len(),
        model,
        optimizer,
        scheduler,
    )?;
    if *resume && !quiet {
        match checkpoint {
            Some(epoch) => eprintln!("going on from the checkpoint of epoch {epoch}"),
            None => eprintln!("there is no checkpoint yet: training from the beginning"),
        }
    }
    let done = checkpoint.unwrap_or(0);
    run::make_folder(folder.path())?;
    let alone = match locked {
        Some(locked) => locked,
        None => folder::lock(folder)?,
    };
    // Only now: a log without its run would be in the way of the next attempt.
    let first_step = (done * shape.steps) as u64;
    let options = |log| ObservatoryOptions::default().with_log(log).with_first_step(first_step);
    let observatory =
        observe.as_ref().map(|log| Observatory::new(options(log)).context("--observe"));
    let observatory = observatory.transpose()?;
    if let Some(observatory) = &observatory {
        observatory.share(plan.setup.peers().clone());
    }
    // Burn would not tell that it could not. After the log: without it, checkpoints would be the remains of a run.
    run::make_folder(&folder.checkpoints())?;
    write_json(&folder.settings(), settings)?;
    let course = Course {
        epochs: settings.epochs,
        valid_batches: shape.valid_batches,
        // Not into the picture that the Learner draws on a terminal.
        quiet: *quiet || !plan.is_plain(),
    };
    let curve = Curve::new(&folder.losses(), points[..done].to_vec(), course)?;
    Ok(Begun { done, curve, observatory, _alone: alone })
}

/// Trains all epochs that are left.
fn learn<B, S>(
    plan: &Plan,
    begun: &Begun,
    model: Gpt<B>,
    optimizer: Optimizer<S, B>,
    scheduler: ComposedLrScheduler,
) -> Result<Learned<B::InnerBackend>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend> + 'static,
{
    let Plan { text, shape, settings, setup, folder, .. } = plan;
    let Begun { done, curve, observatory, .. } = begun;
    let peers = setup.peers();
    let model = share_weights(model, peers)?;
    let device = B::Device::default();
    let context = Arc::new(StepContext { setup: setup.clone(), observatory: observatory.clone() });
    let (train, valid) = (text.train.as_slice().into(), text.valid.as_slice().into());
    let start = (settings.seed, *done);
    let train_loader = Loader::<B>::train(train, *shape, start, context.clone(), device.clone());
    let (epochs_begun, stopwatch) = train_loader.progress().expect("it is for training");
    let valid_loader = Loader::<B::InnerBackend>::valid(valid, *shape, context, device);
    let recorder = WholeFileRecorder::default();
    let mut training = SupervisedTraining::new(
        folder.path(),
        Arc::new(train_loader) as Arc<dyn DataLoader<B, _>>,
        Arc::new(valid_loader),
    )
    .metric_train_numeric(LossMetric::<burn::backend::Flex>::new())
    .metric_valid_numeric(LossMetric::<burn::backend::Flex>::new())
    .with_metric_logger(curve.clone())
    .with_application_logger(None)
    .with_file_checkpointer(recorder.clone())
    .with_checkpointing_strategy(checkpoint::Last(if peers.rank() == 0 { 3 } else { 0 }))
    .num_epochs(settings.epochs);
    if plan.is_plain() {
        training = training.renderer(Silent);
    }
    if let Some(observatory) = observatory {
        for statistic in [Statistic::WorstSqnr, Statistic::Flushed, Statistic::Saturated] {
            let metric = Fp8Metric::new(observatory.clone(), statistic);
            training = training.metric_train_numeric(metric);
        }
    }
    if *done > 0 {
        training = training.checkpoint(*done);
    }
    let (interrupter, before) = (training.interrupter(), peers.traffic());
    // A single device: the Learner runs the steps on this thread, where the scopes of the setup hold.
    let launch = || training.launch(Learner::new(model, optimizer, scheduler));
    let trained = setup.scope(|| among::or_lost(launch))?;
    drop(trained.renderer);
    if let Some(failure) = recorder.failure() {
        bail!("cannot write a checkpoint: {failure}; make room and go on with --resume");
    }
    check_not_interrupted(&interrupter)?;
    Ok(Learned {
        model: trained.model,
        // Another thread may still be computing the last of them.
        losses: curve.wait(epochs_begun.load(Ordering::Relaxed)),
        seconds: stopwatch.load(Ordering::Relaxed) as f64 / 1e9,
        peak_memory: run::peak_memory(),
        sent: peers.traffic().since(before).bytes,
    })
}

fn check_not_interrupted(interrupter: &Interrupter) -> Result<()> {
    if !interrupter.should_stop() {
        return Ok(());
    }
    let reason = interrupter.get_message().unwrap_or_else(|| "by the user".into());
    Err(anyhow!("interrupted: {reason}; go on with --resume"))
}

/// What a run came to that went on after so many epochs.
fn outcome<B>(plan: &Plan, done: usize, learned: &Learned<B::InnerBackend>) -> Result<Outcome>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let Plan { text, shape, setup, .. } = plan;
    let losses = learned.losses.clone();
    let trained_steps = (losses.len() - done) * shape.steps;
    let trained_tokens = trained_steps * shape.batch * shape.context;
    let step = products_of_a_step(&plan.new_model::<B>()?, setup.anew()?, shape, text);
    let step_flops = probe::step_flops(shape, text.vocabulary.width());
    ensure!(
        3 * probe::forward_flops(&step) == step_flops,
        "the products of a step are others than the shape of the model says:\n{step}"
    );
    let (pairs, characters) = (|| loader::valid_pairs(&text.valid, shape), text.vocabulary.len());
    Ok(Outcome {
        losses,
        bigram_loss: ngram::bigram_loss(&text.train, pairs(), characters),
        unigram_loss: ngram::unigram_loss(&text.train, pairs().map(|pair| pair[1]), characters),
        tokens_per_second: (trained_tokens > 0).then(|| trained_tokens as f64 / learned.seconds),
        seconds: learned.seconds,
        // That of a resume has more than training to hold.
        peak_memory: learned.peak_memory.filter(|_| done == 0),
        fp8_share: probe::fp8_flops(&step) as f64 / step_flops as f64,
        resumed: done > 0,
        peers: setup.peers().size(),
        sent_a_step: learned.sent.checked_div(trained_steps).unwrap_or(0),
        weights_crc32: None,
        origin: Some(Origin::here(PROGRAM, &["--out"]).with_backend(plan.settings.backend)),
    })
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

/// Characters that a training step of a size sees.
pub fn characters_a_step(size: Size) -> usize {
    let shape = size.shape();
    shape.batch * shape.context
}

/// How many characters the built-in text knows, and with them the head of a model of it.
pub fn different_characters() -> usize {
    Text::built_in().expect("a text that is part of the program").vocabulary.width()
}
