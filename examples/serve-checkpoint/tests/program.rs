//! Runs the program and reads what it prints.

use std::path::PathBuf;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_serve-checkpoint"));
    command.args(arguments).output().expect("the program starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// It ends with code 2 and one line on stderr that has these words.
fn fails(arguments: &[&str], words: &[&str]) {
    let output = run(arguments);
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is missing in: {stderr}");
    }
}

fn golden(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = folder.join("../../crates/burn-fp8-checkpoint/tests/golden").join(name);
    folder.to_str().expect("UTF-8").to_owned()
}

/// The numbers of a row of the table of times: tokens at once, tokens a second in FP8 and in f32, their ratio, the difference.
fn row(text: &str, tokens: &str) -> Vec<f64> {
    let is_row = |line: &&str| line.split_whitespace().next() == Some(tokens);
    let row = text.lines().rfind(is_row).unwrap_or_else(|| panic!("no {tokens} in {text}"));
    row.split_whitespace().map(|number| number.parse().expect(row)).collect()
}

/// What was written is read again, with the same layers; blocks are refused, as is a folder that holds a model.
#[test]
fn models_are_exported_and_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["fp8_tensor_static", "ct_channel_dynamic", "modelopt"] {
        let exported = folder.path().join(name);
        let exported = exported.to_str().expect("UTF-8");
        let text = succeeds(&["--model", &golden(name), "--export", exported]);
        assert!(text.contains("7 layers and") && text.contains("float-quantized"), "{text}");
        let text = succeeds(&["--model", exported, "--batch", "1", "--milliseconds", "1"]);
        assert!(text.contains("compressed-tensors") && text.contains("7 layers in FP8"), "{text}");
        fails(&["--model", &golden(name), "--export", exported], &["it is there already"]);
    }
    let other = folder.path().join("blocks");
    let other = other.to_str().expect("UTF-8");
    fails(
        &["--model", &golden("fp8_block"), "--export", other],
        &["cannot be exported", "one scale per tensor or per channel"],
    );
    assert!(!std::path::Path::new(other).exists(), "nothing was made");
    fails(&["--list", "--export", other], &["--list", "--export"]);
}

#[test]
fn every_format_is_described_and_runs() {
    for (name, words, dynamic) in [
        ("ct_tensor_static", "per tensor", false),
        ("ct_channel_dynamic", "per channel", true),
        ("ct_block", "per 128×128 block", true),
        ("ct_mxfp8", "MXFP8", true),
        ("fp8_block", "per 128×128 block", true),
        ("fp8_block_ue8m0", "F8_E8M0", true),
        ("fp8_tensor_static", "per tensor", false),
        ("modelopt", "modelopt", false),
    ] {
        let folder = golden(name);
        let text = succeeds(&["--model", &folder, "--batch", "1,8", "--milliseconds", "1"]);
        assert!(text.contains(words) && text.contains("7 layers in FP8"), "{text}");
        assert!(text.contains("model.layers.0.mlp on "), "{text}");
        for tokens in ["1", "8"] {
            let [at_once, fp8, f32, ratio, difference] = row(&text, tokens)[..] else {
                panic!("{text}")
            };
            assert_eq!(at_once.to_string(), tokens);
            assert!(fp8 > 0.0 && f32 > 0.0 && (ratio - fp8 / f32).abs() < 0.01, "{text}");
            // FP8 has three bits of mantissa. Static scales of the tests saturate: they are those of other inputs.
            assert!(difference > 1e-3 && (!dynamic || difference < 0.2), "{text}");
        }
    }
}

#[test]
fn a_layer_runs_by_itself() {
    let text = succeeds(&[
        "--part",
        "model.layers.0.self_attn.q_proj",
        "--batches",
        "3",
        "--milliseconds",
        "1",
    ]);
    assert!(text.contains("model.layers.0.self_attn.q_proj on "), "{text}");
    assert_eq!(row(&text, "3").len(), 5);
    assert!(!succeeds(&["--list"]).contains("tokens/s"));
    for part in ["model.layers.0", "model.layers.0.mlp"] {
        let text = succeeds(&[
            "--part",
            part,
            "--batch",
            "1",
            "--milliseconds",
            "1",
            "--backend",
            "ndarray",
        ]);
        assert!(text.contains("model.layers.0.mlp on ndarray"), "{text}");
    }
}

#[test]
fn errors_are_one_line_and_code_2() {
    assert!(succeeds(&["--help"]).contains("--model"));
    fails(&["--model", "/no/such/folder"], &["/no/such/folder"]);
    fails(&["--model", &golden("bad/block_scale_transposed")], &["weight_scale_inv", "expected"]);
    fails(
        &["--model", &golden("bad/scale_nan"), "--part", "model.layers.0.self_attn.q_proj"],
        &["NaN"],
    );
    fails(&["--part", "model.layers.7"], &["model.layers.7", "--list"]);
    fails(&["--batch", "0"], &["--batch"]);
    fails(&["--milliseconds", "0"], &["--milliseconds"]);
    let empty = tempfile::tempdir().expect("a folder");
    let empty = empty.path().to_str().expect("UTF-8").to_owned();
    fails(&["--model", &empty], &["config.json"]);
}
