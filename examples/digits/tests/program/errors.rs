//! Whatever it is given, the program answers with one line that names the problem, and exit code 2.

use crate::digits;

#[test]
fn bad_flags() {
    let recipes =
        "f32, fp8-current, fp8-measured, fp8-delayed, fp8-row, mxfp8, fp8-block, fp8-layers";
    for (arguments, words) in [
        ("--frobnicate", ["--frobnicate", "--help"]),
        ("--epochs 0", ["--epochs", "1..=1000"]),
        ("--seed 1,-2", ["--seed", "-2"]),
        ("--backend abacus", ["abacus", "flex, ndarray"]),
        ("--config", ["--config", "--help"]),
        ("--recipe fp4", ["fp4", recipes]),
    ] {
        digits().fails(arguments, &words);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        assert!(!digits().prints(flag).is_empty());
    }
}

#[test]
fn files_that_cannot_be_used() {
    let digits = digits();
    digits.fails("--config /no/such/file", &["cannot read /no/such/file"]);
    digits.write("file", "");
    digits.fails("--out file/inside", &["cannot make the directory", "inside"]);
}

#[test]
fn malformed_configs() {
    let history = |length| {
        format!(r#"{{"recipe": {{"scaling": {{"delayed": {{"history_length": {length}}}}}}}}}"#)
    };
    let cases: [(&str, &[&str]); 9] = [
        ("", &["EOF"]),
        (r#"{"enabled": 1}"#, &["boolean", "line 1"]),
        (r#"{"recipes": {}}"#, &["unknown field `recipes`"]),
        (r#"{"broken\nname": {}}"#, &["unknown field"]),
        (r#"{"recipe": {"margin": 65}}"#, &["margin", "65", "-64..=64"]),
        (r#"{"filter": {"min_m": -1}}"#, &["-1"]),
        (&history(0), &["history_length", "1..=65536"]),
        (&history(70_000), &["history_length", "70000"]),
        (r#"{"recipe": {"formats": {"input": "e5m2"}}}"#, &["grad_weight", "E5M2 by E5M2"]),
    ];
    let digits = digits();
    for (json, words) in cases {
        digits.write("bad.json", json);
        digits.fails("--config bad.json", &[words, &["bad.json"]].concat());
    }
}

#[test]
fn configs_that_cannot_be_followed() {
    let digits = digits();
    digits.write("e4m3.json", r#"{"recipe": {"formats": {"output_grad": "e4m3"}}}"#);
    let words = ["fp8-layers", "--recipe f32,fp8-current,fp8-delayed"];
    digits.fails("--config e4m3.json", &words);
    digits.fails("--config e4m3.json --recipe mxfp8", &["mxfp8", "`recipe`"]);
    digits.write("native.json", r#"{"execution": "native"}"#);
    let without_unit = [("BURN_FP8_CPU_UNIT", "portable")];
    let words = ["Native", "Execution::FakeQuantized"];
    digits.fails_in(&without_unit, "--config native.json", &words);
    // Before anything runs, and no matter what will.
    let words = ["BURN_FP8_CPU_UNIT: \"foo\" is no unit; this machine has ", "portable"];
    digits.fails_in(&[("BURN_FP8_CPU_UNIT", "foo")], "", &words);
    let upper = [("BURN_FP8_CPU_UNIT", "PORTABLE")];
    digits.fails_in(&upper, "--config native.json", &["Native", "Execution::FakeQuantized"]);
}
