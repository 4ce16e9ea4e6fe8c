//! Tests that need a fault of the simulated CUDA device: `cargo xtask sim`.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The environment variable that names the fault: `xtask/sim/driver/faults.h` lists what it can be.
pub const FAULT: &str = "SIM_FAULT";

/// Nothing that is tested takes so long: it hangs.
const LONG: Duration = Duration::from_secs(240);

/// Runs `check` where `fault` is asked for: see [`with_variable`].
///
/// # Panics
///
/// As [`with_variable`].
pub fn with_fault(fault: &str, test: &str, check: impl FnOnce()) {
    with_variable(FAULT, fault, test, check);
}

/// Runs `check` where an environment variable has this value. Elsewhere runs the ignored test of this name, which has called this, in a
/// process of its own where it does: the simulation reads its variables when a process starts, and some faults are never over.
///
/// # Panics
///
/// If that process cannot be started, does not end well, or does not end.
pub fn with_variable(name: &str, value: &str, test: &str, check: impl FnOnce()) {
    if std::env::var(name).is_ok_and(|asked| asked == value) {
        return check();
    }
    let program = std::env::current_exe().expect("a test is a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    let mut child = command.env(name, value).spawn().expect("a test starts itself");
    let start = Instant::now();
    while start.elapsed() < LONG {
        if let Some(status) = child.try_wait().expect("the process can be waited for") {
            assert!(status.success(), "{test} with {name}={value} ended with {status}");
            return;
        }
        sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    panic!("{test} with {name}={value} hangs");
}
