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
use crate::plan::{BENCH, Phase, SANITIZER, TESTS, WITH_TORCH};
use crate::process::{Ended, Environment, is_interrupted};

/// Less is not worth the start of a program.
const WORTH_STARTING: Duration = Duration::from_secs(15);
/// A configuration that has no emulation: its file and its text.
const NATIVE: (&str, &str) = ("digits.json", "{\"execution\": \"native\"}\n");
/// What a run makes anew, besides `rows-*.json`. Logs are replaced when their phase runs again.
const OF_A_RUN: &str = "accuracy accuracy.json char-lm device.json host.tsv phases.tsv results.json sums.json table.md table.txt torch.json";

pub struct Session<'a> {
    archive: &'a Path,
    machine: &'a Machine,
    quick: bool,
    folder: PathBuf,
    environment: Environment,
    /// When validation has to end, and when the run.
    ends: Option<[Instant; 2]>,
    /// How phases ended.
    verdicts: Vec<Verdict>,
}

/// How a phase ended, and why: `ok`, or what went wrong.
struct Verdict {
    outcome: Outcome,
    name: String,
    reason: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// Left out, and nothing is wrong with that.
    Skipped,
    Failed,
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
            if is_rows || OF_A_RUN.split(' ').any(|known| known == name) {
                let remove = if path.is_dir() { fs::remove_dir_all } else { fs::remove_file };
                remove(&path).with_context(what)?;
            }
        }
        let manifest = archive.join("MANIFEST");
        let manifest = fs::read_to_string(&manifest)
            .with_context(|| format!("cannot read {}", manifest.display()))?;
        let facts = machine.facts(command) + &manifest;
        fs::write(folder.join("host.tsv"), facts).with_context(what)?;
        fs::write(folder.join(NATIVE.0), NATIVE.1).with_context(what)?;

        let mut environment = machine.search.environment.clone();
        environment.set("BURN_FP8_GOLDEN", archive.join("golden"));
        // Where the phase `burn-fp8-cublaslt:sums` leaves what it found.
        environment.set("BURN_FP8_RESULTS", &folder);
        environment.set("RUST_BACKTRACE", "1");
        // Tests could use all of the time.
        let benchmarks = phases.iter().filter(|phase| phase.is_benchmark()).count();
        let has_both = benchmarks > 0 && benchmarks + 1 < phases.len();
        let ends = arguments.limit().map(|limit| {
            let validation = if has_both { limit / 2 } else { limit };
            [validation, limit].map(|limit| Instant::now() + limit)
        });
        let (quick, verdicts) = (arguments.quick && arguments.phases.is_empty(), vec![]);
        Ok(Self { archive, machine, quick, folder, environment, ends, verdicts })
    }

    /// Runs a phase, if there is time. Whether the others make sense after it.
    pub fn phase(&mut self, phase: &Phase) -> bool {
        let Phase { name, group, .. } = phase;
        let (command, limit) = match self.prepare(phase) {
            Ok(prepared) => prepared,
            Err((outcome, reason)) => {
                self.record(name, outcome, reason, 0, "");
                return true;
            }
        };
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || ['_', '-'].contains(&letter);
        let log = format!("{}.log", name.replace(|letter| !is_plain(letter), "-"));
        println!("--- {name}: at most {} s, log {log}", limit.as_secs());
        let mut process = Command::new(&command[0]);
        process.args(&command[1..]).current_dir(&self.folder);
        if [TESTS, SANITIZER].contains(group) {
            // CubeCL is to search for its fastest kernels over few classes of shapes: compiling them is most of what tests take.
            process.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
        }
        let begun = Instant::now();
        let path = self.folder.join(&log);
        let ended = File::create(&path)
            .and_then(|file| self.environment.run(&mut process, limit, &file))
            .map_err(|error| format!("failed: cannot start: {error}"));
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let (outcome, reason) = verdict(phase, ended, &text);
        self.record(name, outcome, reason, begun.elapsed().as_secs(), &log);
        if phase.is_first() {
            print!("{text}");
        } else if outcome == Outcome::Failed {
            telling(&text).for_each(|line| println!("    {line}"));
        }
        let goes_on = outcome == Outcome::Passed || !phase.is_first();
        if !goes_on {
            eprintln!("burn-fp8 does not run natively on this device; see {}", path.display());
        }
        goes_on
    }

    /// The command of a phase and its time, or why it is left out.
    fn prepare(&self, phase: &Phase) -> Result<(Vec<OsString>, Duration), (Outcome, String)> {
        let skip = |reason: &str| Err((Outcome::Skipped, format!("skipped: {reason}")));
        let lose = |reason: &str| Err((Outcome::Failed, format!("skipped: {reason}")));
        let Phase { name, group, program, arguments, .. } = phase;
        let Machine { sanitizer, torch, .. } = self.machine;
        let path = self.archive.join("bin").join(program);
        let mut command: Vec<OsString> = match (*group, sanitizer, torch) {
            (SANITIZER, ..) if self.quick => return skip("not with --quick"),
            (SANITIZER, None, _) => return skip("no compute-sanitizer"),
            (group, _, None) if WITH_TORCH.contains(&group) => return skip("no torch"),
            (SANITIZER, Some(sanitizer), _) => {
                let tool = name.trim_start_matches("sanitizer-");
                let options = ["--tool", tool, "--error-exitcode", "9"].map(OsString::from);
                [&[sanitizer.into()], &options[..], &[path.clone().into()]].concat()
            }
            (_, _, Some((python, _))) if program.ends_with(".py") => {
                vec![python.into(), self.archive.join("peers").join(program).into()]
            }
            _ => vec![path.clone().into()],
        };
        if is_interrupted() {
            return lose("interrupted");
        }
        if let Some(reason) = &phase.lost {
            return lose(reason);
        }
        if !program.ends_with(".py") && !path.is_file() {
            return lose(&format!("there is no bin/{program}"));
        }
        let mut limit = Duration::from_secs(phase.seconds);
        if let Some(ends) = self.ends {
            let end = ends[usize::from(phase.is_benchmark())];
            let left = end.saturating_duration_since(Instant::now());
            if left < WORTH_STARTING && !phase.is_first() {
                return lose("no time left");
            }
            limit = limit.min(left);
        }
        // Leaves time to write what was measured.
        let seconds = limit.as_secs().saturating_sub(60).to_string();
        command.extend(arguments.iter().map(|word| word.replace("{seconds}", &seconds).into()));
        let of_torch = fs::metadata(self.folder.join("torch.json"));
        if *group == BENCH && of_torch.is_ok_and(|file| file.len() > 0) {
            command.extend(["--torch".into(), "torch.json".into()]);
        }
        Ok((command, limit))
    }

    /// Says how a phase ended, and adds a line of phase, status, seconds and log, separated by tabs.
    fn record(&mut self, name: &str, outcome: Outcome, reason: String, seconds: u64, log: &str) {
        println!("--- {name}: {reason} in {seconds} s");
        let status = reason.replace(['\t', '\n'], " ");
        let file = File::options().create(true).append(true).open(self.folder.join("phases.tsv"));
        let line = format!("{name}\t{status}\t{seconds}\t{log}\n");
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("note: cannot write phases.tsv: {error}");
        }
        self.verdicts.push(Verdict { outcome, name: name.to_owned(), reason });
    }

    /// Reports, and says whether all has passed.
    pub fn finish(mut self) -> bool {
        let mut command = Command::new(self.archive.join("bin/burn-fp8-gpu"));
        command.arg("report").arg(&self.folder).current_dir(&self.folder);
        let failure = match self.environment.output(&mut command, 120) {
            Ok(output) => {
                print!("{}", output.text);
                (!output.ended.is_ok()).then(|| output.ended.to_string())
            }
            Err(error) => Some(format!("failed: cannot start: {error}")),
        };
        if let Some(reason) = failure {
            let name = "report".to_owned();
            self.verdicts.push(Verdict { outcome: Outcome::Failed, name, reason });
        }
        // What was written for torch's comparison is large and of no further use.
        let _ = fs::remove_dir_all(self.folder.join("accuracy"));
        let folder = self.folder.display();
        println!("results: {folder}/results.json, {folder}/table.txt, {folder}/table.md");
        let count = |of| self.verdicts.iter().filter(|verdict| verdict.outcome == of).count();
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(count);
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        for Verdict { name, reason, outcome } in &self.verdicts {
            if *outcome != Outcome::Passed {
                println!("  {name}: {reason}");
            }
        }
        failed == 0
    }
}

/// What to say of a program that has ended: how, and why, where the log shows a cause that is known.
fn verdict(phase: &Phase, ended: Result<Ended, String>, text: &str) -> (Outcome, String) {
    if let Some(line) = refusal(text)
        && phase.group == SANITIZER
    {
        let reason = format!("skipped: compute-sanitizer cannot watch a program here: {line}");
        return (Outcome::Skipped, reason);
    }
    let ended = match ended {
        Err(error) => return (Outcome::Failed, error),
        Ok(ended) if ended.is_ok() => ended,
        Ok(ended) => {
            let cause = cause(text).map(|cause| format!(" ({cause})")).unwrap_or_default();
            return (Outcome::Failed, format!("{ended}{cause}"));
        }
    };
    match phase.evidence().map(|(words, least)| (text.matches(words).count(), least)) {
        Some((times, least)) if times < least => {
            let reason =
                format!("failed: {times} times on tensor cores instead of {least} or more");
            (Outcome::Failed, reason)
        }
        _ => (Outcome::Passed, ended.to_string()),
    }
}
