//! What programs print and write.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;

/// The exit code of a program that ends so. An error is one line on stderr and exit code 2.
pub fn end(result: Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        // File names and fields may hold line breaks: an error stays one line.
        eprintln!("{}", format!("error: {error:#}").replace(char::is_control, " "));
        ExitCode::from(2)
    })
}

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

/// Writes a file as a whole: a killed process leaves the old one or the new one.
///
/// # Errors
/// Where it cannot be written.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let written = fs::write(&new, content).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a file of JSON as [`write()`] does.
///
/// # Errors
/// Where it cannot be written.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    write(path, serde_json::to_string_pretty(value)? + "\n")
}
