//! Trains a transformer language model on characters in f32 and in FP8, and compares them.

mod args;
mod checkpoint;
mod child;
mod compare;
mod curve;
mod generate;
mod high;
mod loader;
mod model;
mod ngram;
mod precision;
mod probe;
mod run;
mod size;
mod text;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::{mem, thread};

use anyhow::{Context, Result, bail, ensure};
use burn::backend::Autodiff;
use burn_fp8::report::Observatory;
use burn_fp8::{Fp8Backend, Fp8Matmul};
use burn_fp8_train::peers::{self, PeerError, SharedPeers, Threads};
use examples_common::{OnBackend, print};
use rayon::ThreadPoolBuilder;
use serde::de::IgnoredAny;

pub use precision::{Arm, Precision};
pub use run::Moments;
pub use size::{Shape, Size};
pub use train::{Phase, characters_a_step, different_characters, training_steps};

use args::{Command, Sampling};
use model::Gpt;
use precision::Setup;
use run::{Folder, Outcome, PROGRAM, Settings};
use text::{Text, Vocabulary};

/// Bytes of stack of each thread that trains: those of the main one on Linux.
const STACK: usize = 8 << 20;

/// Does what the command line says; the exit code of the program.
pub fn main() -> ExitCode {
    examples_common::main(|args: args::Args| match &args.command {
        Command::Train(args) => args.common.backend.run(PROGRAM, args),
        Command::Generate(args) => generate(args),
        Command::Compare(args) => compare(args),
    })
}

/// All precisions run on one type: with FP8 off, the decorator is the backend that it wraps.
impl OnBackend for &args::Train {
    type Output = ExitCode;

    fn on<I: Fp8Matmul>(self) -> Result<ExitCode> {
        let joined = peers::join(self.wait)?;
        let Some(size) = self.peers else { return self.among::<I>(joined) };
        let started = joined.size();
        ensure!(
            started == 1,
            "--peers {size}: {started} processes train together already; leave out --peers or mpirun"
        );
        // Before there are so many threads.
        train::check_size(size as usize, self.common.size.shape().batch)?;
        let train = |peer: Threads| {
            // Peers in one pool would wait for each other's products, or do them.
            let threads = rayon::current_num_threads().div_ceil(size as usize);
            let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build()?;
            pool.install(|| self.among::<I>(Arc::new(peer)))
        };
        let mut peers = Threads::new(size as usize, self.wait).into_iter();
        let first = peers.next().expect("there is one");
        let (first, others) = thread::scope(|scope| {
            let others: Vec<_> = peers.map(|peer| scope.spawn(|| train(peer))).collect();
            let first = train(first);
            (first, others.into_iter().map(|other| other.join()).collect::<Vec<_>>())
        });
        // That another has gone says less than why it did.
        let is_lost = |error: &anyhow::Error| error.is::<PeerError>();
        let why = others.into_iter().flatten().filter_map(Result::err).find(|why| !is_lost(why));
        first.map_err(|error| if is_lost(&error) { why.unwrap_or(error) } else { error })
    }
}

impl args::Train {
    /// Trains as one of these. The first of them tells.
    fn among<I: Fp8Matmul>(&self, peers: SharedPeers) -> Result<ExitCode> {
        let text = Text::built_in()?;
        let size = self.common.size;
        let settings = Settings {
            size,
            precision: self.precision,
            high: self.high,
            backend: self.common.backend,
            moments: self.moments,
            seed: self.seed,
            epochs: self.common.epochs(),
            patience: IgnoredAny,
            vocabulary: text.vocabulary.to_string(),
            text: text.checksum,
        };
        let moments = match self.moments {
            Moments::F32 => "",
            Moments::Fp8 => "-moments8",
        };
        let precision = self.precision;
        let default =
            || format!("target/char-lm/{}-{precision}{moments}-{}", size.as_str(), self.seed);
        let setup = Setup::new(self.precision, self.high)?.among(peers.clone(), self.wire);
        // A prompt that cannot be used is told before the training, not after it.
        self.sampling.encode_prompt(&text.vocabulary).context("--prompt")?;
        let folder = Folder::new(self.out.clone().unwrap_or_else(|| PathBuf::from(default())));
        if self.observe.is_some() && !self.precision.is_fp8() {
            bail!("--observe looks at products in FP8, and {} has none", self.precision);
        }
        let plan = train::Plan {
            text: &text,
            shape: size.shape(),
            settings,
            setup: setup.clone(),
            folder: folder.clone(),
            resume: self.resume,
            quiet: self.common.quiet,
            observe: self.observe.clone(),
        };
        let trained = train::train::<Fp8Backend<Autodiff<I>>>(&plan);
        if trained.is_err() && self.peers.is_none() {
            // Without a goodbye: it would wait for the others, which wait for this one. mpirun ends them.
            mem::forget(peers);
        }
        let Some(trained) = trained? else { return Ok(ExitCode::SUCCESS) };
        let observed =
            trained.observatory.map(|observatory| observed(&observatory, self)).unwrap_or_default();
        if self.common.quiet {
            return Ok(ExitCode::SUCCESS);
        }
        if !trained.outcome.final_loss().is_finite() {
            eprintln!("warning: the training has diverged: its validation loss is no number");
        }
        let (sampling, context) = (&self.sampling, size.shape().context);
        // The run has ended and is kept, which is what was asked for: a model that gives no numbers costs the sample, not the rest.
        let sample =
            generate::generate(&trained.model, &setup, &text.vocabulary, context, sampling);
        let sample = sample.unwrap_or_else(|error| {
            eprintln!("warning: there is no sample: {error:#}");
            String::new()
        });
        let summary = summary(&trained.outcome);
        show(&format!("{summary}\n{sample}\n{observed}\n{}\n", folder.path().display()))
    }
}

/// A goal that is missed is no error of the program: exit code 1.
fn compare(args: &args::Compare) -> Result<ExitCode> {
    let (text, missed) = compare::compare(args)?;
    show(&text).map(|code| if missed { ExitCode::from(1) } else { code })
}

/// What was seen, as a table, and where the rest of it is.
fn observed(observatory: &Observatory, args: &args::Train) -> String {
    if let Some(failure) = observatory.failure() {
        eprintln!("warning: --observe: {failure}");
    }
    let log = args.observe.as_deref().unwrap_or(Path::new("")).display();
    format!("\n{}\ncargo xtask report {log}\n", observatory.report())
}

/// The numbers of a run in a few lines.
fn summary(outcome: &Outcome) -> String {
    let memory = match outcome.peak_memory {
        Some(bytes) => format!("peak memory {:.0} MiB", bytes as f64 / f64::from(1 << 20)),
        None => "peak memory unknown".into(),
    };
    let speed = match outcome.tokens_per_second {
        Some(speed) => format!("{speed:.0} characters a second"),
        None => "nothing was left to train".into(),
    };
    let together = match outcome.peers {
        0 | 1 => String::new(),
        peers => {
            let sent = outcome.sent_a_step as f64 / 1e6;
            format!("\n{peers} peers, each of which sends {sent:.2} MB a step")
        }
    };
    let epochs = match outcome.losses.len() {
        1 => "1 epoch".into(),
        count => format!("{count} epochs"),
    };
    format!(
        "validation loss {:.4} nats a character after {epochs}; the bigram model's is {:.4}\n\
         {speed}, {memory}, {:.1}% of the matrix FLOPs in FP8{together}\n",
        outcome.final_loss(),
        outcome.bigram_loss,
        100.0 * outcome.fp8_share
    )
}

fn generate(args: &args::Generate) -> Result<ExitCode> {
    let folder = Folder::new(&args.run);
    let settings: Settings = run::read_json(&folder.settings())?
        .with_context(|| format!("{} holds no run (there is no run.json)", args.run.display()))?;
    settings.backend.run(PROGRAM, Generation { folder, settings, sampling: &args.sampling })
}

/// What a trained model is to write.
struct Generation<'a> {
    folder: Folder,
    settings: Settings,
    sampling: &'a Sampling,
}

impl OnBackend for Generation<'_> {
    type Output = ExitCode;

    fn on<I: Fp8Matmul>(self) -> Result<ExitCode> {
        let Self { folder, settings: Settings { size, precision, high, vocabulary, .. }, sampling } =
            self;
        let place = || folder.settings().display().to_string();
        let vocabulary = Vocabulary::of(&vocabulary).with_context(place)?;
        let setup = Setup::new(precision, high).with_context(place)?;
        if !folder.weights().exists() {
            let path = folder.path().display();
            bail!("the run in {path} has not ended: train --resume finishes it");
        }
        let shape = size.shape();
        let model: Gpt<Fp8Backend<I>> = train::new_model(&shape, vocabulary.width(), 0, &setup)?;
        let outcome = run::read_json::<Outcome>(&folder.outcome())?;
        let crc32 = run::weights_crc32(&folder, outcome.as_ref());
        let model = model::load::<Fp8Backend<I>, _>(model, &folder.weights(), crc32)?;
        let text = generate::generate(&model, &setup, &vocabulary, shape.context, sampling)?;
        show(&(text + "\n"))
    }
}

/// Prints, and has succeeded.
fn show(text: &str) -> Result<ExitCode> {
    print(text).map(|()| ExitCode::SUCCESS)
}
