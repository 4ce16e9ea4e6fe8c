//! Whatever it is given, the program answers with one line that names the problem, and exit code 2.

use std::io::Write;
use std::path::Path;

use examples_common::testing::Program;
use flate2::Compression;
use flate2::write::GzEncoder;

fn digits() -> Program {
    Program::new(env!("CARGO_BIN_EXE_digits"))
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).and_then(|()| encoder.finish()).expect("writing to memory works")
}

/// The header and one training and one test row, of fields that a test may replace.
fn rows() -> Vec<Vec<String>> {
    let header = ["label".into(), "split".into()]
        .into_iter()
        .chain((0..64).map(|pixel| format!("p{pixel}")));
    let row = |label: &str, split: &str| {
        [label, split].into_iter().chain((0..64).map(|_| "7")).map(str::to_owned).collect()
    };
    vec![header.collect(), row("3", "0"), row("8", "1")]
}

fn csv(rows: &[Vec<String>]) -> Vec<u8> {
    rows.iter().map(|row| row.join(",") + "\n").collect::<String>().into_bytes()
}

/// The same rows with one field replaced.
fn with_field(row: usize, column: usize, field: &str) -> Vec<u8> {
    let mut rows = rows();
    rows[row][column] = field.into();
    gzip(&csv(&rows))
}

#[test]
fn bad_flags() {
    let recipes = "f32, fp8-current, fp8-delayed, fp8-row, mxfp8, fp8-block, fp8-layers";
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
    digits.fails("--data /no/such/file", &["data file /no/such/file", "No such file"]);
    digits.fails("--data .", &["cannot be read"]);
    digits.fails("--config /no/such/file", &["cannot read /no/such/file"]);
    digits.write("file", "");
    digits.fails("--out file/inside", &["cannot make the directory", "inside"]);
    if Path::new("/dev/zero").exists() {
        digits.fails("--data /dev/zero", &["/dev/zero", "limit"]);
    }
}

#[test]
fn malformed_data() {
    let whole = gzip(&csv(&rows()));
    let [mut short, mut long] = [rows(), rows()];
    short[2].pop();
    long[1].push("1".into());
    let mut no_text = csv(&rows());
    let last = no_text.len() - 2;
    no_text[last] = 0xFF;
    let huge_field = "9".repeat(1 << 20);
    // Five MiB and a byte, which need not even be gzip; and a small file that unpacks to more than the limit.
    let (huge, unpacks) = (vec![0x1F; (5 << 20) + 1], gzip(&vec![b'0'; (25 << 20) + 1]));
    let cases: [(&[u8], &[&str]); 21] = [
        (&csv(&rows()), &["no intact gzip"]),
        (b"", &["no intact gzip"]),
        (&whole[..whole.len() / 2], &["no intact gzip"]),
        (&whole[..whole.len() - 4], &["no intact gzip"]),
        (&[&whole, &b"trailing garbage"[..]].concat(), &["no intact gzip"]),
        (&gzip(&csv(&short)), &["line 3", "65 columns instead of 66"]),
        (&gzip(&csv(&long)), &["line 2", "67 columns instead of 66"]),
        (&with_field(0, 5, "q3"), &["line 1", "column 6", "\"q3\" instead of p3"]),
        (&gzip(b""), &["line 1", "columns instead of 66"]),
        (&with_field(1, 0, "10"), &["line 2", "label", "\"10\"", "from 0 to 9"]),
        (&with_field(1, 1, "2"), &["line 2", "split", "from 0 to 1"]),
        (&with_field(1, 2, "17"), &["line 2", "p0", "\"17\"", "from 0 to 16"]),
        (&with_field(1, 65, "-1"), &["line 2", "p63", "\"-1\""]),
        (&with_field(1, 9, ""), &["line 2", "p7", "\"\""]),
        (&with_field(1, 9, "1.5"), &["line 2", "p7", "\"1.5\""]),
        (&with_field(1, 9, "nan"), &["line 2", "p7", "\"nan\""]),
        (&with_field(1, 9, &huge_field), &["line 2", "p7", "99999\"…"]),
        (&gzip(&no_text), &["UTF-8", "line 3"]),
        (&gzip(&csv(&rows()[..1])), &["no training rows"]),
        (&gzip(&csv(&rows()[..2])), &["no test rows"]),
        (&huge, &["larger than the limit of 5 MiB"]),
    ];
    let digits = digits();
    let more: [(&[u8], &[&str]); 1] = [(&unpacks, &["more than the limit of 25 MiB"])];
    for (content, words) in cases.into_iter().chain(more) {
        digits.write("bad.csv.gz", content);
        digits.fails("--data bad.csv.gz", &[words, &["bad.csv.gz"]].concat());
    }
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
    digits.write("native.json", r#"{"execution": "native"}"#);
    let without_unit = [("BURN_FP8_CPU_UNIT", "portable")];
    let words = ["Native", "Execution::FakeQuantized"];
    digits.fails_in(&without_unit, "--config native.json", &words);
}

#[test]
fn tiny_data_trains_without_fp8() {
    // One image a step: M is below the filter's 16.
    let digits = digits();
    digits.write("tiny.csv.gz", gzip(&csv(&rows())));
    let report = digits.prints("--data tiny.csv.gz --epochs 2 --json");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["runs"][1]["recipe"], "fp8-current");
    assert_eq!(report["runs"][1]["fp8_products_per_step"], 0);
}
