//! Regular files, read by ranges.

use std::fs::File;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

/// A regular file and its length when it was opened.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) length: u64,
    file: Ranges,
}

impl Source {
    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (file, length) =
            open_regular(path).map_err(|reason| CheckpointError::read(path, reason))?;
        Ok(Self { path: path.into(), length, file: Ranges::new(file) })
    }

    /// Fills `bytes` from this offset on.
    pub(crate) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), CheckpointError> {
        self.file.read_exact_at(bytes, offset).map_err(|reason| match reason.kind() {
            ErrorKind::UnexpectedEof => CheckpointError::file(
                &self.path,
                format!("an end of the file before byte {}", offset + bytes.len() as u64),
                format!("{} bytes, as when it was opened", self.length),
                "open the checkpoint again once nothing writes to it any more",
            ),
            _ => CheckpointError::read(&self.path, reason),
        })
    }
}

/// Opens a regular file, and tells its length. What is open is looked at, not what the path may lead to a moment later.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let mut options = File::options();
    options.read(true);
    // To open a pipe would wait for its other end.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata.len())),
        false => {
            let reason = "it is a folder, a pipe or a device; give a regular file";
            Err(Error::new(ErrorKind::InvalidInput, reason))
        }
    }
}

/// Reads a whole regular file of at most `limit` bytes: a configuration or an index.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let source = Source::open(path)?;
    if source.length > limit {
        let (found, expected) = (format!("{} bytes", source.length), format!("at most {limit}"));
        return Err(CheckpointError::file(path, found, expected, ""));
    }
    let mut bytes = vec![0; source.length as usize];
    source.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Reads that do not move a common place in the file: several threads may read at once.
#[cfg(unix)]
#[derive(Debug)]
struct Ranges(File);

#[cfg(unix)]
impl Ranges {
    fn new(file: File) -> Self {
        Self(file)
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, bytes, offset)
    }
}

/// The place in the file is moved for each read, by one thread at a time.
#[cfg(not(unix))]
#[derive(Debug)]
struct Ranges(std::sync::Mutex<File>);

#[cfg(not(unix))]
impl Ranges {
    fn new(file: File) -> Self {
        Self(std::sync::Mutex::new(file))
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        // Whoever panicked left a place that is set anew here.
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(bytes)
    }
}
