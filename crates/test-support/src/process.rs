//! Tests that run in a process of their own: what belongs to a process is theirs alone, and they may end it, or never end.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

/// The environment variable that names the fault of the simulated CUDA device (`cargo xtask sim`): `xtask/sim/driver/faults.h` lists what it
/// can be.
const FAULT: &str = "SIM_FAULT";

/// Set in the process of a test.
const ALONE: &str = "BURN_FP8_TEST_ALONE";

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

/// Runs `check` where an environment variable has this value. Elsewhere runs this test again in a process of its own where it does: some
/// variables are read when a process starts, and some faults are never over.
///
/// # Panics
///
/// If the process cannot be started, does not end well, or does not end.
pub fn with_variable(name: &str, value: &str, check: impl FnOnce()) {
    match std::env::var(name).is_ok_and(|asked| asked == value) {
        true => check(),
        false => again(&[(name, value)]),
    }
}

/// Runs a test in a process of its own: what belongs to the process (defaults, the unit in use, random numbers) is the test's alone.
///
/// # Panics
///
/// As [`with_variable`].
pub fn alone(check: impl FnOnce()) {
    with_variable(ALONE, &test(), check);
}

/// The test on this thread.
fn test() -> String {
    let thread = std::thread::current();
    thread.name().expect("libtest names its threads after the tests").into()
}

/// Runs this test again with these variables.
fn again(variables: &[(&str, &str)]) {
    let test = test();
    let program = std::env::current_exe().expect("a test is a program");
    let mut child = Command::new(program)
        .args(["--exact", &test, "--include-ignored", "--nocapture", "--test-threads=1"])
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a test starts itself");
    let mut stdout = child.stdout.take().expect("it is a pipe");
    let reader = spawn(move || {
        let mut said = String::new();
        stdout.read_to_string(&mut said).map(|_| said)
    });
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
        panic!("{test} with {variables:?} hangs");
    };
    let said = reader.join().expect("no panic").expect("UTF-8");
    print!("{said}");
    assert!(status.success(), "{test} with {variables:?} ended with {status}");
    assert!(said.contains("1 passed"), "{test} with {variables:?} did not run");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panic_of;

    #[test]
    fn a_test_may_be_alone() {
        alone(|| assert_eq!(std::env::var(ALONE).unwrap(), test()));
    }

    #[test]
    fn what_fails_in_another_process_fails_here() {
        const FAILS: &str = "BURN_FP8_TEST_SUPPORT_FAILS";
        if std::env::var_os(FAILS).is_some() {
            return with_variable(FAILS, "1", || panic!("on purpose"));
        }
        let message = panic_of(|| with_variable(FAILS, "1", || ()));
        assert!(message.contains("with [(\"BURN_FP8_TEST_SUPPORT_FAILS\", \"1\")] ended with"));
    }
}
