//! Programs that are started, with a limit of time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::TERM_SIGNALS;
use wait_timeout::ChildExt;

/// How long a program that is asked to end may take for it.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether the run is to end.
const PATIENCE: Duration = Duration::from_millis(200);

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes signals that would end this process a request to end the run. Without it a phase, which has a process group of its own,
/// would go on alone.
pub fn listen() -> io::Result<()> {
    let listen = |signal: &i32| signal_hook::flag::register(*signal, Arc::clone(&INTERRUPTED));
    TERM_SIGNALS.iter().try_for_each(|signal| listen(signal).map(drop))
}

/// Whether a signal has asked for the end of the run.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Variables that programs have in their environment besides those of this one.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.insert(name.into(), value.as_ref().to_owned());
    }

    /// The value here, or else that of this process; nothing if it is empty.
    pub fn get(&self, name: &str) -> Option<OsString> {
        let value = self.0.get(OsStr::new(name)).cloned().or_else(|| std::env::var_os(name));
        value.filter(|value| !value.is_empty())
    }

    /// Puts a folder before those that the loader looks into.
    pub fn load_from(&mut self, folder: &Path) {
        const NAME: &str = "LD_LIBRARY_PATH";
        let rest = self.get(NAME).map(|rest| [OsString::from(":"), rest]);
        let words = [folder.as_os_str().to_owned()].into_iter().chain(rest.into_iter().flatten());
        self.set(NAME, words.collect::<OsString>());
    }

    /// Runs a program with these variables for its output.
    ///
    /// # Errors
    /// If it cannot be started, or its output cannot be read.
    pub fn output(&self, command: &mut Command, seconds: u64) -> io::Result<Output> {
        let mut file = tempfile::tempfile()?;
        let ended = self.run(command, Duration::from_secs(seconds), &file)?;
        let mut bytes = vec![];
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(Output { text: String::from_utf8_lossy(&bytes).into_owned(), ended })
    }

    /// Runs a program with these variables, which prints into `log`, and ends it when its time is up.
    ///
    /// # Errors
    /// If it cannot be started or waited for.
    pub fn run(&self, command: &mut Command, limit: Duration, log: &File) -> io::Result<Ended> {
        command.envs(&self.0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
        // What it starts is ended with it.
        let mut child = command.process_group(0).spawn()?;
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            if let Some(status) = child.wait_timeout(left.min(PATIENCE))? {
                return Ok(Ended::By(status));
            }
            if is_interrupted() || left.is_zero() {
                end(&mut child)?;
                return Ok(if is_interrupted() { Ended::Interrupted } else { Ended::TimedOut });
            }
        }
    }
}

/// Asks a program and what it started to end, and ends them if they do not.
fn end(child: &mut Child) -> io::Result<()> {
    let group = Pid::from_child(child);
    kill_process_group(group, Signal::TERM)?;
    child.wait_timeout(GRACE)?;
    // One of its own may be left where it has ended; that there is none is no failure.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait().map(drop)
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status, or by a signal.
    By(ExitStatus),
    /// By us, since its time was up.
    TimedOut,
    /// By us, since the run is to end.
    Interrupted,
}

impl Ended {
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::By(status) if status.success())
    }
}

/// As phases report it.
impl Display for Ended {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(status) if status.success() => formatter.write_str("ok"),
            Self::By(status) => match status.code() {
                Some(code) => write!(formatter, "failed: status {code}"),
                None => write!(formatter, "failed: {status}"),
            },
            Self::TimedOut => formatter.write_str("timed out"),
            Self::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

/// What a program printed, on both streams, and how it ended.
pub struct Output {
    pub text: String,
    pub ended: Ended,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> String {
        let output = Environment::default().output(Command::new("sh").args(["-c", script]), 60);
        let Output { text, ended } = output.unwrap();
        format!("{text}{ended}")
    }

    #[test]
    fn what_a_program_prints_and_how_it_ends_is_known() {
        assert_eq!(shell("echo out; echo err >&2"), "out\nerr\nok");
        assert_eq!(shell("exit 3"), "failed: status 3");
        let killed = shell("kill -SEGV $$");
        assert!(killed.starts_with("failed: signal: 11"), "{killed}");
    }

    #[test]
    fn a_folder_goes_before_those_that_are_there() {
        let mut environment = Environment::default();
        environment.set("LD_LIBRARY_PATH", "/b");
        environment.load_from("/a".as_ref());
        assert_eq!(environment.get("LD_LIBRARY_PATH").unwrap(), "/a:/b");
    }
}
