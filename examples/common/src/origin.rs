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
    /// The backend, where there was a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The unit that FP8 products ran on, of benchmarks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Whether the program was built with optimizations: its times mean nothing otherwise.
    pub optimized: bool,
}

impl Origin {
    /// This command of this program, on this machine, today.
    ///
    /// Paths are left out, which these options take: they tell of the machine's folders and nothing of the result.
    pub fn here(program: &str, paths: &[&str]) -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            command: command(program, paths, std::env::args().skip(1)),
            commit: commit(),
            date: time::OffsetDateTime::now_utc().date().to_string(),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            backend: None,
            unit: None,
            optimized: !cfg!(debug_assertions),
        }
    }

    /// The same, on a backend.
    pub fn with_backend(self, backend: crate::BackendName) -> Self {
        Self { backend: Some(backend.as_str().into()), ..self }
    }
}

fn command(program: &str, paths: &[&str], arguments: impl Iterator<Item = String>) -> String {
    let mut command = program.to_owned();
    let mut is_path = false;
    for argument in arguments {
        let (option, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let takes_path = paths.contains(&option);
        if !is_path && !takes_path {
            command = command + " " + &argument;
        }
        is_path = takes_path && value.is_empty();
    }
    command
}

/// The commit that the sources are at, which `cargo run` has just built.
fn commit() -> Option<String> {
    let mut git = Command::new("git");
    git.args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--dirty"]);
    git.args(["--abbrev=40", "--exclude=*"]).stdin(Stdio::null());
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, commit, date, cpu, cores, backend, optimized, .. } = self;
        write!(f, "`{command}`, {date}, {cpu}, {cores} cores")?;
        if let Some(backend) = backend {
            write!(f, ", backend {backend}")?;
        }
        if let Some(commit) = commit {
            let (hash, changed) = commit.split_once('-').unwrap_or((commit, ""));
            let hash = if hash.len() == 40 { &hash[..12] } else { hash };
            write!(f, ", commit {hash}{}{changed}", if changed.is_empty() { "" } else { "-" })?;
        }
        if !optimized {
            write!(f, ", built without optimizations: the times mean nothing")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn a_command_is_told_without_paths() {
        for (arguments, expected) in [
            ("", "it"),
            ("compare --out /a/b --seed 1", "it compare --seed 1"),
            ("--out=/a --json /b --peers --threads=1", "it --peers --threads=1"),
        ] {
            let arguments = arguments.split_whitespace().map(String::from);
            assert_eq!(command("it", &["--out", "--json"], arguments), expected);
        }
    }
}
