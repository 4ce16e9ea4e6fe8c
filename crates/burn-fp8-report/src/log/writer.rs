//! Writing a log.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Header, LogError, SiteEntry};

/// A log that is being written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
}

impl Writer {
    /// Creates a log and writes its header.
    ///
    /// # Errors
    /// [`LogError::Io`], also where the file exists: a log is that of one run. [`LogError::Unreadable`] for a header with zeros, or of
    /// another version.
    pub fn create(path: &Path, header: &Header) -> Result<Self, LogError> {
        let unreadable = |reason| LogError::Unreadable { path: path.into(), reason };
        header.check().map_err(unreadable)?;
        let file = File::create_new(path).map_err(|reason| LogError::Io {
            action: "create",
            path: path.into(),
            reason,
        })?;
        let mut writer = Self { file, path: path.into() };
        writer.write(&[header])?;
        Ok(writer)
    }

    /// Appends the entries of a step, in one write: of a run that is killed, the log has all steps but perhaps the last line.
    ///
    /// What [`read`](super::read) would not take, such as a scale of 0, is left out, so that the rest can be read.
    ///
    /// # Errors
    /// [`LogError::Io`], else [`LogError::Unreadable`] for the first entry left out; the log is open for more.
    pub fn append(&mut self, entries: &[SiteEntry]) -> Result<(), LogError> {
        let (mut sound, mut refused) = (Vec::new(), None);
        for entry in entries {
            match entry.check() {
                Ok(()) => sound.push(entry),
                Err(reason) => {
                    refused.get_or_insert(reason);
                }
            }
        }
        self.write(&sound)?;
        let unreadable = |reason| LogError::Unreadable { path: self.path.clone(), reason };
        refused.map(unreadable).map_or(Ok(()), Err)
    }

    fn write<T: Serialize>(&mut self, lines: &[T]) -> Result<(), LogError> {
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line).expect("lines have names for keys");
            bytes.push(b'\n');
        }
        let written = self.file.write_all(&bytes).and_then(|()| self.file.flush());
        written.map_err(|reason| LogError::Io { action: "write", path: self.path.clone(), reason })
    }
}
