//! Whether a folder may be trained in, and by whom.

use std::fs::{File, TryLockError};

use anyhow::{Context, Result, anyhow};

use crate::run::{self, Folder, Settings};

/// Checks that the folder is free for a new run, or holds the one to go on with.
///
/// # Errors
/// Where it holds another run or remains of one, none to go on with, or cannot be read.
pub fn check(folder: &Folder, settings: &Settings, resume: bool) -> Result<()> {
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

/// Makes the folder that of this process alone, until what is returned is dropped.
///
/// # Errors
/// Where another process trains in it, or it cannot be written.
pub fn lock(folder: &Folder) -> Result<File> {
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
