//! Results as JSON files.

use std::path::Path;

use anyhow::{Context, Result};

/// Under another name first: a program that is ended here leaves what it had written before.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value)? + "\n";
    let part = path.with_extension("json.part");
    std::fs::write(&part, json)
        .and_then(|()| std::fs::rename(&part, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
