//! A run as it goes on: what has passed, failed or been left out, and how much time there is.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::arguments::Arguments;
use crate::host::Machine;
use crate::phases::{Evidence, Half, Phase, half_of};
use crate::process::{Ended, Environment};
use crate::results::Results;
use crate::selection::Selection;
use crate::{interrupt, known, log, process};

/// Less is not worth the start of a program.
const WORTH_STARTING: Duration = Duration::from_secs(15);

pub struct Session<'a> {
    pub arguments: &'a Arguments,
    pub selection: Selection,
    pub archive: &'a Path,
    pub results: Results,
    environment: Environment,
    begun: Instant,
    passed: usize,
    /// Each with its reason.
    failed: Vec<String>,
    skipped: Vec<String>,
}

/// How a phase went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    NotWanted,
}

impl<'a> Session<'a> {
    /// Makes the output folder and describes the host there.
    pub fn begin(
        arguments: &'a Arguments,
        selection: Selection,
        archive: &'a Path,
        machine: &Machine,
        command: &str,
    ) -> Result<Self> {
        let results = Results::begin(arguments.out())?;
        results.describe(archive, machine, command)?;
        let mut environment = machine.environment.clone();
        environment.set("BURN_FP8_GOLDEN", archive.join("golden"));
        environment.set("RUST_BACKTRACE", "1");
        Ok(Self {
            arguments,
            selection,
            archive,
            results,
            environment,
            begun: Instant::now(),
            passed: 0,
            failed: vec![],
            skipped: vec![],
        })
    }

    /// A program of the archive.
    pub fn program(&self, name: &str) -> PathBuf {
        self.archive.join("bin").join(name)
    }

    /// A command for a program in the environment of phases, started in the output folder.
    fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(self.results.folder());
        self.environment.apply(&mut command);
        command
    }

    /// Runs a command in the environment of phases, with its output in a log.
    pub fn run_into(
        &self,
        log: &str,
        limit: Duration,
        command: &[OsString],
        environment: &[(&str, &str)],
    ) -> std::io::Result<Ended> {
        let mut words = command.iter();
        let mut command = self.command(words.next().cloned().unwrap_or_default());
        command.args(words).envs(environment.iter().copied());
        process::run(&mut command, limit, &File::create(self.results.folder().join(log))?)
    }

    /// What a phase has printed.
    pub fn read_log(&self, log: &str) -> String {
        log::read(&self.results.folder().join(log))
    }

    /// Looks at the device; without it nothing else makes sense, and the run ends here.
    pub fn device(&mut self) -> bool {
        println!("--- device");
        let begun = Instant::now();
        let command: Vec<OsString> = [
            self.program("burn-fp8-gpu").into(),
            "device".into(),
            "--json".into(),
            "device.json".into(),
        ]
        .into();
        let log = "device.log";
        let ended = self.run_into(log, Duration::from_secs(120), &command, &[]);
        let text = self.read_log(log);
        print!("{text}");
        let verdict = verdict(&ended, &text);
        self.results.record("device", &verdict, begun.elapsed().as_secs(), log);
        if ended.is_ok_and(|ended| ended.is_ok()) {
            self.passed += 1;
            return true;
        }
        // All that there is to tell is in the folder and the file.
        let _ = process::output(
            self.command(self.program("burn-fp8-gpu")).arg("report").arg(self.results.folder()),
            Duration::from_secs(60),
        );
        self.pack();
        eprintln!(
            "burn-fp8 does not run natively on this device: {verdict}; see {}",
            self.results.folder().join(log).display()
        );
        false
    }

    /// Leaves out what this machine has no means for.
    pub fn skip(&mut self, phase: &str, reason: &str) {
        println!("--- {phase}: skipped: {reason}");
        self.results.record(phase, &format!("skipped: {reason}"), 0, "");
        self.skipped.push(format!("{phase} ({reason})"));
    }

    /// Leaves out what should have run.
    pub fn lose(&mut self, phase: &str, reason: &str) {
        println!("--- {phase}: skipped, which is a failure: {reason}");
        self.results.record(phase, &format!("skipped: {reason}"), 0, "");
        self.failed.push(format!("{phase} ({reason})"));
    }

    /// The time until phases of a half have to end, if there is a limit.
    pub fn left(&self, half: Half) -> Option<Duration> {
        let whole = self.arguments.limit()?;
        let share = match half {
            Half::Validation if self.selection.shares_time() => whole / 2,
            _ => whole,
        };
        Some(share.saturating_sub(self.begun.elapsed()))
    }

    /// Runs a phase, if it is wanted and there is time.
    pub fn phase(&mut self, phase: Phase) -> Outcome {
        if !self.selection.wants(&phase.name, phase.group) {
            return Outcome::NotWanted;
        }
        if interrupt::requested() {
            self.lose(&phase.name, "interrupted");
            return Outcome::Failed;
        }
        let bin = self.archive.join("bin");
        let of_archive = phase
            .command
            .iter()
            .map(Path::new)
            .find(|word| word.starts_with(&bin) && !word.is_file());
        if let Some(program) = of_archive {
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.lose(&phase.name, &format!("there is no bin/{name}"));
            return Outcome::Failed;
        }
        let mut limit = phase.limit;
        if let Some(left) = self.left(half_of(phase.group)) {
            if left < WORTH_STARTING {
                self.lose(&phase.name, "no time left");
                return Outcome::Failed;
            }
            limit = limit.min(left);
        }
        let log = format!("{}.log", phase.name.replace(|letter: char| !is_plain(letter), "-"));
        println!("--- {}: at most {} s, log {log}", phase.name, limit.as_secs());
        let begun = Instant::now();
        let ended = self.run_into(&log, limit, &phase.command, phase.environment);
        let took = begun.elapsed().as_secs();
        let text = self.read_log(&log);
        let emulated = phase.evidence.as_ref().and_then(|evidence| emulated(evidence, &text));
        let verdict = match emulated {
            Some(emulated) if ended.as_ref().is_ok_and(Ended::is_ok) => emulated,
            _ => verdict(&ended, &text),
        };
        self.results.record(&phase.name, &verdict, took, &log);
        println!("--- {}: {verdict} in {took} s", phase.name);
        if verdict == "ok" {
            self.passed += 1;
            return Outcome::Passed;
        }
        self.failed.push(format!("{} ({verdict})", phase.name));
        for line in log::telling(&text) {
            println!("    {line}");
        }
        Outcome::Failed
    }

    /// Reports, and says whether all has passed.
    pub fn finish(mut self) -> bool {
        let mut command = self.command(self.program("burn-fp8-gpu"));
        let reported = process::output(
            command.arg("report").arg(self.results.folder()),
            Duration::from_secs(120),
        );
        match reported {
            Ok(output) => {
                print!("{}", output.text);
                if !output.ended.is_ok() {
                    self.failed.push(format!("report ({})", output.ended));
                }
            }
            Err(error) => self.failed.push(format!("report (cannot start: {error})")),
        }
        let folder = self.results.folder().display();
        println!("results: {folder}/results.json, {folder}/table.txt, {folder}/table.md");
        self.pack();
        let failed = self.failed.iter().map(|entry| format!("failed {entry}"));
        let skipped = self.skipped.iter().map(|entry| format!("skipped {entry}"));
        let names: Vec<String> = failed.chain(skipped).collect();
        println!(
            "{} passed, {} failed, {} skipped: {}",
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            if names.is_empty() { "none".to_owned() } else { names.join("; ") }
        );
        self.failed.is_empty()
    }

    fn pack(&self) {
        match self.results.pack() {
            Ok(path) => println!("everything in one file: {}", path.display()),
            Err(error) => eprintln!("note: {error:#}"),
        }
    }
}

/// What the report says of a program that has ended: how, and why, where the log shows a cause that is known.
fn verdict(ended: &std::io::Result<Ended>, text: &str) -> String {
    match ended {
        Err(error) => format!("failed: cannot start: {error}"),
        Ok(ended) if ended.is_ok() => ended.to_string(),
        Ok(ended) => match known::cause(text) {
            Some(cause) => format!("{ended} ({cause})"),
            None => ended.to_string(),
        },
    }
}

/// That a program emulated, if it did.
fn emulated(evidence: &Evidence, text: &str) -> Option<String> {
    let times = text.matches(evidence.words).count();
    (times < evidence.times).then(|| {
        format!("failed: {times} times on tensor cores instead of {} or more", evidence.times)
    })
}

/// Whether a letter may stand in the name of a log.
fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || ['_', '-'].contains(&letter)
}
