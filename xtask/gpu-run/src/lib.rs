//! What a GPU host runs: checks what the host has, runs the programs of an archive one after the other, reports.
//!
//! Nothing here knows Burn or CUDA, so that it compiles in seconds and starts where no CUDA is: what is missing is what it says.
//! `cargo xtask gpu` calls [`run`] before it builds the programs, and starts the program of this crate with them afterwards.

mod arguments;
mod host;
pub mod interrupt;
mod known;
mod log;
mod phases;
mod plan;
mod process;
mod results;
mod selection;
mod session;

use std::path::Path;

use anyhow::Result;

pub use arguments::Arguments;
use host::Findings;
use selection::Selection;
use session::Session;

/// Exit status: everything passed.
const PASSED: u8 = 0;
/// Exit status: something failed, was cut short, or missed a target.
const FAILED: u8 = 1;
/// Exit status: this machine lacks something, or the command line is wrong.
const CANNOT: u8 = 2;

/// Checks this machine and runs what the arguments ask for. Returns the exit status: 0 all passed; 1 something failed, was cut short,
/// or missed a target; 2 this machine lacks something, or a phase is unknown.
///
/// `archive` is the folder with `bin/`; without one there is nothing to run yet, and only the machine is checked. `command` is what
/// the report says was called.
///
/// # Errors
/// If the output folder cannot be written.
pub fn run(arguments: &Arguments, archive: Option<&Path>, command: &str) -> Result<u8> {
    let selection = match Selection::new(arguments, archive) {
        Ok(selection) => selection,
        Err(error) => {
            eprintln!("{error}; see --help");
            return Ok(CANNOT);
        }
    };
    if arguments.list && !arguments.check_only {
        let Some(archive) = archive else { return Ok(PASSED) };
        plan::list(archive);
        return Ok(PASSED);
    }
    let Findings { machine, missing, notes } = host::check(arguments, archive)?;
    for note in notes {
        eprintln!("note: {note}");
    }
    if !missing.is_empty() && !arguments.list {
        eprintln!("This machine cannot run burn-fp8 natively. Missing:");
        for entry in &missing {
            eprintln!("  - {}\n      {}", entry.what, entry.why);
        }
        return Ok(CANNOT);
    }
    if let Some(device) = &machine.device {
        println!("This machine has what is needed. Device {device}");
    }
    if arguments.check_only {
        return Ok(PASSED);
    }
    let Some(archive) = archive.filter(|archive| archive.join("bin/burn-fp8-gpu").is_file()) else {
        eprintln!(
            "{} has no programs: build them with `cargo xtask gpu`, or unpack an archive of `cargo xtask gpu-bundle`",
            archive.map_or_else(
                || "this folder".into(),
                |archive| archive.join("bin").display().to_string()
            )
        );
        return Ok(CANNOT);
    };
    let mut session = Session::begin(arguments, selection, archive, &machine, command)?;
    if !session.device() {
        return Ok(FAILED);
    }
    plan::run(&mut session, &machine);
    Ok(if session.finish() { PASSED } else { FAILED })
}
