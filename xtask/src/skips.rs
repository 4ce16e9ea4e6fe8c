//! Tests that passed without having run: those that skip themselves, and those that libtest ignores.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::repository;

/// The environment variable that names the file: what `burn_fp8_test_support::SKIPPED` holds. Tests alone depend on that crate, since
/// `cargo package` takes no dependency that is not published.
pub const VARIABLE: &str = "BURN_FP8_SKIPPED";

/// What did not run in a suite, and why.
#[derive(Default)]
pub struct Skips {
    /// Whether tests have run at all.
    ran: bool,
    /// One line for each test that skipped itself.
    skipped: Vec<String>,
    /// How many tests libtest ignored, by reason.
    ignored: BTreeMap<String, usize>,
}

impl Skips {
    /// The file to which tests of this run add a line each when they skip, empty; `burn-fp8-test-support` does that in every test crate.
    pub fn new_file() -> Result<PathBuf> {
        let target = repository::target()?;
        fs::create_dir_all(&target)?;
        let file = target.join("skipped-tests.txt");
        fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Hands on what libtest prints, and counts the tests that it ignores.
    pub fn pass_on(&mut self, output: impl BufRead, mut to: impl Write) -> Result<()> {
        self.ran = true;
        for line in output.split(b'\n') {
            let line = line?;
            to.write_all(&line)?;
            to.write_all(b"\n")?;
            if let Some(reason) = ignored(&String::from_utf8_lossy(&line)) {
                *self.ignored.entry(reason.to_string()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Takes the lines that skipped tests have left in the file.
    pub fn take(&mut self, file: &Path) -> Result<()> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.skipped.extend(text.lines().map(str::to_string));
        self.skipped.sort();
        Ok(())
    }
}

/// Why libtest ignored a test, from its line: `test NAME ... ignored, REASON`.
fn ignored(line: &str) -> Option<&str> {
    let (_, result) = line.strip_prefix("test ")?.rsplit_once(" ... ignored")?;
    match result.strip_prefix(", ") {
        Some(reason) => Some(reason),
        None => result.is_empty().then_some("no reason given"),
    }
}

impl fmt::Display for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.ran {
            return Ok(());
        }
        writeln!(f, "\n{} tests skipped themselves", self.skipped.len())?;
        for line in &self.skipped {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "{} tests ignored", self.ignored.values().sum::<usize>())?;
        for (reason, count) in &self.ignored {
            writeln!(f, "  {count:>4}  {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test ordering::waits ... ignored, needs an NVIDIA GPU of sm_89 or newer
test codes ... ok
test slow ... ignored
test more ... ignored, needs an NVIDIA GPU of sm_89 or newer

test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn output_is_handed_on_and_what_did_not_run_is_listed_by_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("skipped");
        fs::write(&file, "b.rs test: no driver\na.rs test: no library\n").unwrap();
        let mut skips = Skips::default();
        assert_eq!(skips.to_string(), "");
        let mut shown = vec![];
        skips.pass_on(OUTPUT.as_bytes(), &mut shown).unwrap();
        skips.take(&file).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), OUTPUT);
        let expected = "\n2 tests skipped themselves\n  a.rs test: no library\n  b.rs test: no driver\n3 tests ignored\n     \
             2  needs an NVIDIA GPU of sm_89 or newer\n     1  no reason given\n";
        assert_eq!(skips.to_string(), expected);
    }

    #[test]
    fn tests_look_for_the_variable_that_is_set() {
        assert_eq!(VARIABLE, burn_fp8_test_support::SKIPPED);
    }

    #[test]
    fn only_libtests_lines_count() {
        assert_eq!(ignored("warning: this was ... ignored"), None);
        assert_eq!(ignored("test a ... ok"), None);
        assert_eq!(ignored("test src/lib.rs - f (line 3) ... ignored"), Some("no reason given"));
    }
}
