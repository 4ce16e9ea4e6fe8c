//! Runs the program and reads what it prints.

use std::path::PathBuf;

use examples_common::testing::{Program, has};

fn serve() -> Program {
    Program::new(env!("CARGO_BIN_EXE_serve-checkpoint"))
}

/// A copy of a model of the tests, in the program's folder.
fn with_model(program: &Program, name: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folder = folder.join("../../crates/burn-fp8-checkpoint/tests/golden").join(name);
    program.copy(&folder, name.rsplit('/').next().expect("a name"));
}

/// The numbers of a row of the table of times: tokens at once, tokens a second in FP8 and in f32, their ratio, the difference.
fn row(text: &str, tokens: &str) -> Vec<f64> {
    let is_row = |line: &&str| line.split_whitespace().next() == Some(tokens);
    let row = text.lines().rfind(is_row).unwrap_or_else(|| panic!("no {tokens} in {text}"));
    row.split_whitespace().map(|number| number.parse().expect(row)).collect()
}

/// What was written is read again, with the same layers; what compressed-tensors cannot say is refused, as is a folder that holds a model.
#[test]
fn models_are_exported_and_read_again() {
    let serve = serve();
    for name in ["fp8_tensor_static", "ct_channel_dynamic", "modelopt", "fp8_block", "ct_mxfp8"] {
        with_model(&serve, name);
        let export = format!("--model {name} --export {name}-exported");
        has(&serve.prints(&export), &["7 layers and", "compressed-tensors"]);
        let run = format!("--model {name}-exported --batch 1 --milliseconds 1");
        has(&serve.prints(&run), &["compressed-tensors", "7 layers in FP8"]);
        serve.ends(&export, &["it is there already"]);
    }
    with_model(&serve, "fp8_block_ue8m0");
    let words = ["cannot be exported", "powers of two"];
    serve.ends("--model fp8_block_ue8m0 --export blocks", &words);
    assert!(!serve.has("blocks"), "nothing was made");
    serve.fails("--list --export blocks", &["--list", "--export"]);
}

#[test]
fn every_format_is_described_and_runs() {
    let serve = serve();
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
        with_model(&serve, name);
        let text = serve.prints(&format!("--model {name} --batch 1,8 --milliseconds 1"));
        has(&text, &[words, "7 layers in FP8", "model.layers.0.mlp on "]);
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
    let serve = serve();
    let layer = "model.layers.0.self_attn.q_proj";
    let text = serve.prints(&format!("--part {layer} --batches 3 --milliseconds 1"));
    has(&text, &[&format!("{layer} on ")]);
    assert_eq!(row(&text, "3").len(), 5);
    assert!(!serve.prints("--list").contains("tokens/s"));
    for part in ["model.layers.0", "model.layers.0.mlp"] {
        let run = format!("--part {part} --batch 1 --milliseconds 1 --backend ndarray");
        has(&serve.prints(&run), &["model.layers.0.mlp on ndarray"]);
    }
}

#[test]
fn errors_are_one_line_and_code_2() {
    let serve = serve();
    assert!(serve.prints("--help").contains("--model"));
    for name in ["bad/block_scale_transposed", "bad/scale_nan"] {
        with_model(&serve, name);
    }
    std::fs::create_dir(serve.path("empty")).expect("made");
    for (arguments, words) in [
        ("--model /no/such/folder", &["/no/such/folder"][..]),
        ("--model block_scale_transposed", &["weight_scale_inv", "expected"]),
        ("--model scale_nan --part model.layers.0.self_attn.q_proj", &["NaN"]),
        ("--part model.layers.7", &["model.layers.7", "--list"]),
        ("--batch 0", &["--batch"]),
        ("--milliseconds 0", &["--milliseconds"]),
        ("--model empty", &["config.json"]),
    ] {
        let stderr = serve.ends(arguments, words);
        assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    }
}
