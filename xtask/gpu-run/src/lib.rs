//! What a GPU host runs: checks what the host has, runs the programs of an archive one after the other, reports.
//!
//! Nothing here knows Burn or CUDA, so that it compiles in seconds and starts where no CUDA is: what is missing is what it says.
//! `cargo xtask gpu` calls [`run`] before it builds the programs, and starts the program of this crate with them afterwards.

mod arguments;
mod host;
mod log;
mod plan;
mod process;
mod session;

use std::path::Path;

use anyhow::{Context, Result};

pub use arguments::Arguments;
use host::Machine;
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
/// `archive` is the folder with `bin/`; without one there is nothing to run yet, and only the command line and the machine are
/// checked. `command` is what the report says was called.
///
/// # Errors
/// If the output folder cannot be written, or signals cannot be listened for.
pub fn run(arguments: &Arguments, archive: Option<&Path>, command: &str) -> Result<u8> {
    let phases = match plan::wanted(arguments, archive.unwrap_or(Path::new(""))) {
        Ok(phases) => phases,
        Err(error) => {
            eprintln!("{error}; see --help");
            return Ok(CANNOT);
        }
    };
    if arguments.list {
        for phase in phases.iter().filter(|_| archive.is_some()) {
            println!("{} (group {})", phase.name, phase.group);
        }
        return Ok(PASSED);
    }
    let machine = Machine::find(&arguments.python)?;
    for note in &machine.search.notes {
        eprintln!("note: {note}");
    }
    if !machine.search.missing.is_empty() {
        eprintln!("This machine cannot run burn-fp8 natively. Missing:");
        for (what, why) in &machine.search.missing {
            eprintln!("  - {what}\n      {why}");
        }
        return Ok(CANNOT);
    }
    if let Some(device) = &machine.device {
        println!("This machine has what is needed. Device {device}");
    }
    let Some(archive) = archive.filter(|_| !arguments.check_only) else { return Ok(PASSED) };
    process::listen().context("cannot listen for signals")?;
    let mut session = Session::begin(arguments, &phases, archive, &machine, command)?;
    // Without a device that runs natively nothing else makes sense.
    let _ = phases.iter().all(|phase| session.phase(phase));
    Ok(if session.finish() { PASSED } else { FAILED })
}
