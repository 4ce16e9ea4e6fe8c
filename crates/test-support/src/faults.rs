//! Tests that need a fault of the simulated CUDA device: `cargo xtask sim`.

use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The environment variable that names the fault: `xtask/sim/driver/faults.h` lists what it can be.
pub const FAULT: &str = "SIM_FAULT";

/// Nothing that is tested takes so long: it hangs.
const LONG: Duration = Duration::from_secs(240);

/// Runs `check` where `fault` is asked for. Elsewhere runs the ignored test of this name, which has called this, in a process of its own
/// for which it is: a fault is there from the start of a process, and some are never over.
///
/// # Panics
///
/// If that process does not end well, or not at all.
pub fn with_fault(fault: &str, test: &str, check: impl FnOnce()) {
    if std::env::var(FAULT).is_ok_and(|asked| asked == fault) {
        return check();
    }
    let status = run_with_fault(fault, test);
    assert!(status.success(), "{test} with {FAULT}={fault} ended with {status}");
}

/// Runs an ignored test of this program in a process that asks for a fault.
///
/// # Panics
///
/// If the process cannot be started, or does not end.
pub fn run_with_fault(fault: &str, test: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("a test is a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    let mut child = command.env(FAULT, fault).spawn().expect("a test starts itself");
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(status) = child.try_wait().expect("the process can be waited for") {
            return status;
        }
        sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    panic!("{test} with {FAULT}={fault} hangs");
}
