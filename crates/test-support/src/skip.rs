//! Tests that cannot run on this machine say so here, and are counted.
//!
//! The line goes to standard error past libtest, which keeps back what passing tests print, and into the file that
//! [`SKIPPED`] names. `cargo xtask test` sets that variable and ends with the list.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::panic::Location;
use std::path::Path;
use std::thread;

/// The environment variable that names the file to which each skipped test adds a line.
pub const SKIPPED: &str = "BURN_FP8_SKIPPED";

/// Says that the test on this thread is skipped, and why; the caller returns.
///
/// # Panics
///
/// If the file named by [`SKIPPED`] cannot be written.
#[track_caller]
pub fn skip(why: impl Display) {
    let test = thread::current().name().unwrap_or("a test").to_string();
    let line = format!("{} {test}: {}\n", Location::caller().file(), one_line(&why.to_string()));
    let file = std::env::var_os(SKIPPED);
    record(&line, io::stderr(), file.as_deref().map(Path::new)).unwrap_or_else(|error| {
        panic!("cannot note a skipped test in {SKIPPED} = {file:?}: {error}")
    });
}

/// Like [`skip`], but fails the test where the environment variable `required` is set, to anything but 0: so CI, which has all that the
/// test needs, cannot skip it.
///
/// # Panics
///
/// If the variable is set, and as [`skip`].
#[track_caller]
pub fn skip_unless_required(required: &str, why: impl Display) {
    let is_required = std::env::var_os(required).is_some_and(|value| value != "0");
    assert!(!is_required, "{required} is set, so this test must not be skipped: {why}");
    skip(why);
}

/// Test programs run side by side: a line is written at once, so that it stays whole.
fn record(line: &str, mut terminal: impl Write, file: Option<&Path>) -> io::Result<()> {
    terminal.write_all(format!("SKIPPED {line}").as_bytes())?;
    match file {
        Some(file) => {
            OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
        }
        None => Ok(()),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_skip_is_a_line_on_the_terminal_and_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skipped");
        let mut terminal = vec![];
        record("one\n", &mut terminal, Some(&file)).unwrap();
        record("two\n", &mut terminal, Some(&file)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        assert_eq!(terminal, b"SKIPPED one\nSKIPPED two\n");
    }

    #[test]
    fn without_a_file_the_terminal_is_told() {
        let mut terminal = vec![];
        record("one\n", &mut terminal, None).unwrap();
        assert_eq!(terminal, b"SKIPPED one\n");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(record("one\n", io::sink(), Some(folder.path())).is_err());
    }

    #[test]
    fn reasons_of_several_lines_become_one() {
        assert_eq!(one_line("no library:\n  none found"), "no library: none found");
    }
}
