//! Runs the steps of a task one after the other and keeps the time of each.

use std::{
    io::{self, BufReader},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Artifact, Message};

use crate::repository::root;
use crate::skips::{self, Skips};

/// The steps that have run so far.
pub struct Steps {
    done: Vec<Step>,
    skips: Skips,
}

struct Step {
    title: String,
    time: Duration,
    passed: bool,
}

impl Steps {
    /// No step has run.
    pub fn new() -> Self {
        Self { done: Vec::new(), skips: Skips::default() }
    }

    /// Runs cargo in the folder that xtask was started in, which lies in the repository: a file that the arguments name is
    /// the caller's. Fails, naming step and command, if cargo does.
    pub fn cargo(&mut self, title: &str, arguments: &[&str]) -> Result<()> {
        let command = format!("cargo {}", arguments.join(" "));
        self.timed(title, &command, || {
            let status = Command::new(cargo()).args(arguments).status();
            let status = status.context("cannot start cargo")?;
            ensure!(status.success(), "`{command}` ended with {status}");
            Ok(())
        })
    }

    /// Runs `cargo test` like [`cargo`](Self::cargo), and notes which tests were skipped or ignored, for the summary.
    pub fn tests(&mut self, title: &str, arguments: &[&str]) -> Result<()> {
        self.tests_with(title, arguments, &[])
    }

    /// The same, with variables in the environment.
    pub fn tests_with(
        &mut self,
        title: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<()> {
        let command = format!("cargo test {}", arguments.join(" "));
        let mut skips = std::mem::take(&mut self.skips);
        let result = self.timed(title, &command, || {
            let file = Skips::new_file()?;
            let mut process = Command::new(cargo());
            // All that fails, not the first: a build takes longer than its tests.
            process.args(["test", "--no-fail-fast"]).args(arguments).env(skips::VARIABLE, &file);
            process.envs(variables.iter().copied()).stdout(Stdio::piped());
            let mut child = process.spawn().context("cannot start cargo")?;
            let output = child.stdout.take().context("the output of cargo is a pipe")?;
            skips.pass_on(BufReader::new(output), io::stdout())?;
            let status = child.wait()?;
            skips.take(&file)?;
            ensure!(status.success(), "`{command}` ended with {status}");
            Ok(())
        });
        self.skips = skips;
        result
    }

    /// Runs a step of xtask's own and returns what it makes. Fails, naming the step, if it does.
    pub fn step<T>(&mut self, title: &str, action: impl FnOnce() -> Result<T>) -> Result<T> {
        self.timed(title, "(in xtask)", action)
    }

    fn timed<T>(
        &mut self,
        title: &str,
        command: &str,
        action: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        println!("\n=== {title}: {command}");
        let start = Instant::now();
        let result = action();
        let time = start.elapsed();
        let passed = result.is_ok();
        println!("=== {title}: {} in {:.1} s", verdict(passed), time.as_secs_f64());
        self.done.push(Step { title: title.to_string(), time, passed });
        result.with_context(|| format!("step \"{title}\""))
    }

    /// One line for each step, and their sum, then what the tests skipped; nothing where nothing was done.
    pub fn print_summary(&self) {
        if self.done.is_empty() {
            return;
        }
        println!("\n{:<34} {:>6} {:>9}", "step", "result", "seconds");
        let line = |title: &str, passed, time: Duration| {
            println!("{title:<34} {:>6} {:>9.1}", verdict(passed), time.as_secs_f64());
        };
        self.done.iter().for_each(|step| line(&step.title, step.passed, step.time));
        let total = self.done.iter().map(|step| step.time).sum();
        line("all", self.done.iter().all(|step| step.passed), total);
        print!("{}", self.skips);
    }
}

/// What cargo builds with these arguments. What it has to say besides goes to the terminal.
pub fn built(arguments: &[&str]) -> Result<Vec<Artifact>> {
    let mut command = Command::new(cargo());
    command.args(arguments).arg("--message-format=json-render-diagnostics");
    let output = command.current_dir(root()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start cargo")?;
    let arguments = arguments.join(" ");
    ensure!(output.status.success(), "`cargo {arguments}` ended with {}", output.status);
    let artifact = |message: io::Result<Message>| match message {
        Ok(Message::CompilerArtifact(artifact)) => Some(Ok(artifact)),
        Ok(_) => None,
        Err(error) => Some(Err(error).context("cannot read cargo's output")),
    };
    Message::parse_stream(&output.stdout[..]).filter_map(artifact).collect()
}

/// The cargo that runs this program.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string())
}

fn verdict(passed: bool) -> &'static str {
    if passed { "ok" } else { "FAILED" }
}
