//! Reading the command line.

use std::process::ExitCode;

use clap::Parser;

/// Reads the command line. An error is one line on stderr. On `--help`, `--version` or an error this returns the exit code of what it printed.
///
/// # Errors
/// Where the program has nothing left to do.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        if error.use_stderr() {
            eprintln!("{}", one_line(&error.to_string()));
            ExitCode::from(2)
        } else {
            // Nothing is left to do where the help text has no reader.
            let _ = error.print();
            ExitCode::SUCCESS
        }
    })
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
