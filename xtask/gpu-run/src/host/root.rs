//! The file system of the machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What is looked for by an absolute path lies below the root; all else is found as the environment says. Tests make up a root.
pub struct Root(PathBuf);

impl Root {
    /// `BURN_FP8_HOST_ROOT`, or else that of the file system.
    pub fn from_environment() -> Self {
        let root = std::env::var_os("BURN_FP8_HOST_ROOT").unwrap_or_else(|| OsString::from("/"));
        Self(root.into())
    }

    /// Where a path of the machine is, given without its leading slash.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }
}
