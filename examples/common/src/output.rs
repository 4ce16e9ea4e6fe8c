//! What programs print and write.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Prints to stdout. Not `print!`, which panics where the reader of a pipe has gone: that is no error here.
///
/// # Errors
/// Where stdout cannot be written for another reason.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// A table in one of comfy-table's presets: numbers on the right, what is in the columns `left` on the left.
pub fn table<const N: usize>(
    preset: &str,
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    left: &[usize],
) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_header(header).add_rows(rows);
    for (_, column) in
        table.column_iter_mut().enumerate().filter(|(index, _)| !left.contains(index))
    {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Writes a file as a whole: a killed process leaves the old one or the new one.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let new = beside(path);
    let written = fs::write(&new, content).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Whether [`write()`] will find a place for the file: asked before long work, not after it.
pub fn check_place(path: &Path) -> Result<()> {
    let new = beside(path);
    let written = fs::write(&new, "").and_then(|()| fs::remove_file(&new));
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn beside(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Writes a file of JSON as [`write()`] does.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    write(path, serde_json::to_string_pretty(value)? + "\n")
}
