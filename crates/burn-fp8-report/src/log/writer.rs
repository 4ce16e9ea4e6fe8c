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
    /// [`LogError::Io`], also where the file exists: a log is that of one run.
    pub fn create(path: &Path, header: &Header) -> Result<Self, LogError> {
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
    /// # Errors
    /// [`LogError::Io`].
    pub fn append(&mut self, entries: &[SiteEntry]) -> Result<(), LogError> {
        self.write(entries)
    }

    fn write<T: Serialize>(&mut self, lines: &[T]) -> Result<(), LogError> {
        let mut bytes = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut bytes, line)
                .expect("lines have names for keys and finite numbers");
            bytes.push(b'\n');
        }
        let written = self.file.write_all(&bytes).and_then(|()| self.file.flush());
        written.map_err(|reason| LogError::Io { action: "write", path: self.path.clone(), reason })
    }
}
