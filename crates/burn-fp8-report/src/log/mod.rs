//! The log: JSON, one object a line. The first line is a [`Header`], every other one a [`SiteEntry`].

mod entry;
mod reader;
mod writer;

pub use entry::{Header, MAX_TEXT, Operands, Products, Shape, SiteEntry, VERSION};
pub use reader::read;
pub use writer::Writer;

use std::path::PathBuf;

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
