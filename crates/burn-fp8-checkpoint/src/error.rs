//! What can be wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use crate::text;

/// Why a checkpoint, a layer or a tensor cannot be read or written.
///
/// A message names the file, then the tensor or the key of the configuration, what was found, what was expected, and what to do where something can be
/// done. Texts that come from files are cut and escaped in it; fields hold them as they are.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file cannot be opened, read or written.
    #[error("cannot {action} {}: {reason}", text::path(path))]
    Io {
        /// What was tried: `read` or `write`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        reason: io::Error,
    },

    /// A file is damaged, or something else than its name says.
    #[error("{}: found {found}; expected {expected}{}", text::path(path), text::advice(advice))]
    File {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// What to do, or nothing.
        advice: Box<str>,
    },

    /// A tensor is missing, or not what its header or the configuration says.
    #[error(
        "{}: tensor {}: found {found}; expected {expected}{}",
        text::path(path),
        text::name(tensor),
        text::advice(advice)
    )]
    Tensor {
        /// The file that holds the tensor, or should.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// What to do, or nothing.
        advice: Box<str>,
    },

    /// The configuration says something that this crate does not read, or that no checkpoint means.
    #[error(
        "{}: {}: found {found}; expected {expected}{}",
        text::path(path),
        text::name(key),
        text::advice(advice)
    )]
    Config {
        /// The file.
        path: PathBuf,
        /// The key, with those around it: `quantization_config.weight_block_size`.
        key: String,
        /// What is there.
        found: String,
        /// What should be there.
        expected: String,
        /// What to do, or nothing.
        advice: Box<str>,
    },

    /// A tensor needs more memory than there is.
    #[error(
        "{}: tensor {}: found {bytes} bytes; expected what memory can hold; read it on a machine with more memory",
        text::path(path),
        text::name(tensor)
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// The bytes that could not be had.
        bytes: u64,
    },

    /// Numbers that a caller gave do not make a layer, a tensor or a checkpoint.
    #[error("{what}: found {found}; expected {expected}")]
    Invalid {
        /// What was to be made.
        what: String,
        /// What was given.
        found: String,
        /// What should have been given.
        expected: String,
    },
}

impl CheckpointError {
    pub(crate) fn read(path: &Path, reason: io::Error) -> Self {
        Self::Io { action: "read", path: path.into(), reason }
    }

    pub(crate) fn write(path: &Path, reason: io::Error) -> Self {
        Self::Io { action: "write", path: path.into(), reason }
    }

    pub(crate) fn file(
        path: &Path,
        found: impl Into<String>,
        expected: impl Into<String>,
        advice: &str,
    ) -> Self {
        let (found, expected) = (found.into(), expected.into());
        Self::File { path: path.into(), found, expected, advice: advice.into() }
    }

    pub(crate) fn tensor(
        path: &Path,
        tensor: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        advice: &str,
    ) -> Self {
        let (found, expected) = (found.into(), expected.into());
        let (path, tensor) = (path.into(), tensor.into());
        Self::Tensor { path, tensor, found, expected, advice: advice.into() }
    }

    pub(crate) fn invalid(
        what: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> Self {
        Self::Invalid { what: what.into(), found: found.into(), expected: expected.into() }
    }
}
