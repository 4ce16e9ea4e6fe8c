//! Runs the built program, and writes the files it is to stumble over.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Runs `digits` with these arguments, writing into a directory of the calling test.
pub fn digits(test: &str, arguments: &[&str]) -> Output {
    digits_in(&[], test, arguments)
}

/// The same with environment variables.
pub fn digits_in(environment: &[(&str, &str)], test: &str, arguments: &[&str]) -> Output {
    let out = directory(test);
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command.args(arguments).envs(environment.iter().copied());
    if !arguments.contains(&"--out") {
        command.arg("--out").arg(out);
    }
    command.output().expect("the program starts")
}

/// Runs `digits --json` with these arguments and returns what it prints.
pub fn json(test: &str, arguments: &[&str]) -> serde_json::Value {
    let output = digits(test, &[arguments, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.is_empty(), "nothing on stderr where it is no terminal, but: {stderr}");
    // `from_slice` refuses anything after the object.
    serde_json::from_slice(&output.stdout).expect("one JSON object, nothing else")
}

/// A directory of its own for each test.
pub fn directory(test: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&directory).expect("the test directory can be made");
    directory
}

/// Writes a file into the directory of a test and returns its path.
pub fn file(test: &str, name: &str, content: &[u8]) -> String {
    let path = directory(test).join(name);
    fs::write(&path, content).expect("the test file can be written");
    path.into_os_string().into_string().expect("the test directory has a UTF-8 name")
}

pub fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("writing to memory works")
}

/// The header and one training and one test row, of fields that a test may replace.
pub fn rows() -> Vec<Vec<String>> {
    let header = ["label".into(), "split".into()]
        .into_iter()
        .chain((0..64).map(|pixel| format!("p{pixel}")));
    let row = |label: &str, split: &str| {
        [label, split].into_iter().chain((0..64).map(|_| "7")).map(str::to_owned).collect()
    };
    vec![header.collect(), row("3", "0"), row("8", "1")]
}

pub fn csv(rows: &[Vec<String>]) -> Vec<u8> {
    rows.iter().map(|row| row.join(",") + "\n").collect::<String>().into_bytes()
}
