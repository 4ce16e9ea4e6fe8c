//! The phases of a run: what they are called, and which programs' tests are among them.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process;

/// Which half of a run a phase belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Validation,
    Benchmarks,
}

/// Test programs, each with a phase for every module. A program's phases are called as it is, without `-tests`.
pub const TEST_PROGRAMS: [&str; 3] =
    ["burn-fp8-cublaslt-tests", "burn-fp8-kernels-tests", "burn-fp8-tests"];

/// The group of all tests.
pub const TESTS: &str = "tests";

/// All other phases, with their group, in the order in which they run.
pub const OTHERS: [(&str, &str); 15] = [
    ("sanitizer-memcheck", "sanitizer"),
    ("sanitizer-racecheck", "sanitizer"),
    ("sanitizer-initcheck", "sanitizer"),
    ("accuracy-products", "accuracy"),
    ("accuracy", "accuracy"),
    ("digits", "examples"),
    ("fused_matmul", "examples"),
    ("char-lm", "examples"),
    ("char-lm-block", "examples"),
    ("peers", "peers"),
    ("gpu-gemm", "bench"),
    ("gpu-kernels", "bench"),
    ("gpu-linear", "bench"),
    ("gpu-host", "bench"),
    ("gpu-break-even", "bench"),
];

/// The half that a group belongs to.
pub fn half_of(group: &str) -> Half {
    match group {
        "peers" | "bench" => Half::Benchmarks,
        _ => Half::Validation,
    }
}

/// What the phases of a test program begin with.
pub fn prefix_of(program: &str) -> &str {
    program.strip_suffix("-tests").unwrap_or(program)
}

/// The names of a program's tests. All of these need a GPU, and say so by being ignored elsewhere.
pub fn tests_of(archive: &Path, program: &str) -> Vec<String> {
    let mut command = Command::new(archive.join("bin").join(program));
    command.args(["--list", "--ignored", "--format", "terse"]);
    let output = process::output(&mut command, Duration::from_secs(60));
    let text = output.map(|output| output.text).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Tests by their module, sorted; those of none at last, under an empty name.
pub fn modules(tests: &[String]) -> Vec<(&str, Vec<&str>)> {
    let module_of = |test: &str| test.split_once("::").map(|(module, _)| module.to_owned());
    let mut names: Vec<&str> =
        tests.iter().filter_map(|test| test.split_once("::")).map(|(module, _)| module).collect();
    names.sort_unstable();
    names.dedup();
    names.push("");
    let of_module = |name: &'_ str| {
        let is_of = |test: &&str| module_of(test).unwrap_or_default() == name;
        tests.iter().map(String::as_str).filter(is_of).collect::<Vec<_>>()
    };
    names
        .into_iter()
        .map(|name| (name, of_module(name)))
        .filter(|(_, tests)| !tests.is_empty())
        .collect()
}

/// A command that runs for a limited time.
pub struct Phase {
    pub name: String,
    pub group: &'static str,
    pub limit: Duration,
    pub command: Vec<OsString>,
    /// For this phase alone.
    pub environment: &'static [(&'static str, &'static str)],
    /// What shows that it ran on tensor cores.
    pub evidence: Option<Evidence>,
}

/// Words that a program has to print: one that emulates where it must ends well, too.
pub struct Evidence {
    pub words: &'static str,
    /// How often at least.
    pub times: usize,
}

impl Phase {
    /// A phase of [`OTHERS`].
    ///
    /// # Panics
    /// If it is none.
    pub fn new(
        name: &str,
        seconds: u64,
        command: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let known = OTHERS.iter().find(|(known, _)| *known == name);
        let (_, group) = known.expect("a phase is one of those that are listed");
        Self {
            name: name.to_owned(),
            group,
            limit: Duration::from_secs(seconds),
            command: command.into_iter().map(Into::into).collect(),
            environment: &[],
            evidence: None,
        }
    }

    pub fn showing(mut self, times: usize, words: &'static str) -> Self {
        self.evidence = Some(Evidence { words, times });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::modules;

    #[test]
    fn tests_are_taken_apart_by_module() {
        let tests = ["b::fused::x", "alone", "a::y", "b::z", "ab::y"].map(String::from);
        let expected = [
            ("a", vec!["a::y"]),
            ("ab", vec!["ab::y"]),
            ("b", vec!["b::fused::x", "b::z"]),
            ("", vec!["alone"]),
        ];
        assert_eq!(modules(&tests), expected);
    }
}
