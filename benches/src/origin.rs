//! What rows were measured with: figures without that are worth nothing.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// What rows were measured with.
#[derive(Serialize)]
pub struct Origin {
    /// The command.
    command: String,
    /// The commit, with `-dirty` where the tree had changes that are in none; `unknown` outside of git.
    commit: String,
    /// The day, in UTC.
    date: String,
    /// The model of the processor.
    cpu: String,
    /// The unit that FP8 products ran on.
    unit: String,
    /// The processors that the program may use. The threads of a measurement are in its row.
    cores: usize,
    /// Whether the program was built with optimizations: times mean nothing otherwise.
    optimized: bool,
}

impl Origin {
    /// The unit that FP8 products ran on.
    pub fn unit(&self) -> &str {
        &self.unit
    }

    /// The model of the processor.
    pub fn cpu(&self) -> &str {
        &self.cpu
    }

    /// The day, in UTC.
    pub fn date(&self) -> &str {
        &self.date
    }

    /// This machine, today.
    pub fn here() -> Self {
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            command: command(std::env::args().skip(1)),
            commit: commit().unwrap_or_else(|| "unknown".to_owned()),
            date: time::OffsetDateTime::now_utc().date().to_string(),
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            unit: burn_fp8_cpu::Unit::current().to_string(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            optimized: !cfg!(debug_assertions),
        }
    }
}

/// The command of these arguments. Paths are left out: they tell of the machine's folders and nothing of the figures.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut command = "cargo xtask bench".to_owned();
    let mut is_path = false;
    for argument in arguments {
        let (option, value) = argument.split_once('=').unwrap_or((&argument, ""));
        let takes_path = ["--json", "--picture", "--python"].contains(&option);
        if !is_path && !takes_path {
            command = command + " " + &argument;
        }
        is_path = takes_path && value.is_empty();
    }
    command
}

fn commit() -> Option<String> {
    let arguments = ["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"];
    let git = Command::new("git").args(arguments).output().ok()?;
    let commit = String::from_utf8(git.stdout).ok()?;
    git.status.success().then(|| commit.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn a_command_is_told_without_paths() {
        for (arguments, expected) in [
            ("", "cargo xtask bench"),
            ("--only mlp --json /home/me/a.json", "cargo xtask bench --only mlp"),
            ("--json=/a --python /b --peers --threads=1", "cargo xtask bench --peers --threads=1"),
        ] {
            assert_eq!(command(arguments.split_whitespace().map(String::from)), expected);
        }
    }
}
