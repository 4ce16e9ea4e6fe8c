//! Reading the command line, and the exit code.

use std::process::ExitCode;

use anyhow::{Context, Result};
use burn_fp8::cpu::Unit;
use clap::Parser;

/// A program: reads the command line and runs. An error is one line on stderr and exit code 2, also where the environment variable names no unit of this CPU.
pub fn main<A: Parser>(run: impl FnOnce(A) -> Result<ExitCode>) -> ExitCode {
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => return failed(&one_line(&error.to_string())),
        Err(help) => {
            // Nothing is left to do where the help text has no reader.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    let checked = Unit::try_expected().context("BURN_FP8_CPU_UNIT");
    checked.and_then(|_| run(args)).unwrap_or_else(|error| failed(&format!("error: {error:#}")))
}

fn failed(error: &str) -> ExitCode {
    // File names and fields may hold line breaks: an error stays one line.
    eprintln!("{}", error.replace(char::is_control, " "));
    ExitCode::from(2)
}

/// clap's message without its usage paragraphs: the problem and, where there is one, the hint.
fn one_line(message: &str) -> String {
    let paragraphs = message.split("\n\n").filter(|paragraph| {
        !["Usage:", "For more information"]
            .iter()
            .any(|start| paragraph.trim_start().starts_with(start))
    });
    let words = paragraphs.flat_map(str::split_whitespace);
    words.collect::<Vec<_>>().join(" ") + " (see --help)"
}

/// Items in their order, each once.
pub fn once<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = vec![];
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}
