//! Programs that are started, with a limit of time.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Formatter};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use wait_timeout::ChildExt;

use crate::interrupt;

/// How long a program that is asked to end may take for it.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is looked whether the run is to end.
const PATIENCE: Duration = Duration::from_millis(200);

/// Variables that programs have in their environment besides those of this one.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    pub fn set(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.insert(name.into(), value.as_ref().to_owned());
    }

    /// The value here, or else that of this process.
    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.get(OsStr::new(name)).cloned().or_else(|| std::env::var_os(name))
    }

    /// Puts a folder before those of a search path.
    pub fn prepend(&mut self, name: &str, folder: &Path) {
        let rest = self.get(name).filter(|value| !value.is_empty());
        let mut value = folder.as_os_str().to_owned();
        if let Some(rest) = rest {
            value.push(":");
            value.push(rest);
        }
        self.set(name, value);
    }

    /// Puts a folder after those of a search path.
    pub fn append(&mut self, name: &str, folder: &Path) {
        let mut value = self.get(name).unwrap_or_default();
        if !value.is_empty() {
            value.push(":");
        }
        value.push(folder);
        self.set(name, value);
    }

    pub fn apply(&self, command: &mut Command) {
        command.envs(&self.0);
    }
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

/// Runs a program for its output.
///
/// # Errors
/// If it cannot be started, or its output cannot be read.
pub fn output(command: &mut Command, limit: Duration) -> io::Result<Output> {
    let mut file = tempfile::tempfile()?;
    let ended = run(command, limit, &file)?;
    let mut bytes = vec![];
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(Output { text: String::from_utf8_lossy(&bytes).into_owned(), ended })
}

/// Runs a program, which prints into `log`, and ends it when its time is up.
///
/// # Errors
/// If it cannot be started or waited for.
pub fn run(command: &mut Command, limit: Duration, log: &File) -> io::Result<Ended> {
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    // What it starts is ended with it.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let mut child = command.spawn()?;
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        if let Some(status) = child.wait_timeout(left.min(PATIENCE))? {
            return Ok(Ended::By(status));
        }
        if interrupt::requested() {
            end(&mut child)?;
            return Ok(Ended::Interrupted);
        }
        if left.is_zero() {
            end(&mut child)?;
            return Ok(Ended::TimedOut);
        }
    }
}

/// Asks a program and what it started to end, and ends them if they do not.
fn end(child: &mut Child) -> io::Result<()> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process_group};
        let group = Pid::from_child(child);
        kill_process_group(group, Signal::TERM)?;
        let ended = child.wait_timeout(GRACE)?;
        // One of its own may be left where it has ended; that there is none is no failure.
        let _ = kill_process_group(group, Signal::KILL);
        if ended.is_some() {
            return Ok(());
        }
    }
    #[cfg(not(unix))]
    child.kill()?;
    child.wait().map(drop)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{Ended, Environment, output};

    fn shell(script: &str, limit: Duration) -> super::Output {
        output(Command::new("/bin/sh").args(["-c", script]), limit).unwrap()
    }

    #[test]
    fn what_a_program_prints_and_how_it_ends_is_known() {
        let long = Duration::from_secs(60);
        let ran = shell("echo out; echo err >&2", long);
        assert_eq!((ran.text.as_str(), ran.ended.is_ok()), ("out\nerr\n", true));
        assert_eq!(shell("exit 3", long).ended.to_string(), "failed: status 3");
        let killed = shell("kill -SEGV $$", long).ended.to_string();
        assert!(killed.starts_with("failed: signal: 11"), "{killed}");
    }

    /// The shell waits for another program, which would go on without it.
    #[test]
    fn a_program_ends_with_what_it_started_when_its_time_is_up() {
        let place = tempfile::tempdir().unwrap();
        let alive = place.path().join("alive");
        let script = format!("(sleep 2; touch {}) & wait", alive.display());
        let begun = Instant::now();
        assert_eq!(shell(&script, Duration::from_millis(300)).ended, Ended::TimedOut);
        assert!(begun.elapsed() < Duration::from_secs(2));
        std::thread::sleep(Duration::from_secs(3));
        assert!(!alive.exists());
    }

    #[test]
    fn a_folder_goes_before_or_after_those_of_a_path() {
        let mut environment = Environment::default();
        let name = "BURN_FP8_NO_SUCH_PATH";
        environment.append(name, "/b".as_ref());
        environment.prepend(name, "/a".as_ref());
        environment.append(name, "/c".as_ref());
        assert_eq!(environment.get(name).unwrap(), "/a:/b:/c");
    }
}
