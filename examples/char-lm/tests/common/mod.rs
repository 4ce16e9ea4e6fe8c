//! Runs the built program.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program with these arguments.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_char-lm"));
    command.args(arguments);
    command
}

/// Runs the program with these arguments.
pub fn run(arguments: &[&str]) -> Output {
    program(arguments).output().expect("the program starts")
}

/// Runs the program, which must succeed, and returns what it prints on stdout and on stderr.
pub fn succeeds(arguments: &[&str]) -> (String, String) {
    let output = run(arguments);
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("UTF-8"));
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    (stdout, stderr)
}

/// Runs the program, which must end with exit code 2 and one line on stderr that has these words.
pub fn fails(arguments: &[&str], words: &[&str]) {
    let output = run(arguments);
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.len() < 600, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is missing in: {stderr}");
    }
    assert!(output.stdout.is_empty(), "nothing on stdout");
}

/// A new folder, removed when the value is dropped.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder")
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("the temporary folder has a UTF-8 name")
}

/// The JSON of a file.
pub fn json(path: impl Into<PathBuf>) -> serde_json::Value {
    let path = path.into();
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).expect("JSON")
}

/// A number of a JSON object.
pub fn number(value: &serde_json::Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is a number in {value}"))
}
