//! A program that runs something whenever it is told to, so that it can be measured in turns with something here.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use burn_fp8_cpu::Unit;

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The script that runs PyTorch.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/cpu_products.py");

/// The script that runs decoders.
const GENERATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/generate.py");

/// A running program. A line sent starts a run, a line received ends it.
pub struct Partner {
    /// What it says it is.
    pub name: String,
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Partner {
    /// f32 as Burn builds it by default, from the program beside this one.
    ///
    /// # Errors
    /// Where it has not been built: `cargo xtask bench` builds both.
    pub fn f32(arguments: &[&str], threads: usize) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let program = program.with_file_name("burn-fp8-bench-f32");
        let mut command = Command::new(&program);
        command.args(arguments).env("RAYON_NUM_THREADS", threads.to_string());
        let hint = "build it with: cargo build --release -p burn-fp8-bench-f32";
        Self::start(command).map_err(|error| format!("{}: {error}; {hint}", program.display()))
    }

    /// PyTorch.
    ///
    /// # Errors
    /// Where this Python has none.
    pub fn torch(python: &Path, arguments: &[&str], threads: usize) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.arg(SCRIPT).arg(threads.to_string()).args(arguments);
        // Its threads would wait for the next run in a loop, on the cores that we are measured on.
        command.envs([("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")]);
        Self::start(command).map_err(|error| format!("PyTorch by {}: {error}", python.display()))
    }

    /// A decoder, by the peer, the configuration and the task that the script `generate.py` takes.
    ///
    /// # Errors
    /// Where this Python has no such peer.
    pub fn generate(python: &Path, arguments: [&str; 3], threads: usize) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.arg(GENERATE).args(arguments).arg(threads.to_string());
        command.envs([("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0")]);
        Self::start(command)
            .map_err(|error| format!("{} by {}: {error}", arguments[0], python.display()))
    }

    fn start(mut command: Command) -> Result<Self, String> {
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.map_err(|error| error.to_string())?;
        let to = process.stdin.take();
        let from = BufReader::new(process.stdout.take().expect("piped"));
        let mut partner = Self { name: String::new(), process, to, from };
        partner.name = partner.receive()?.trim().to_owned();
        Ok(partner)
    }

    /// One run.
    pub fn run(&mut self) {
        let to = self.to.as_mut().expect("open until it is dropped");
        let sent = to.write_all(b"\n").and_then(|()| to.flush());
        if let Err(error) = sent.map_err(|error| error.to_string()).and_then(|()| self.receive()) {
            panic!("the program to compare with has stopped: {error}");
        }
    }

    fn receive(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err("it says nothing".into()),
            Ok(_) => Ok(line),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Measures something of a group, at so many threads, beside the same in PyTorch, where a Python was given for it: in f32, and in bf16 where the CPU
/// has instructions for it. A kind, the type and
/// further arguments are what its script takes.
pub fn beside_torch(
    options: &Options,
    (group, threads): (&str, usize),
    (name, run): (&str, &mut dyn FnMut()),
    (kind, arguments): (&str, &[String]),
) -> Vec<Row> {
    let Some(python) = &options.python else { return vec![] };
    let row = |dtype| {
        let arguments = arguments.iter().map(String::as_str);
        let arguments: Vec<_> = [kind, dtype].into_iter().chain(arguments).collect();
        let partner = Partner::torch(python, &arguments, threads);
        let mut partner = partner.map_err(|error| eprintln!("{error}")).ok()?;
        let reference = format!("{}: {dtype}", partner.name);
        let mut other = || partner.run();
        let (subject, reference) = (Side::new(name, run), Side::new(&reference, &mut other));
        Some(options.compare((group, threads, None), subject, reference))
    };
    let types: &[&str] = if has_bf16() { &["f32", "bf16"] } else { &["f32"] };
    types.iter().copied().filter_map(row).collect()
}

/// Whether PyTorch is measured in bf16. Without instructions for it a step of the group `mlp` takes it 29 to 59 times as long as in f32.
pub fn has_bf16() -> bool {
    let has_bf16 = Unit::available().iter().any(|unit| *unit != Unit::Portable);
    if !has_bf16 {
        eprintln!("PyTorch in bf16: not measured, this CPU has no instructions for bf16");
    }
    has_bf16
}

impl Drop for Partner {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.to.take());
        let _ = self.process.wait();
    }
}
