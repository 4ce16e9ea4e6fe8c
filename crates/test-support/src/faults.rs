//! Tests that need a fault of the simulated CUDA device: `cargo xtask sim`.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The environment variable that names the fault: `xtask/sim/driver/faults.h` lists what it can be.
const FAULT: &str = "SIM_FAULT";

/// Nothing that is tested takes so long: it hangs.
const LONG: Duration = Duration::from_secs(240);

/// Runs `check` where `fault` is asked for: see [`with_variable`].
///
/// # Panics
///
/// As [`with_variable`].
pub fn with_fault(fault: &str, check: impl FnOnce()) {
    with_variable(FAULT, fault, check);
}

/// Runs `check` where an environment variable has this value. Elsewhere runs this ignored test again in a process of its own where it does:
/// the simulation reads its variables when a process starts, and some faults are never over.
///
/// # Panics
///
/// If the process cannot be started, does not end well, or does not end.
pub fn with_variable(name: &str, value: &str, check: impl FnOnce()) {
    if std::env::var(name).is_ok_and(|asked| asked == value) {
        return check();
    }
    let thread = std::thread::current();
    let test = thread.name().expect("libtest names its threads after the tests");
    let program = std::env::current_exe().expect("a test is a program");
    let mut child = Command::new(program)
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(name, value)
        .spawn()
        .expect("a test starts itself");
    let start = Instant::now();
    let status = loop {
        match child.try_wait().expect("the process can be waited for") {
            Some(status) => break Some(status),
            None if start.elapsed() > LONG => break None,
            None => sleep(Duration::from_millis(20)),
        }
    };
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        panic!("{test} with {name}={value} hangs");
    };
    assert!(status.success(), "{test} with {name}={value} ended with {status}");
}
