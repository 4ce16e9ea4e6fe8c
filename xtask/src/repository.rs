//! Where things lie.

use std::path::{Path, PathBuf};

/// The repository's root, wherever the command was started.
pub fn root() -> PathBuf {
    // `cargo run` and `cargo test` set the variable at run time: a copied repository works without a rebuild.
    let manifest = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_string());
    Path::new(&manifest).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}
