//! Where things lie, and the packages of the workspace.

use std::io;
use std::path::{Path, PathBuf};

use cargo_metadata::{MetadataCommand, Package};

/// The repository's root, wherever the command was started.
pub fn root() -> PathBuf {
    // `cargo run` and `cargo test` set the variable at run time: a copied repository works without a rebuild.
    let manifest = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    Path::new(&manifest).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// The packages of the workspace.
pub fn packages() -> cargo_metadata::Result<Vec<Package>> {
    let manifest = root().join("Cargo.toml");
    Ok(MetadataCommand::new().manifest_path(manifest).no_deps().exec()?.packages)
}

/// Where cargo builds, absolute: test programs start in the folders of their packages.
///
/// # Errors
/// Where `CARGO_TARGET_DIR` is relative and there is no working directory.
pub fn target() -> io::Result<PathBuf> {
    let folder =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    std::path::absolute(folder)
}
