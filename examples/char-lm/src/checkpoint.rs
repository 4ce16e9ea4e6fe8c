//! Which of the Learner's checkpoints a run can go on from.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::lr_scheduler::LrScheduler;
use burn::module::Module;
use burn::optim::Optimizer;
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder, Recorder};
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::Fp8Matmul;

use crate::model::{self, Gpt};

/// How checkpoints are written.
pub type CheckpointRecorder = NamedMpkFileRecorder<FullPrecisionSettings>;

/// The three files of a checkpoint, as the Learner names them.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The newest epoch, at most `newest`, whose checkpoint is whole: one that was being written when the process was killed is not. Says on
/// stderr which ones are passed over. `None` where there is none at all.
///
/// # Errors
/// Where there are checkpoints and none of them can be used; names the problem of the newest.
pub fn last_whole<B, O, S>(
    folder: &Path,
    newest: usize,
    model: &Gpt<B>,
    optimizer: &O,
    scheduler: &S,
) -> Result<Option<usize>>
where
    B: AutodiffBackend + Fp8Matmul,
    O: Optimizer<Gpt<B>, B>,
    S: LrScheduler,
{
    let mut problems = vec![];
    for epoch in epochs(folder)? {
        let problem = match epoch > newest {
            true => Err(anyhow!("its losses were not written")),
            false => check::<B, O, S>(folder, epoch, model, optimizer, scheduler),
        };
        match problem {
            Ok(()) => return Ok(Some(epoch)),
            Err(error) => {
                let line = format!("the checkpoint of epoch {epoch} is passed over: {error:#}");
                eprintln!("{}", line.replace(char::is_control, " "));
                problems.push(error);
            }
        }
    }
    match problems.into_iter().next() {
        None => Ok(None),
        Some(problem) => Err(problem.context(format!(
            "no checkpoint in {} is whole; train anew into another --out",
            folder.display()
        ))),
    }
}

/// The epochs that there are files of, the newest first.
fn epochs(folder: &Path) -> Result<Vec<usize>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.with_context(|| format!("cannot read {}", folder.display()))?,
    };
    let mut epochs = vec![];
    for entry in entries {
        let name = entry.with_context(|| format!("cannot read {}", folder.display()))?.file_name();
        let name = name.to_string_lossy();
        let epoch = name.strip_suffix(".mpk").and_then(|name| name.split_once('-'));
        if let Some((part, epoch)) = epoch
            && PARTS.contains(&part)
            && let Ok(epoch) = epoch.parse()
        {
            epochs.push(epoch);
        }
    }
    epochs.sort_unstable_by(|a: &usize, b| b.cmp(a));
    epochs.dedup();
    Ok(epochs)
}

/// Loads a checkpoint as the Learner will, which panics where it cannot.
fn check<B, O, S>(
    folder: &Path,
    epoch: usize,
    model: &Gpt<B>,
    optimizer: &O,
    scheduler: &S,
) -> Result<()>
where
    B: AutodiffBackend + Fp8Matmul,
    O: Optimizer<Gpt<B>, B>,
    S: LrScheduler,
{
    let parameters = 4 * model.num_params() as u64;
    // Two moments for each parameter, and names, identifiers and the histories of delayed scaling.
    let limit = 4 * parameters + (64 << 20);
    let [model_file, optimizer_file, scheduler_file] =
        PARTS.map(|part| folder.join(format!("{part}-{epoch}.mpk")));
    for file in [&model_file, &optimizer_file, &scheduler_file] {
        let name = || file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let size = fs::metadata(file).with_context(name)?.len();
        ensure!(
            size <= limit,
            "{} takes {size} bytes, more than the {limit} that this model can take",
            name()
        );
    }
    let device = B::Device::default();
    let loaded: Gpt<B> = load(&model_file, |recorder, file| {
        Ok(model.clone().load_record(recorder.load(file, &device)?))
    })?;
    ensure!(
        model::shapes::<B, _>(&loaded) == model::shapes::<B, _>(model),
        "{} holds a model of another shape",
        model_file.display()
    );
    load(&optimizer_file, |recorder, file| {
        Ok(drop(optimizer.clone().load_record(recorder.load(file, &device)?)))
    })?;
    load(&scheduler_file, |recorder, file| {
        let record: S::Record<B> = recorder.load(file, &device)?;
        Ok(drop(scheduler.clone().load_record(record)))
    })
}

/// Loads one file; what Burn panics about is an error here.
fn load<T>(
    file: &PathBuf,
    load: impl FnOnce(&CheckpointRecorder, PathBuf) -> Result<T>,
) -> Result<T> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let recorder = CheckpointRecorder::new();
    let result = quietly(AssertUnwindSafe(|| load(&recorder, file.clone())));
    match result {
        Ok(result) => result.with_context(|| format!("{name} is damaged")),
        Err(message) => bail!("{name} is damaged: {message}"),
    }
}

/// Runs `f`; returns the first line of what it panics with, and prints nothing.
fn quietly<T>(f: impl FnOnce() -> T + panic::UnwindSafe) -> Result<T, String> {
    // The hook is that of the process: two that exchange it at once would lose one.
    static HOOK: Mutex<()> = Mutex::new(());
    let _alone = HOOK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let result = panic::catch_unwind(f);
    panic::set_hook(hook);
    result.map_err(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        message.lines().next().unwrap_or_default().to_owned()
    })
}
