//! The Learner's checkpoints: how they are written, whole or not at all, and which of them a run can go on from.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::lr_scheduler::LrScheduler;
use burn::module::Module;
use burn::optim::Optimizer;
use burn::record::{
    FileRecorder, FullPrecisionSettings, NamedMpkBytesRecorder, NamedMpkFileRecorder, Recorder,
    RecorderError,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::checkpoint::{CheckpointingAction, CheckpointingStrategy};
use burn::train::metric::store::EventStoreClient;
use burn_fp8::Fp8Matmul;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::{self, Gpt};

/// The three files of a checkpoint, as the Learner names them.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// Keeps this many checkpoints, and has the training wait until one is written. With 0 there are none.
///
/// The oldest is deleted before the newest is written, never after it: whether that one gets whole is not known yet, and all others are.
///
/// The Learner writes checkpoints on threads of their own while it trains on. With Burn's Fusion that ends in "Should have handle for
/// tensor" where a step has taken a weight that such a thread has yet to read (<https://github.com/tracel-ai/burn/issues/4347>). A thread
/// takes the order to delete only after it has written, and the Learner waits until it is taken.
pub struct Last(pub usize);

impl Last {
    fn actions(&self, epoch: usize) -> Vec<CheckpointingAction> {
        if self.0 == 0 {
            return vec![];
        }
        let oldest = CheckpointingAction::Delete(epoch.saturating_sub(self.0));
        // There is no epoch 0, and deleting what is not there does nothing but wait.
        vec![oldest, CheckpointingAction::Save, CheckpointingAction::Delete(0)]
    }
}

impl CheckpointingStrategy for Last {
    fn checkpointing(&mut self, epoch: usize, _: &EventStoreClient) -> Vec<CheckpointingAction> {
        self.actions(epoch)
    }
}

type Inner = NamedMpkFileRecorder<FullPrecisionSettings>;

/// Burn's named MessagePack, written beside its place and then renamed: a process that is killed leaves no half file under the name of
/// a whole one.
#[derive(Clone, Debug, Default)]
pub struct WholeFileRecorder {
    inner: Inner,
    /// Shared with clones: the Learner tells that a file was not written, but hardly why.
    failure: Arc<Mutex<Option<String>>>,
}

impl WholeFileRecorder {
    /// The file that could not be written, and why.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The bytes of a checksum.
const TRAILER: usize = 4;

/// What is written behind the bytes of a file: their CRC-32, for a flipped bit of a weight is a weight as well.
fn trailer(bytes: &[u8]) -> [u8; TRAILER] {
    crc32fast::hash(bytes).to_le_bytes()
}

/// Where a file is while it is written.
fn part(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("part-{name}"))
}

impl<B: Backend> Recorder<B> for WholeFileRecorder {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        // Of the file's recorder, in memory: what writes to a disk loses why it could not.
        let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
        let mut bytes = Recorder::<B>::save_item(&recorder, item, ())?;
        bytes.extend(trailer(&bytes));
        let file = file.with_extension(<Self as FileRecorder<B>>::file_extension());
        let part = part(&file);
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, &file));
        written.map_err(|error| {
            // What is left of it fills the disk that was too small.
            let _ = fs::remove_file(&part);
            let failure = format!("{}: {error}", file.display());
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
            RecorderError::Unknown(failure)
        })
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        let extension = <Self as FileRecorder<B>>::file_extension();
        let bytes = fs::read(file.with_extension(extension))
            .map_err(|error| RecorderError::Unknown(error.to_string()))?;
        match bytes.split_last_chunk::<TRAILER>() {
            Some((bytes, end)) if *end == trailer(bytes) => {}
            _ => {
                let reason = "its checksum is not that of its bytes";
                return Err(RecorderError::DeserializeError(reason.into()));
            }
        }
        // MessagePack tells where it ends: Burn does not read the checksum behind it.
        Recorder::<B>::load_item(&self.inner, file)
    }
}

impl<B: Backend> FileRecorder<B> for WholeFileRecorder {
    fn file_extension() -> &'static str {
        <Inner as FileRecorder<B>>::file_extension()
    }
}

/// The newest epoch, at most `newest`, whose checkpoint is whole. Says on stderr which ones are passed over. `None` where a process was killed
/// before it had written the first one.
///
/// `newest` is the last epoch with losses. Training goes on to an epoch only when the checkpoint of the one before is written: of epochs with
/// losses of a later one, a missing file was there once.
///
/// # Errors
/// Where there are checkpoints and all of them are damaged, or their losses are gone, or where there are none although there were; names
/// the problem of the newest.
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
    let (mut damage, mut lost) = (None, None);
    for epoch in epochs(folder)? {
        let missing = PARTS.into_iter().find(|part| !file(folder, part, epoch).exists());
        let problem = match missing {
            Some(part) if epoch < newest => {
                let error = anyhow!("{part}-{epoch}.mpk is missing");
                let problem = error.to_string();
                damage.get_or_insert(error);
                problem
            }
            Some(part) => format!("{part}-{epoch}.mpk was not written"),
            None if epoch > newest => {
                // Losses are written last: a kill may cost those of one epoch, not more.
                lost = lost.or((epoch > newest + 1).then_some(epoch));
                "its losses were not written".into()
            }
            None => match check::<B, O, S>(folder, epoch, model, optimizer, scheduler) {
                Ok(()) => return Ok(Some(epoch)),
                Err(error) => {
                    let problem = format!("{error:#}");
                    damage.get_or_insert(error);
                    problem
                }
            },
        };
        let line = format!("the checkpoint of epoch {epoch} is passed over: {problem}");
        eprintln!("{}", line.replace(char::is_control, " "));
    }
    // In all of these, training from the beginning would write over what is there.
    let folder = folder.display();
    if let Some(problem) = damage {
        let message = format!("no checkpoint in {folder} is whole; train anew into another --out");
        return Err(problem.context(message));
    }
    if let Some(epoch) = lost {
        bail!(
            "{folder} has a checkpoint of epoch {epoch}, but losses.jsonl only {newest}; put the losses back, or train anew into another --out"
        );
    }
    ensure!(
        newest <= 1,
        "losses.jsonl has {newest} epochs, but {folder} no whole checkpoint; put the checkpoints back, or train anew into another --out"
    );
    Ok(None)
}

/// The files of a checkpoint.
pub fn files(folder: &Path, epoch: usize) -> [PathBuf; 3] {
    PARTS.map(|part| file(folder, part, epoch))
}

/// One of the files of a checkpoint.
fn file(folder: &Path, part: &str, epoch: usize) -> PathBuf {
    folder.join(format!("{part}-{epoch}.mpk"))
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
    let device = B::Device::default();
    let [model_file, optimizer_file, scheduler_file] = files(folder, epoch);
    load(&model_file, |recorder, file| {
        let record = Recorder::<B>::load(recorder, file, &device)?;
        let loaded = model.clone().load_record(record);
        let same = model::shapes::<B, _>(&loaded) == model::shapes::<B, _>(model);
        ensure!(same, "it holds a model of another shape");
        Ok(())
    })?;
    load(&optimizer_file, |recorder, file| {
        let record = Recorder::<B>::load(recorder, file, &device)?;
        drop(optimizer.clone().load_record(record));
        Ok(())
    })?;
    load(&scheduler_file, |recorder, file| {
        let record: S::Record<B> = Recorder::<B>::load(recorder, file, &device)?;
        drop(scheduler.clone().load_record(record));
        Ok(())
    })
}

/// Loads one file; what Burn panics about is an error here, and what it says about versions of Burn is left out.
fn load(file: &Path, load: impl FnOnce(&WholeFileRecorder, PathBuf) -> Result<()>) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let recorder = WholeFileRecorder::default();
    let problem = match quietly(AssertUnwindSafe(|| load(&recorder, file.to_owned()))) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => match error.downcast::<RecorderError>() {
            Ok(
                RecorderError::Unknown(message)
                | RecorderError::FileNotFound(message)
                | RecorderError::DeserializeError(message),
            ) => message,
            Err(error) => error.to_string(),
        },
        Err(message) => message,
    };
    Err(anyhow!("{name} is damaged: {}", problem.lines().next().unwrap_or_default()))
}

/// The hook for panics is that of the process: two that exchange it at once would lose one.
pub static HOOK: Mutex<()> = Mutex::new(());

/// Runs `f`; returns what it panics with, and prints nothing.
fn quietly<T>(f: impl FnOnce() -> T + panic::UnwindSafe) -> Result<T, String> {
    let _alone = HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let result = panic::catch_unwind(f);
    panic::set_hook(hook);
    result.map_err(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        message.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::thread::sleep;
    use std::time::Duration;

    use burn::backend::Flex;
    use burn::train::checkpoint::{AsyncCheckpointer, Checkpointer, CheckpointerError};

    use super::*;

    /// How many parts of each epoch are written.
    type Written = Arc<Mutex<HashMap<usize, usize>>>;

    /// One part; slow as a disk may be.
    struct Part {
        written: Written,
        time: Duration,
    }

    fn whole(written: &Written) -> usize {
        written.lock().expect("no panic").values().filter(|parts| **parts == PARTS.len()).count()
    }

    impl<B: Backend> Checkpointer<(), B> for Part {
        fn save(&self, epoch: usize, (): ()) -> Result<(), CheckpointerError> {
            sleep(self.time);
            assert!(whole(&self.written) >= 2.min(epoch - 1), "while epoch {epoch} is written");
            *self.written.lock().expect("no panic").entry(epoch).or_default() += 1;
            Ok(())
        }

        fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
            self.written.lock().expect("no panic").remove(&epoch);
            assert!(epoch == 0 || whole(&self.written) >= 2, "epoch {epoch} is deleted");
            Ok(())
        }

        fn restore(&self, _: usize, _: &B::Device) -> Result<(), CheckpointerError> {
            unreachable!("nothing is restored")
        }
    }

    /// On the threads that Burn writes on, in the order in which the Learner gives its orders.
    #[test]
    fn two_whole_checkpoints_are_always_there() {
        let written = Written::default();
        let times = [0, 20, 5].map(Duration::from_millis);
        let parts = times.map(|time| {
            AsyncCheckpointer::<(), Flex>::new(Part { written: written.clone(), time })
        });
        for epoch in 1..=6 {
            for action in Last(3).actions(epoch) {
                for part in &parts {
                    match action {
                        CheckpointingAction::Save => part.save(epoch, ()),
                        CheckpointingAction::Delete(epoch) => part.delete(epoch),
                    }
                    .expect("its thread has not panicked");
                }
            }
            assert_eq!(whole(&written), 3.min(epoch), "all are written when training goes on");
        }
    }
}
