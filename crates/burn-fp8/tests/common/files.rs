//! Files that tests write.

use std::path::PathBuf;

use tempfile::TempDir;

/// A folder that goes when it is dropped, and a path in it.
pub fn path(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    (folder, path)
}
