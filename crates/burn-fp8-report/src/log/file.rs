//! The file of a log, written and read within limits.

use std::fs::File;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use burn_fp8_core::text::shown;
use serde::Serialize;

use super::entry::{Header, SiteEntry};
use crate::Observations;

/// A log that cannot be read or written: one line each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refuses.
    #[error("cannot {action} {path}: {reason}", path = path.display())]
    Io {
        /// What was tried: "read", "create" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason that it gives.
        reason: std::io::Error,
    },
    /// What [`read`] would not take. It was not written.
    #[error("{path}: not written: {reason}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and which site and step it is.
        reason: String,
    },
    /// The file is no log, or a damaged one.
    #[error("{path}, line {line}: {reason}", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

/// The longest line, in bytes. Those written have some thousands.
const MAX_LINE: usize = 1 << 18;
/// The largest number of lines.
const MAX_LINES: usize = 1 << 24;

/// Reads a log. A last line that was cut off, as a killed run leaves it, is left out, and [`Observations::cut_line`] says so.
///
/// # Errors
/// [`LogError`], naming the file, the line and what is wrong with it.
pub fn read(path: &Path) -> Result<Observations, LogError> {
    let io = |reason| LogError::Io { action: "read", path: path.into(), reason };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut line = Vec::new();
    let mut observations: Option<Observations> = None;
    for number in 1.. {
        let malformed = |reason| LogError::Malformed { path: path.into(), line: number, reason };
        line.clear();
        // Bounded while reading: a file need not have lines.
        let read =
            (&mut reader).take(MAX_LINE as u64 + 1).read_until(b'\n', &mut line).map_err(io)?;
        if read == 0 {
            break;
        }
        if number > MAX_LINES {
            return Err(malformed(format!("more than {MAX_LINES} lines; sample fewer steps")));
        }
        if line.len() > MAX_LINE {
            return Err(malformed(format!(
                "longer than {MAX_LINE} bytes: this is no log of an observatory"
            )));
        }
        let is_whole = line.ends_with(b"\n");
        match &mut observations {
            None => observations = Some(Observations::new(header(&line).map_err(malformed)?)),
            Some(observations) => match serde_json::from_slice(&line) {
                Ok(entry) => observations.push(entry).map_err(malformed)?,
                Err(_) if !is_whole => observations.cut_line = Some(number),
                Err(error) => return Err(malformed(one_line(&error))),
            },
        }
    }
    let empty = || "empty; the first line of a log is its header".into();
    observations.ok_or_else(|| LogError::Malformed { path: path.into(), line: 1, reason: empty() })
}

fn header(line: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(line)
        .map_err(|error| format!("no header of an observatory's log: {}", one_line(&error)))?;
    header.check()?;
    Ok(header)
}

/// serde's own line number is always 1 here.
fn one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    // Names of the file itself may be in it, with whatever they hold.
    format!("{} (column {})", shown(what, 200), error.column())
}

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
            reason: match reason.kind() {
                ErrorKind::AlreadyExists => Error::new(
                    ErrorKind::AlreadyExists,
                    "it is there already, and a log is that of one run: give another name, or remove the old one",
                ),
                _ => reason,
            },
        })?;
        let mut writer = Self { file, path: path.into() };
        writer.write(&[header])?;
        Ok(writer)
    }

    /// Appends the entries of a step, in one write: of a run that is killed, the log has all steps but perhaps the last line.
    ///
    /// What [`read`] would not take, such as a scale of 0, is left out, so that the rest can be read.
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
