//! It trains: the loss falls, FP8 runs what it promises, and the text is the one described.

use std::fs;
use std::io::Read;

use examples_common::testing::{has, list, number};
use flate2::read::GzDecoder;
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::char_lm;

fn valid_losses(outcome: &Value) -> Vec<f64> {
    list(&outcome["losses"]).iter().map(|point| number(point, "valid_loss")).collect()
}

#[test]
fn losses_fall_below_the_frequencies_of_characters() {
    let shares = [
        "f32",
        "c=bf16,o=f32",
        "m=fp8",
        "m=fp8_delayed",
        "layers=fp8",
        "m=mxfp8",
        "m=fp8_block",
        "p=f32,c=bf16,o=bf16,m=fp8",
        "p=f32,c=f16,o=f32,m=fp8_delayed",
    ]
    .map(|precision| {
        let char_lm = char_lm();
        let train = "train --size smoke --epochs 6 --out run --length 40";
        let (stdout, _) = char_lm.succeeds(&format!("{train} --precision {precision}"));
        let outcome = char_lm.json("run/outcome.json");
        let valid = valid_losses(&outcome);
        let unigram = number(&outcome, "unigram_loss");
        assert_eq!(valid.len(), 6);
        assert!(valid[5] < valid[0] && valid[5] < unigram, "{precision}: {outcome}");
        assert!(number(&outcome, "bigram_loss") < unigram);
        // Of the untrained model it would be ln 63.
        assert!(valid[0] < 63f64.ln(), "{precision}: {valid:?}");
        has(&stdout, &["And God said"]);
        number(&outcome, "fp8_share")
    });
    // Of batch 8 · context 32 = 256 rows and width 32: linear layers 12 · 32 a token and block, attention 2 · 32 a token and block, the head
    // 64 a token; times width 32, and all else cancels.
    let (linear, attention, head) = (2.0 * 12.0 * 32.0, 2.0 * 2.0 * 32.0, 64.0);
    let expected = (linear + head) / (linear + attention + head);
    assert_eq!(shares[..2], [0.0, 0.0]);
    assert!(
        shares[2..].iter().all(|share| (share - expected).abs() < 1e-12),
        "{shares:?}, {expected}"
    );
}

#[test]
fn threads_train_one_model() {
    let char_lm = char_lm();
    let train = "train --size smoke --precision m=fp8_delayed --epochs 4 --length 5";
    let mut losses = vec![];
    for (run, peers) in [("alone", ""), ("one", "--peers 1"), ("three", "--peers 3 --wire fp8")] {
        let (stdout, stderr) = char_lm.succeeds(&format!("{train} --out {run} {peers}"));
        // One of them tells, once.
        assert_eq!(stderr.matches("epoch   4/4").count(), 1, "{stderr}");
        assert_eq!(stdout.contains("3 peers, each of which sends 0."), run == "three", "{stdout}");
        losses.push(valid_losses(&char_lm.json(&format!("{run}/outcome.json"))));
    }
    assert_eq!(losses[0], losses[1]);
    // What is dropped differs. Untrained, the loss is ln 64 = 4.2.
    let [loss, expected] = [losses[2][3], losses[0][3]];
    assert!(loss != expected && (loss / expected - 1.0).abs() < 0.05, "{loss}, not {expected}");
    // As after a kill: each goes on from the files that the first has.
    char_lm.remove("three/outcome.json");
    let (_, stderr) = char_lm.succeeds(&format!("{train} --out three --peers 2 --resume"));
    has(&stderr, &["going on from the checkpoint of epoch 4"]);
    assert_eq!(valid_losses(&char_lm.json("three/outcome.json")), losses[2]);
    for peers in [9, u32::MAX] {
        let more = format!("{train} --out more --peers {peers}");
        char_lm.fails(&more, &[&format!("{peers} peers"), "batch of 8"]);
    }
    let longer = train.replace("--epochs 4", "--epochs 5") + " --out three --peers 2 --resume";
    char_lm.fails(&longer, &["begun with epochs 4 instead of 5"]);
    assert!(!char_lm.has("more"), "nothing was begun");
}

#[test]
fn ndarray_trains_too() {
    trains("ndarray", &["m=fp8"]);
}

const KINDS_OF_SCALING: [&str; 4] = ["f32", "m=fp8", "m=fp8_delayed", "layers=fp8"];

/// On Mesa's software Vulkan where there is no GPU. Fusion is on, and dropout is the device's own.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_trains_with_each_kind_of_scaling() {
    // f32 there is Burn's alone.
    trains("wgpu", &KINDS_OF_SCALING[1..]);
}

/// Built with `cuda`, or with `examples-common/cuda` on a simulated device.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
fn cuda_trains_with_each_kind_of_scaling() {
    trains("cuda", &KINDS_OF_SCALING);
}

fn trains(backend: &str, precisions: &[&str]) {
    for precision in precisions {
        let char_lm = char_lm();
        let train = "train --size smoke --epochs 2 --out run --length 8";
        let (stdout, _) =
            char_lm.succeeds(&format!("{train} --backend {backend} --precision {precision}"));
        let outcome = char_lm.json("run/outcome.json");
        let losses = valid_losses(&outcome);
        assert!(losses[1] < losses[0] && losses[0] < 63f64.ln(), "{precision}: {outcome}");
        assert_eq!(number(&outcome, "fp8_share") > 0.5, *precision != "f32", "{outcome}");
        has(&stdout, &["And God said"]);
    }
}

#[test]
fn a_trained_model_writes_what_it_is_asked_for() {
    let char_lm = char_lm();
    let train = "train --size smoke --epochs 1 --precision layers=fp8 --out run";
    let (trained, _) = char_lm.succeeds(&format!("{train} --prompt Behold --length 30"));
    let generate = |seed: u64| {
        let generate = "generate --run run --prompt Behold --length 30 --sampling-seed";
        char_lm.prints(&format!("{generate} {seed}"))
    };
    let first = generate(1);
    assert!(first.starts_with("Behold") && first.chars().count() == 6 + 30 + 1, "{first}");
    // The text at the end of training is that of the saved model.
    has(&trained, &[&first]);
    assert_eq!(generate(1), first);
    assert_ne!(generate(2), first);
}

#[test]
fn the_text_is_the_one_that_its_note_describes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/data");
    let mut bytes = vec![];
    let file = fs::File::open(format!("{folder}/kjv.txt.gz")).expect("the text");
    GzDecoder::new(file).read_to_end(&mut bytes).expect("intact");
    let digest = Sha256::digest(&bytes);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let note = fs::read_to_string(format!("{folder}/README.md")).expect("the note");
    has(&note, &[&digest, "public domain"]);
    assert!(bytes.len() >= 1_000_000 && bytes.is_ascii());
}

fn is_observed_by_name_and_does_not_notice(precision: &str) {
    let char_lm = char_lm();
    let train = |options: &str| {
        let train = "train --size smoke --epochs 1 --length 1 --precision";
        char_lm.succeeds(&format!("{train} {precision} {options}")).0
    };
    let stdout = train("--out observed --observe log.jsonl");
    train("--out plain");
    let [observed, plain] =
        ["observed", "plain"].map(|run| char_lm.read(&format!("{run}/weights.safetensors")));
    assert!(observed == plain, "an observed run ends elsewhere");
    let lines = char_lm.text("log.jsonl");
    for name in ["block0.qkv", "block0.projection", "block1.up", "block1.down", "head"] {
        has(&lines, &[&format!("\"{name}\"")]);
        has(&stdout, &[name, "cargo xtask report"]);
    }
}

#[test]
fn products_of_the_decorator_are_observed() {
    is_observed_by_name_and_does_not_notice("m=fp8_delayed");
}

#[test]
fn products_of_layers_are_observed() {
    is_observed_by_name_and_does_not_notice("layers=fp8");
}

/// The observatory is for exactly such runs: nothing that it saw may be lost with the sample.
#[test]
fn a_run_that_diverges_shows_what_was_seen_of_it() {
    let char_lm = char_lm();
    let train = "train --size smoke --precision m=fp8 --out run --epochs";
    char_lm.succeeds(&format!("{train} 1"));
    // The last of its LayerNorms becomes NaN in the checkpoint, and eight more epochs are asked for: the hundredth step is among theirs.
    let weights = char_lm.read("run/weights.safetensors");
    let file = SafeTensors::deserialize(&weights).expect("safetensors");
    let gamma = file.tensor("norm.gamma").expect("the last norm").data();
    let mut model = char_lm.read("run/checkpoint/model-1.mpk");
    model.truncate(model.len() - 4);
    let place = model.windows(gamma.len()).position(|bytes| bytes == gamma).expect("its gamma");
    for number in model[place..place + gamma.len()].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    model.extend(crc32fast::hash(&model).to_le_bytes());
    char_lm.write("run/checkpoint/model-1.mpk", model);
    for file in ["run/outcome.json", "run/weights.safetensors"] {
        char_lm.remove(file);
    }
    char_lm.edit("run/run.json", |settings| settings["epochs"] = 9.into());

    let resume = format!("{train} 9 --resume");
    let (stdout, stderr) = char_lm.succeeds(&format!("{resume} --observe log.jsonl"));
    has(&stderr, &["the training has diverged", "warning: there is no sample: the model gives no"]);
    has(&stdout, &["validation loss NaN", "block0.qkv", "cargo xtask report log.jsonl", "\nrun\n"]);
    assert!(char_lm.has("run/outcome.json"), "the run is kept");
    // Once more, of the finished run.
    let (again, stderr) = char_lm.succeeds(&resume);
    has(&stderr, &["warning: there is no sample"]);
    has(&again, &["validation loss NaN"]);
}
