//! Files: read within limits, written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Fp8Error;

/// Reads a regular file of at most `limit` bytes. Other kinds are refused before they are opened: to open a pipe waits for its other end.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "read", path: path.into(), reason };
    require_regular(path).map_err(io)?;
    let mut bytes = Vec::new();
    // Bounded while reading: the file may grow meanwhile.
    let read = File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes));
    match read.map_err(io)? as u64 > limit {
        true => Err(Fp8Error::TooLarge { path: path.into(), limit }),
        false => Ok(bytes),
    }
}

fn require_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => {
            let reason = "it is a folder, a pipe or a device; give a regular file";
            Err(Error::new(ErrorKind::InvalidInput, reason))
        }
    }
}

/// Writes a file beside its place and moves it there: what was there before is replaced by the whole file or stays. A link stays one: what it leads to is replaced.
/// What is no regular file is refused: a file in its place would be its end.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "write", path: path.into(), reason };
    let place = place(path).map_err(io)?;
    let name = place
        .file_name()
        .ok_or_else(|| io(Error::new(ErrorKind::InvalidInput, "this is no name of a file")))?;
    // A name of its own for every writer.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let mut beside = name.to_os_string();
    beside.push(format!(".{}-{write}.partial", std::process::id()));
    let beside: PathBuf = place.with_file_name(beside);
    let written = File::create_new(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, &place));
    written.map_err(|reason| {
        let _ = fs::remove_file(&beside);
        io(reason)
    })
}

/// Where a file of this path lies, or will lie.
fn place(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(path.into()),
        Err(reason) => return Err(reason),
        Ok(_) => require_regular(path)?,
    }
    fs::canonicalize(path)
}
