//! Whatever it is given, the program answers with one line that names the problem, and exit code 2.

mod common;

use common::{csv, digits, digits_in, directory, file, gzip, rows};

/// Runs `digits` and checks the one line on stderr for these words.
fn fails(test: &str, arguments: &[&str], words: &[&str]) {
    fails_in(&[], test, arguments, words);
}

fn fails_in(environment: &[(&str, &str)], test: &str, arguments: &[&str], words: &[&str]) {
    let output = digits_in(environment, test, arguments);
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.len() < 400, "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is missing in: {stderr}");
    }
    assert!(output.stdout.is_empty(), "nothing on stdout");
}

fn bad_data(test: &str, content: &[u8], words: &[&str]) {
    let path = file(test, "bad.csv.gz", content);
    fails(test, &["--data", &path], &[words, &["bad.csv.gz"]].concat());
}

/// Replaces one field of the training row.
fn bad_field(test: &str, column: usize, field: &str, words: &[&str]) {
    let mut rows = rows();
    rows[1][column] = field.into();
    bad_data(test, &gzip(&csv(&rows)), &[words, &["line 2"]].concat());
}

fn bad_config(test: &str, json: &str, words: &[&str]) {
    let path = file(test, "bad.json", json.as_bytes());
    fails(test, &["--config", &path], &[words, &["bad.json"]].concat());
}

#[test]
fn bad_flags() {
    fails("flags", &["--frobnicate"], &["--frobnicate"]);
    fails("flags", &["--epochs", "0"], &["--epochs", "1..=1000"]);
    fails("flags", &["--seed", "1,-2"], &["--seed", "-2"]);
    fails("flags", &["--backend", "abacus"], &["abacus", "flex, ndarray"]);
    fails("flags", &["--config"], &["--config"]);
    fails(
        "flags",
        &["--recipe", "fp4"],
        &["fp4", "f32, fp8-current, fp8-delayed, fp8-row, mxfp8, fp8-block, fp8-layers"],
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        let output = digits("help", &[flag]);
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty());
    }
}

#[test]
fn unreadable_files() {
    fails("unreadable", &["--data", "/no/such/file"], &["data file /no/such/file", "No such file"]);
    let directory = directory("unreadable");
    fails("unreadable", &["--data", directory.to_str().expect("UTF-8")], &["cannot be read"]);
    fails("unreadable", &["--config", "/no/such/file"], &["cannot read /no/such/file"]);
}

#[test]
fn unusable_output_directories() {
    let path = file("unusable_out", "file", b"");
    let inside = format!("{path}/inside");
    fails("unusable_out", &["--out", &inside], &["cannot make the directory", "inside"]);
}

#[test]
fn data_that_is_not_gzip() {
    bad_data("not_gzip", &csv(&rows()), &["no intact gzip"]);
    bad_data("not_gzip", b"", &["no intact gzip"]);
}

#[test]
fn truncated_and_trailing_gzip() {
    let whole = gzip(&csv(&rows()));
    bad_data("truncated", &whole[..whole.len() / 2], &["no intact gzip"]);
    bad_data("truncated", &whole[..whole.len() - 4], &["no intact gzip"]);
    bad_data("truncated", &[&whole, &b"trailing garbage"[..]].concat(), &["no intact gzip"]);
}

#[test]
fn wrong_columns() {
    let mut short = rows();
    short[2].pop();
    bad_data("columns", &gzip(&csv(&short)), &["line 3", "65 columns instead of 66"]);
    let mut long = rows();
    long[1].push("1".into());
    bad_data("columns", &gzip(&csv(&long)), &["line 2", "67 columns instead of 66"]);
    let mut header = rows();
    header[0][5] = "q3".into();
    bad_data("columns", &gzip(&csv(&header)), &["line 1", "column 6", "\"q3\" instead of p3"]);
    bad_data("columns", &gzip(b""), &["line 1", "columns instead of 66"]);
}

#[test]
fn fields_out_of_range() {
    bad_field("fields", 0, "10", &["label", "\"10\"", "from 0 to 9"]);
    bad_field("fields", 1, "2", &["split", "from 0 to 1"]);
    bad_field("fields", 2, "17", &["p0", "\"17\"", "from 0 to 16"]);
    bad_field("fields", 65, "-1", &["p63", "\"-1\""]);
    bad_field("fields", 9, "", &["p7", "\"\""]);
    bad_field("fields", 9, "1.5", &["p7", "\"1.5\""]);
    bad_field("fields", 9, "nan", &["p7", "\"nan\""]);
    bad_field("fields", 9, &"9".repeat(1 << 20), &["p7", "99999\"…"]);
}

#[test]
fn data_that_is_no_text() {
    let mut bytes = csv(&rows());
    let last = bytes.len() - 2;
    bytes[last] = 0xFF;
    bad_data("no_text", &gzip(&bytes), &["UTF-8", "line 3"]);
}

#[test]
fn missing_halves() {
    bad_data("halves", &gzip(&csv(&rows()[..1])), &["no training rows"]);
    bad_data("halves", &gzip(&csv(&rows()[..2])), &["no test rows"]);
}

#[test]
fn huge_files() {
    // Five MiB and a byte, which need not even be gzip; and a small file that unpacks to more than the limit.
    bad_data("huge", &vec![0x1F; (5 << 20) + 1], &["larger than the limit of 5 MiB"]);
    bad_data("huge", &gzip(&vec![b'0'; (25 << 20) + 1]), &["more than the limit of 25 MiB"]);
}

#[test]
fn endless_files() {
    if std::path::Path::new("/dev/zero").exists() {
        fails("endless", &["--data", "/dev/zero"], &["/dev/zero", "limit"]);
    }
}

#[test]
fn malformed_configs() {
    bad_config("config", "", &["EOF"]);
    bad_config("config", "{\"enabled\": 1}", &["boolean", "line 1"]);
    bad_config("config", "{\"recipes\": {}}", &["unknown field `recipes`"]);
    bad_config("config", "{\"broken\\nname\": {}}", &["unknown field"]);
    bad_config("config", "{\"recipe\": {\"margin\": 65}}", &["margin", "65", "-64..=64"]);
    bad_config("config", "{\"filter\": {\"min_m\": -1}}", &["-1"]);
    let history = |length| {
        format!(
            "{{\"recipe\": {{\"scaling\": {{\"delayed\": {{\"history_length\": {length}}}}}}}}}"
        )
    };
    bad_config("config", &history("0"), &["history_length", "1..=65536"]);
    bad_config("config", &history("70000"), &["history_length", "70000"]);
    let formats = "{\"recipe\": {\"formats\": {\"input\": \"e5m2\"}}}";
    bad_config("config", formats, &["grad_weight", "E5M2 by E5M2"]);
}

#[test]
fn recipes_that_the_layers_cannot_follow() {
    let path = file("layers", "e4m3.json", br#"{"recipe": {"formats": {"output_grad": "e4m3"}}}"#);
    fails("layers", &["--config", &path], &["fp8-layers", "--recipe f32,fp8-current,fp8-delayed"]);
}

#[test]
fn execution_that_the_backend_cannot_do() {
    let path = file("native", "native.json", b"{\"execution\": \"native\"}");
    let without_unit = [("BURN_FP8_CPU_UNIT", "portable")];
    let words = ["Native", "Execution::FakeQuantized"];
    fails_in(&without_unit, "native", &["--config", &path], &words);
}
