//! What can go wrong before a product runs.

use std::path::PathBuf;

/// An error of burn-fp8. Each says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fp8Error {
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {reason}", path = path.display())]
    Io {
        /// What was tried: "read" or "write".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason that the operating system gives.
        reason: std::io::Error,
    },
    /// A file is larger than anything that could be meant.
    #[error("{path} is larger than {limit} bytes, more than any file of its kind", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A value that something was to be made of cannot be used.
    #[error("{what}: {reason}")]
    Invalid {
        /// What was to be made.
        what: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// A configuration is not valid JSON, has an unknown field, or a value out of range.
    #[error("invalid FP8 configuration: {0}")]
    InvalidConfig(String),
    /// A file of FP8 state or weights is damaged, or something else.
    #[error("{path}: {reason}; nothing was loaded", path = path.display())]
    InvalidState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// [`Execution::Native`](crate::Execution::Native) was asked for where products cannot run natively.
    #[error(
        "Execution::Native: backend `{backend}` cannot run FP8 products natively ({reason}); \
         use Execution::Auto or Execution::FakeQuantized"
    )]
    NativeUnavailable {
        /// The name of the backend.
        backend: String,
        /// Why it cannot.
        reason: String,
    },
    /// The device computes nothing, and what is read from it would be no result; or its matrix unit was chosen by a name that there is none of.
    #[error("backend `{backend}` cannot be used on this device: {reason}")]
    DeviceUnusable {
        /// The name of the backend.
        backend: String,
        /// What is missing.
        reason: String,
    },
}
