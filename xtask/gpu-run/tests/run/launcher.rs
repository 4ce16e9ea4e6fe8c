//! The script that starts the program.

use std::fs;
use std::process::Command;

use burn_fp8_test_support::skip;

use crate::host::{Host, SCRIPT, error, printed, remove, run_to_end};

#[test]
fn another_system_is_named() {
    let host = Host::complete();
    remove(&host.path("bin/uname"));
    host.program("bin/uname", r#"case $1 in -s) echo Darwin;; -m) echo arm64;; esac"#);
    let missing = host.missing();
    assert!(missing.contains("Linux on x86-64\n      this is Darwin-arm64"), "{missing}");
}

/// As the loader says it where the C library is too old.
#[test]
fn a_program_that_does_not_start_is_explained() {
    let host = Host::complete();
    remove(&host.path("archive/bin/burn-fp8-gpu-run"));
    host.program(
        "archive/bin/burn-fp8-gpu-run",
        "echo \"/lib/libc.so.6: version \\`GLIBC_2.34' not found\" >&2; exit 1",
    );
    let missing = host.missing();
    assert!(missing.contains("version `GLIBC_2.34' not found; if that names GLIBC"), "{missing}");
}

#[test]
fn a_folder_without_programs_is_explained() {
    let host = Host::complete();
    fs::remove_dir_all(host.path("archive/bin")).unwrap();
    let output = host.run(&["--check-only"]);
    assert_eq!(output.status.code(), Some(2));
    let text = error(&output);
    assert!(text.contains("bin has no programs: build them with `cargo xtask gpu`"), "{text}");
}

#[test]
fn arguments_and_status_are_handed_on() {
    let host = Host::complete();
    remove(&host.path("archive/bin/burn-fp8-gpu-run"));
    host.program(
        "archive/bin/burn-fp8-gpu-run",
        r#"[ "$1" != --version ] || exit 0; printf '<%s>' "$@"; exit 7"#,
    );
    let output = run_to_end(host.command().args(["--out", "a b", ""]));
    assert_eq!((printed(&output).as_str(), output.status.code()), ("<--out><a b><>", Some(7)));
}

#[test]
fn the_script_is_short_and_shellcheck_finds_nothing() {
    assert!(fs::read_to_string(SCRIPT).unwrap().lines().count() <= 60);
    let Ok(shellcheck) = which::which("shellcheck") else {
        return skip("there is no shellcheck");
    };
    let output = run_to_end(Command::new(shellcheck).arg(SCRIPT));
    assert!(output.status.success(), "{}", printed(&output));
}
