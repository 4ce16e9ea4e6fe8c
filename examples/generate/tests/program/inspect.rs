//! Looks at models and writes them anew, of families that it does not run, too.

use std::path::PathBuf;

use examples_common::testing::{Program, has};

fn program() -> Program {
    Program::new(env!("CARGO_BIN_EXE_generate"))
}

/// A copy of a model of the tests, in the program's folder.
fn with_checkpoint(program: &Program, name: &str) {
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
    let program = program();
    for name in ["fp8_tensor_static", "ct_channel_dynamic", "modelopt", "fp8_block", "ct_mxfp8"] {
        with_checkpoint(&program, name);
        let export = format!("export {name} --out {name}-exported");
        has(&program.succeeds(&export).0, &["7 layers", "compressed-tensors"]);
        let run = format!("inspect {name}-exported --batch 1 --milliseconds 1");
        has(&program.prints(&run), &["compressed-tensors", "7 layers in FP8"]);
        program.fails(&export, &["there already"]);
    }
    with_checkpoint(&program, "fp8_block_ue8m0");
    let words = ["cannot be exported", "powers of two"];
    program.ends("export fp8_block_ue8m0 --out blocks", &words);
    assert!(!program.has("blocks"), "nothing was made");
}

/// Whoever gets the folder can talk with the model: all that it had beside its weights is there, and it writes what it wrote.
#[test]
fn an_exported_model_has_its_tokenizer() {
    let program = crate::with_model("llama_block");
    program.write("model/tokenizer.model", b"\x0a\xff in no UTF-8");
    program.write("model/notes.txt", "of nobody");
    program.succeeds("export model --out exported");
    for file in
        ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "generation_config.json"]
    {
        let [own, new] =
            ["model", "exported"].map(|folder| program.read(&format!("{folder}/{file}")));
        assert_eq!(own, new, "{file}");
    }
    assert!(!program.has("exported/notes.txt"));
    let write = "--prompt word --tokens 8 --greedy --ignore-end --activations high";
    let text = |folder: &str| program.succeeds(&format!("{folder} {write}")).0;
    assert_eq!(text("exported"), text("model"));
    // A file of the folder stands for it.
    program.succeeds("export model/model.safetensors --out again");
    assert_eq!(program.read("again/tokenizer.json"), program.read("model/tokenizer.json"));
}

/// The built-in model has 28 layers.
#[test]
fn a_list_has_all_layers() {
    let program = program();
    let list = program.prints("inspect --list");
    for layer in 0..4 {
        has(&list, &[&format!("model.layers.{layer}.mlp.down_proj ")]);
    }
    assert!(!list.contains("more"), "{list}");
    let some = program.prints("inspect --batch 1 --milliseconds 1");
    has(&some, &["… and 12 more, which --list shows"]);
    program.fails("inspect --list --batch 1", &["--list", "--batch"]);
}

#[test]
fn every_format_is_described_and_runs() {
    let program = program();
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
        with_checkpoint(&program, name);
        let text = program.prints(&format!("inspect {name} --batch 1,8 --milliseconds 1"));
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
    let program = program();
    with_checkpoint(&program, "ct_mxfp8");
    let layer = "model.layers.0.self_attn.q_proj";
    let text =
        program.prints(&format!("inspect ct_mxfp8 --part {layer} --batches 3 --milliseconds 1"));
    has(&text, &[&format!("{layer} on ")]);
    assert_eq!(row(&text, "3").len(), 5);
    assert!(!program.prints("inspect ct_mxfp8 --list").contains("tokens/s"));
    for part in ["model.layers.0", "model.layers.0.mlp"] {
        let run =
            format!("inspect ct_mxfp8 --part {part} --batch 1 --milliseconds 1 --backend ndarray");
        has(&program.prints(&run), &["model.layers.0.mlp on ndarray"]);
    }
}

#[test]
fn errors_are_one_line_and_code_2() {
    let program = program();
    for name in ["bad/block_scale_transposed", "bad/scale_nan"] {
        with_checkpoint(&program, name);
    }
    std::fs::create_dir(program.path("empty")).expect("made");
    for (arguments, words) in [
        ("inspect /no/such/folder", &["/no/such/folder"][..]),
        ("inspect block_scale_transposed", &["weight_scale_inv", "expected"]),
        ("inspect scale_nan --part model.layers.0.self_attn.q_proj", &["NaN"]),
        ("inspect --part model.layers.7", &["model.layers.7", "--list"]),
        ("inspect --batch 0", &["--batch"]),
        ("inspect --milliseconds 0", &["--milliseconds"]),
        ("inspect empty", &["config.json"]),
    ] {
        let stderr = program.ends(arguments, words);
        assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    }
}
