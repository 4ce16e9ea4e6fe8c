//! Where a training writes: found out before it, and made up for after it.

use std::path::{Path, absolute};
use std::{fs, io};

use anyhow::{Context, Result, ensure};

/// Whether a model can be written to a folder, which is new or empty: before it is trained, not after.
///
/// # Errors
/// Where it cannot.
pub fn check_out(folder: &Path) -> Result<()> {
    check_free(folder)?;
    check_room(folder, 0)
}

pub(super) fn check_free(folder: &Path) -> Result<()> {
    let filled = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(!filled, "{} is there already, and not empty: choose another folder", folder.display());
    Ok(())
}

/// Whether so many bytes can be written there, be it a folder that is still to be made: they are written beside it, and are gone again.
pub(super) fn check_room(folder: &Path, bytes: usize) -> Result<()> {
    let write = || {
        let path = absolute(folder)?;
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(&path);
        let mut file = tempfile::tempfile_in(there)?;
        io::copy(&mut io::Read::take(io::repeat(0), bytes as u64), &mut file)
    };
    let what = if bytes > 0 { format!("{bytes} bytes ") } else { String::new() };
    let found = write().map(|_| ());
    found.with_context(|| format!("cannot write {what}to {}", folder.display()))
}

/// Writes what a training gave to a folder. Where that fails, it is written to a new folder for temporary files, which the error names: hours may have gone into it.
pub(super) fn keep(folder: &Path, write: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let Err(error) = write(folder) else { return Ok(()) };
    let elsewhere = || {
        let prefix = folder.file_name().unwrap_or_default();
        let other = tempfile::Builder::new().prefix(prefix).tempdir()?;
        write(other.path())?;
        anyhow::Ok(other.keep())
    };
    Err(error.context(match elsewhere() {
        Ok(other) => {
            let (folder, other) = (folder.display(), other.display());
            format!("what was trained is in {other}, as it cannot be written to {folder}")
        }
        Err(other) => format!("what was trained is lost; nor can it be kept elsewhere ({other:#})"),
    }))
}
