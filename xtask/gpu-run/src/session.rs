//! A run as it goes on, and the output folder: what has passed, failed or been left out, and how much time there is.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::arguments::Arguments;
use crate::host::Machine;
use crate::log::{cause, refusal, telling};
use crate::plan::{Group, NATIVE, Phase, Program, SECONDS, Work};
use crate::process::{Ended, Environment, is_interrupted};

/// Less is not worth the start of a program.
const WORTH_STARTING: Duration = Duration::from_secs(15);
const PHASES: &str = "phases.tsv";
/// What a run makes anew. Logs are replaced when their phase runs again.
const OF_A_RUN: [&str; 10] = [
    "accuracy",
    "accuracy.json",
    "char-lm",
    "device.json",
    "host.tsv",
    PHASES,
    "results.json",
    "table.md",
    "table.txt",
    "torch.json",
];

pub struct Session<'a> {
    archive: &'a Path,
    machine: &'a Machine,
    folder: PathBuf,
    phases: File,
    environment: Environment,
    /// When validation has to end, and when the run.
    ends: Option<[Instant; 2]>,
    passed: usize,
    /// Each with its reason.
    failed: Vec<String>,
    skipped: Vec<String>,
}

/// How a phase ended: passed, failed, or left out without fault.
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

impl<'a> Session<'a> {
    /// Makes the output folder, removes what an earlier run left there, which would be reported as this one's, and describes the host.
    pub fn begin(
        arguments: &Arguments,
        phases: &[Phase],
        archive: &'a Path,
        machine: &'a Machine,
        command: &str,
    ) -> Result<Self> {
        let folder = arguments.out.as_deref().unwrap_or(Path::new("burn-fp8-gpu-results"));
        let what = || format!("cannot write {}", folder.display());
        fs::create_dir_all(folder).with_context(what)?;
        let folder = fs::canonicalize(folder).with_context(what)?;
        for entry in fs::read_dir(&folder).with_context(what)? {
            let path = entry.with_context(what)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_rows = name.starts_with("rows-") && name.ends_with(".json");
            match path.is_dir() {
                _ if !is_rows && !OF_A_RUN.contains(&&*name) => {}
                true => fs::remove_dir_all(&path).with_context(what)?,
                false => fs::remove_file(&path).with_context(what)?,
            }
        }
        let manifest = archive.join("MANIFEST");
        let manifest = fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let facts = machine.facts(command) + &manifest;
        fs::write(folder.join("host.tsv"), facts).with_context(what)?;
        fs::write(folder.join(NATIVE.0), NATIVE.1).with_context(what)?;
        let file = File::create(folder.join(PHASES)).with_context(what)?;

        let mut environment = machine.search.environment.clone();
        environment.set("BURN_FP8_GOLDEN", archive.join("golden"));
        environment.set("RUST_BACKTRACE", "1");
        // Tests could use all of the time.
        let [validation, benchmarks] = [false, true].map(|is_benchmark| {
            phases.iter().any(|phase| phase.group.is_benchmark() == is_benchmark)
        });
        let ends = arguments.limit().map(|limit| {
            let half = if validation && benchmarks { limit / 2 } else { limit };
            [half, limit].map(|limit| Instant::now() + limit)
        });
        Ok(Self {
            archive,
            machine,
            folder,
            phases: file,
            environment,
            ends,
            passed: 0,
            failed: vec![],
            skipped: vec![],
        })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.archive.join("bin").join(name)
    }

    /// Looks at the device; without it nothing else makes sense.
    pub fn device(&mut self) -> bool {
        println!("--- device");
        let command = [self.program("burn-fp8-gpu").into(), "device".into(), "--json".into()];
        let command = [&command[..], &["device.json".into()]].concat();
        let (verdict, text, seconds) =
            self.run(&command, "device.log", Duration::from_secs(120), None);
        print!("{text}");
        if let Verdict::Failed(reason) = &verdict {
            let log = self.folder.join("device.log");
            eprintln!(
                "burn-fp8 does not run natively on this device: {reason}; see {}",
                log.display()
            );
        }
        self.record("device", verdict, seconds, "device.log");
        self.failed.is_empty()
    }

    /// Runs a phase, if there is time.
    pub fn phase(&mut self, phase: &Phase) {
        let (command, limit) = match self.prepare(phase) {
            Ok(prepared) => prepared,
            Err(verdict) => {
                match &verdict {
                    Verdict::Failed(reason) => println!("--- {}: {reason}", phase.name),
                    Verdict::Skipped(reason) => println!("--- {}: skipped: {reason}", phase.name),
                    Verdict::Passed => {}
                }
                return self.record(&phase.name, verdict, 0, "");
            }
        };
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || ['_', '-'].contains(&letter);
        let log = format!("{}.log", phase.name.replace(|letter| !is_plain(letter), "-"));
        println!("--- {}: at most {} s, log {log}", phase.name, limit.as_secs());
        let (verdict, text, seconds) = self.run(&command, &log, limit, Some(phase));
        match &verdict {
            Verdict::Passed => println!("--- {}: ok in {seconds} s", phase.name),
            Verdict::Skipped(reason) => println!("--- {}: skipped: {reason}", phase.name),
            Verdict::Failed(reason) => {
                println!("--- {}: {reason} in {seconds} s", phase.name);
                telling(&text).for_each(|line| println!("    {line}"));
            }
        }
        self.record(&phase.name, verdict, seconds, &log);
    }

    /// The command of a phase and its time, or why it is left out.
    fn prepare(&self, phase: &Phase) -> Result<(Vec<OsString>, Duration), Verdict> {
        let skip = |reason: &str| Err(Verdict::Skipped(reason.to_owned()));
        let lose = |reason: &str| Err(Verdict::Failed(format!("skipped: {reason}")));
        let (program, arguments) = match &phase.work {
            Work::Run(program, arguments) => (program, arguments),
            Work::Skip(reason) => return skip(reason),
            Work::Lose(reason) => return lose(reason),
        };
        let Machine { sanitizer, torch, .. } = self.machine;
        let mut command: Vec<OsString> = match program {
            Program::Own(name) => vec![self.program(name).into()],
            Program::Watched(name, tool) => {
                let Some(sanitizer) = sanitizer else { return skip("no compute-sanitizer") };
                let options = ["--tool", tool, "--error-exitcode", "9"].map(OsString::from);
                [&[sanitizer.into()], &options[..], &[self.program(name).into()]].concat()
            }
            Program::Script(name) => {
                let script = self.archive.join("peers").join(name);
                torch.iter().map(|(python, _)| python.into()).chain([script.into()]).collect()
            }
        };
        if matches!(phase.group, Group::Accuracy | Group::Peers) && torch.is_none() {
            return skip("no torch");
        }
        if is_interrupted() {
            return lose("interrupted");
        }
        if let Program::Own(name) | Program::Watched(name, _) = program
            && !self.program(name).is_file()
        {
            return lose(&format!("there is no bin/{name}"));
        }
        let mut limit = Duration::from_secs(phase.seconds);
        if let Some(ends) = self.ends {
            let end = ends[usize::from(phase.group.is_benchmark())];
            limit = limit.min(end.saturating_duration_since(Instant::now()));
            if limit < WORTH_STARTING {
                return lose("no time left");
            }
        }
        // Leaves time to write what was measured.
        let seconds = limit.as_secs().saturating_sub(60).to_string();
        command.extend(arguments.iter().map(|word| match word.as_str() {
            SECONDS => OsString::from(&seconds),
            word => word.into(),
        }));
        let of_torch = fs::metadata(self.folder.join("torch.json"));
        if phase.group == Group::Bench && of_torch.is_ok_and(|file| file.len() > 0) {
            command.extend(["--torch".into(), "torch.json".into()]);
        }
        Ok((command, limit))
    }

    /// Runs a command in the output folder. What to say of it, what it printed, and how many seconds it took.
    fn run(
        &self,
        command: &[OsString],
        log: &str,
        limit: Duration,
        phase: Option<&Phase>,
    ) -> (Verdict, String, u64) {
        let begun = Instant::now();
        let path = self.folder.join(log);
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).current_dir(&self.folder);
        if phase.is_some_and(|phase| matches!(phase.group, Group::Tests | Group::Sanitizer)) {
            // CubeCL is to search for its fastest kernels over few classes of shapes: compiling them is most of what tests take.
            process.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
        }
        let ended = File::create(&path)
            .and_then(|file| self.environment.run(&mut process, limit, &file))
            .map_err(|error| format!("failed: cannot start: {error}"));
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let verdict = verdict(phase, ended, &text);
        (verdict, text, begun.elapsed().as_secs())
    }

    /// Adds a line of phase, status, seconds and log, separated by tabs.
    fn record(&mut self, phase: &str, verdict: Verdict, seconds: u64, log: &str) {
        let status = match verdict {
            Verdict::Passed => {
                self.passed += 1;
                "ok".to_owned()
            }
            Verdict::Failed(reason) => {
                self.failed.push(format!("failed {phase} ({reason})"));
                reason
            }
            Verdict::Skipped(reason) => {
                self.skipped.push(format!("skipped {phase} ({reason})"));
                format!("skipped: {reason}")
            }
        };
        let status = status.replace(['\t', '\n'], " ");
        if let Err(error) = writeln!(self.phases, "{phase}\t{status}\t{seconds}\t{log}") {
            eprintln!("note: cannot write {PHASES}: {error}");
        }
    }

    /// Reports, and says whether all has passed.
    pub fn finish(mut self) -> bool {
        let mut command = Command::new(self.program("burn-fp8-gpu"));
        command.arg("report").arg(&self.folder).current_dir(&self.folder);
        match self.environment.output(&mut command, 120) {
            Ok(output) => {
                print!("{}", output.text);
                if !output.ended.is_ok() {
                    self.failed.push(format!("failed report ({})", output.ended));
                }
            }
            Err(error) => self.failed.push(format!("failed report (cannot start: {error})")),
        }
        // What was written for torch's comparison is large and of no further use.
        let _ = fs::remove_dir_all(self.folder.join("accuracy"));
        let folder = self.folder.display();
        println!("results: {folder}/results.json, {folder}/table.txt, {folder}/table.md");
        let names = [&self.failed[..], &self.skipped].concat().join("; ");
        println!(
            "{} passed, {} failed, {} skipped: {}",
            self.passed,
            self.failed.len(),
            self.skipped.len(),
            if names.is_empty() { "none" } else { &names }
        );
        self.failed.is_empty()
    }
}

/// What to say of a program that has ended: how, and why, where the log shows a cause that is known.
fn verdict(phase: Option<&Phase>, ended: Result<Ended, String>, text: &str) -> Verdict {
    let evidence = phase.and_then(|phase| phase.evidence);
    if let Some(line) = refusal(text)
        && phase.is_some_and(|phase| phase.group == Group::Sanitizer)
    {
        return Verdict::Skipped(format!("compute-sanitizer cannot watch a program here: {line}"));
    }
    match (ended, evidence) {
        (Err(error), _) => Verdict::Failed(error),
        (Ok(ended), None) if ended.is_ok() => Verdict::Passed,
        (Ok(ended), Some((words, least))) if ended.is_ok() => match text.matches(words).count() {
            times if times >= least => Verdict::Passed,
            times => Verdict::Failed(format!(
                "failed: {times} times on tensor cores instead of {least} or more"
            )),
        },
        (Ok(ended), _) => Verdict::Failed(match cause(text) {
            Some(cause) => format!("{ended} ({cause})"),
            None => ended.to_string(),
        }),
    }
}
