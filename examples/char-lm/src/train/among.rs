//! A run of several peers. Rank 0 alone has the run's folder; the others get from it what they go on with, and leave nothing.

use std::any::Any;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Once, PoisonError};

use anyhow::{Context, Result, ensure};
use burn_fp8_train::peers::{PeerError, SharedPeers};
use tempfile::TempDir;

use crate::checkpoint;
use crate::precision::Setup;
use crate::run::{self, Folder, Settings};

/// Checks that all peers train the same, with `--resume` and `--observe` on all or on none, and that each has something of a batch of so many sequences.
///
/// # Errors
/// Where they do not; names what differs.
pub fn check(setup: &Setup, batch: usize, settings: &Settings, options: [bool; 2]) -> Result<()> {
    let peers = setup.peers();
    check_size(peers.size(), batch)?;
    let settings = serde_json::to_string_pretty(settings)?;
    let [resume, observe] = options;
    let wire = setup.wire();
    peers
        .agree(&format!("{settings}\n--resume {resume}\n--observe {observe}\n--wire {wire:?}\n"))?;
    Ok(())
}

/// Checks that each of so many peers has something of a batch of so many sequences.
///
/// # Errors
/// Where there are more peers.
pub fn check_size(peers: usize, batch: usize) -> Result<()> {
    ensure!(
        peers <= batch,
        "{peers} peers cannot divide a batch of {batch} sequences: start {batch} at most"
    );
    Ok(())
}

/// Tells the other peers after how many epochs they go on, and gives them the files for it; `None` where there is nothing to train.
///
/// # Errors
/// Where a file cannot be read, which the others get to know as well, or the peers have lost each other.
pub fn hand_out(peers: &SharedPeers, folder: &Folder, done: Option<usize>) -> Result<()> {
    if peers.size() == 1 {
        return Ok(());
    }
    let read =
        |path: PathBuf| fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    let contents: Result<Vec<_>> = match done {
        Some(done @ 1..) => files(folder, done).into_iter().map(read).collect(),
        _ => Ok(vec![]),
    };
    let done = done.filter(|_| contents.is_ok());
    peers.gather(done.map_or(vec![], |done| done.to_string().into_bytes()))?;
    for content in contents? {
        peers.gather(content)?;
    }
    Ok(())
}

/// What rank 0 hands out, in a folder that is gone when it is dropped; `None` where there is nothing to train.
///
/// # Errors
/// Where it cannot be written, or the peers have lost each other.
pub fn receive(peers: &SharedPeers) -> Result<Option<TempDir>> {
    let from_first = || -> Result<Vec<u8>> { Ok(peers.gather(vec![])?.swap_remove(0)) };
    let done = String::from_utf8(from_first()?)?;
    if done.is_empty() {
        return Ok(None);
    }
    let done: usize = done.parse()?;
    let place = tempfile::tempdir().context("no temporary folder for this process")?;
    let folder = Folder::new(place.path());
    run::make_folder(&folder.checkpoints())?;
    if done > 0 {
        for path in files(&folder, done) {
            let content = from_first()?;
            fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(Some(place))
}

/// Trains. Burn's Learner has no way out for an error: a step whose peers have gone or do not answer panics, which becomes an error here. Such panics are not reported any more in this process.
///
/// # Errors
/// [`PeerError`], in the words of the panic.
pub fn or_lost<R>(train: impl FnOnce() -> R) -> Result<R> {
    static QUIET: Once = Once::new();
    let said = |panic: &dyn Any| {
        let message: &String = panic.downcast_ref()?;
        // As a `PeerError` ends, whoever met the peers.
        message.ends_with("start again from the last checkpoint").then(|| message.clone())
    };
    QUIET.call_once(|| {
        let _alone = checkpoint::HOOK.lock().unwrap_or_else(PoisonError::into_inner);
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if said(panic.payload()).is_none() {
                report(panic);
            }
        }));
    });
    match panic::catch_unwind(AssertUnwindSafe(train)) {
        Ok(trained) => Ok(trained),
        Err(panic) => match said(&*panic) {
            Some(message) => Err(PeerError::Setup(format!("{message}, with --resume")).into()),
            None => panic::resume_unwind(panic),
        },
    }
}

/// What a run goes on with after so many epochs.
fn files(folder: &Folder, done: usize) -> Vec<PathBuf> {
    let checkpoint = checkpoint::files(&folder.checkpoints(), done);
    [folder.losses()].into_iter().chain(checkpoint).collect()
}
