//! Where a result comes from.

use std::fmt;
use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// What a result was measured with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The command.
    pub command: String,
    /// The commit of the repository, with `-dirty` where files differed from it; or what is known of it. None where there was no repository.
    #[serde(default)]
    pub commit: Option<String>,
    /// The day, in UTC.
    pub date: String,
    /// The processor.
    pub cpu: String,
    /// The processors that the program may use, and so its threads.
    pub cores: usize,
    /// The backend.
    pub backend: String,
    /// Whether the program was built with optimizations: its times mean nothing otherwise.
    pub optimized: bool,
}

impl Origin {
    /// This command of this program, on this machine, today.
    pub fn here(program: &str, backend: &str) -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            command: command(program, std::env::args().skip(1)),
            commit: commit(),
            date: time::OffsetDateTime::now_utc().date().to_string(),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            backend: backend.into(),
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// The command of these arguments, without the folder of its results: what is there tells nothing, and may tell too much.
fn command(program: &str, arguments: impl Iterator<Item = String>) -> String {
    let mut command = program.to_owned();
    let mut is_folder = false;
    for argument in arguments {
        if argument != "--out" && !argument.starts_with("--out=") && !is_folder {
            command = command + " " + &argument;
        }
        is_folder = argument == "--out";
    }
    command
}

/// The commit that the sources are at, which `cargo run` has just built.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]);
    git.args(["--abbrev=12", "--exclude=*"]).stdin(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, commit, date, cpu, cores, backend, optimized } = self;
        write!(f, "`{command}`, {date}, {cpu}, {cores} cores, backend {backend}")?;
        if let Some(commit) = commit {
            write!(f, ", commit {commit}")?;
        }
        if !optimized {
            write!(f, ", built without optimizations: the times mean nothing")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_its_folder() {
        let told = |text: &str| command("char-lm", text.split(' ').map(str::to_owned));
        assert_eq!(told("compare --out /a/b --seed 1"), "char-lm compare --seed 1");
        assert_eq!(told("compare --out=/a/b --seed 1"), "char-lm compare --seed 1");
    }
}
