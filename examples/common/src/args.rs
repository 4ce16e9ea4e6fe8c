//! Reading the command line, and the exit code.

use std::process::ExitCode;

use anyhow::{Context, Result};
use burn_fp8::cpu::Unit;
use clap::Parser;
use clap::error::ErrorKind;

/// A program: reads the command line and runs. An error is one line on stderr and exit code 2, also where the environment variable names no unit of this CPU; where nothing was
/// asked for, the help text is.
pub fn main<A: Parser>(run: impl FnOnce(A) -> Result<ExitCode>) -> ExitCode {
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(help) if is_help(help.kind()) => {
            // Nothing is left to do where the help text has no reader.
            let _ = help.print();
            return if help.use_stderr() { WRONG.into() } else { ExitCode::SUCCESS };
        }
        Err(error) => return failed(&one_line(&error.to_string())),
    };
    let checked = Unit::try_expected().context("BURN_FP8_CPU_UNIT");
    checked.and_then(|_| run(args)).unwrap_or_else(|error| failed(&format!("error: {error:#}")))
}

/// The exit code of an error.
const WRONG: u8 = 2;

/// Whether clap has a text to be read in place of an error.
fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion)
}

fn failed(error: &str) -> ExitCode {
    // File names and fields may hold line breaks: an error stays one line.
    eprintln!("{}", error.replace(char::is_control, " "));
    WRONG.into()
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
