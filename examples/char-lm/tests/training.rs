//! It trains: the loss falls, FP8 runs what it promises, and the text is the one described.

mod common;

use std::fs;
use std::io::Read;

use burn::backend::Flex;
use burn_fp8::Fp8Backend;
use common::{folder, json, number, succeeds, text};
use flate2::read::GzDecoder;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

#[test]
fn losses_fall_below_the_frequencies_of_characters() {
    let folder = folder();
    let shares = [
        "f32",
        "bf16",
        "fp8-current",
        "fp8-delayed",
        "fp8-layers",
        "mxfp8",
        "fp8-block",
        "p=f32,c=bf16,o=bf16,m=fp8",
        "p=f32,c=f16,o=f32,m=fp8_delayed",
    ]
    .map(|precision| {
        let run = folder.path().join(precision);
        let (stdout, _) = succeeds(&[
            "train",
            "--size",
            "smoke",
            "--epochs",
            "6",
            "--precision",
            precision,
            "--out",
            text(&run),
            "--length",
            "40",
        ]);
        let outcome = json(run.join("outcome.json"));
        let losses = outcome["losses"].as_array().expect("losses");
        let valid: Vec<f64> = losses.iter().map(|point| number(point, "valid_loss")).collect();
        assert_eq!(valid.len(), 6);
        assert!(
            valid[5] < valid[0] && valid[5] < number(&outcome, "unigram_loss"),
            "{precision}: {outcome}"
        );
        assert!(number(&outcome, "bigram_loss") < number(&outcome, "unigram_loss"));
        // Of the untrained model it would be ln 63.
        assert!(valid[0] < 63f64.ln(), "{precision}: {valid:?}");
        assert!(stdout.contains("And God said"), "{stdout}");
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
fn other_backends_train_too() {
    let folder = folder();
    let run = folder.path().join("ndarray");
    succeeds(&[
        "train",
        "--size",
        "smoke",
        "--epochs",
        "2",
        "--backend",
        "ndarray",
        "--precision",
        "fp8-current",
        "--out",
        text(&run),
        "--quiet",
    ]);
    let outcome = json(run.join("outcome.json"));
    let losses = outcome["losses"].as_array().expect("losses");
    assert!(number(&losses[1], "valid_loss") < number(&losses[0], "valid_loss"));
}

/// On Mesa's software Vulkan where there is no GPU. Burn's Fusion and autotuning are on, and dropout is the device's own.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_trains_with_each_kind_of_scaling() {
    trains_with_each_kind_of_scaling("wgpu");
}

/// Built with `cuda`, or with `examples-common/cuda` on a simulated device.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
fn cuda_trains_with_each_kind_of_scaling() {
    trains_with_each_kind_of_scaling("cuda");
}

fn trains_with_each_kind_of_scaling(backend: &str) {
    let folder = folder();
    for precision in ["f32", "fp8-current", "fp8-delayed", "fp8-layers"] {
        let run = folder.path().join(precision);
        let arguments = ["train", "--size", "smoke", "--epochs", "2", "--backend", backend];
        let more = ["--precision", precision, "--out", text(&run), "--length", "8"];
        let (stdout, _) = succeeds(&[&arguments[..], &more].concat());
        let outcome = json(run.join("outcome.json"));
        let losses = outcome["losses"].as_array().expect("losses");
        let [first, last] = [0, 1].map(|epoch| number(&losses[epoch], "valid_loss"));
        assert!(last < first && first < 63f64.ln(), "{precision}: {outcome}");
        assert_eq!(number(&outcome, "fp8_share") > 0.5, precision != "f32", "{outcome}");
        assert!(stdout.contains("And God said"), "{stdout}");
    }
}

#[test]
fn patience_ends_a_run_early() {
    let folder = folder();
    let run = folder.path().join("run");
    // An epoch without improvement comes sooner than 400 epochs: the learning rate of this size is far too high for them.
    let arguments = [
        "train",
        "--size",
        "smoke",
        "--epochs",
        "400",
        "--patience",
        "1",
        "--quiet",
        "--out",
        text(&run),
    ];
    succeeds(&arguments);
    let outcome = json(run.join("outcome.json"));
    let losses: Vec<f64> = outcome["losses"]
        .as_array()
        .expect("losses")
        .iter()
        .map(|p| number(p, "valid_loss"))
        .collect();
    assert!(losses.len() < 400, "{}", losses.len());
    let (last, before) = losses.split_last().expect("losses");
    // Resumed after its end, it does not train an epoch more.
    for file in ["outcome.json", "weights.safetensors"] {
        fs::remove_file(run.join(file)).expect("removed");
    }
    succeeds(&[&arguments[..], &["--resume"]].concat());
    assert_eq!(json(run.join("outcome.json"))["losses"], outcome["losses"]);
    assert!(
        before.windows(2).all(|pair| pair[1] < pair[0])
            && before.last().is_some_and(|loss| last >= loss)
    );
}

#[test]
fn a_trained_model_writes_what_it_is_asked_for() {
    let folder = folder();
    let run = folder.path().join("run");
    let (trained, _) = succeeds(&[
        "train",
        "--size",
        "smoke",
        "--epochs",
        "1",
        "--precision",
        "fp8-layers",
        "--out",
        text(&run),
        "--prompt",
        "Behold",
        "--length",
        "30",
    ]);
    let generate = |seed: &str| {
        let arguments = [
            "generate",
            "--run",
            text(&run),
            "--prompt",
            "Behold",
            "--length",
            "30",
            "--sampling-seed",
            seed,
        ];
        succeeds(&arguments).0
    };
    let first = generate("1");
    assert!(first.starts_with("Behold") && first.chars().count() == 6 + 30 + 1, "{first}");
    assert!(
        trained.contains(&first),
        "the text at the end of training is that of the saved model: {trained}{first}"
    );
    assert_eq!(generate("1"), first);
    assert_ne!(generate("2"), first);
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
    assert!(note.contains(&digest), "{digest}");
    assert!(note.contains("public domain"));
    assert!(bytes.len() >= 1_000_000 && bytes.is_ascii());
}

fn is_observed_by_name_and_does_not_notice(precision: &str) {
    let folder = folder();
    let log = folder.path().join("log.jsonl");
    let train = |name: &str, more: &[&str]| {
        let run = folder.path().join(name);
        let arguments = [
            "train",
            "--size",
            "smoke",
            "--epochs",
            "1",
            "--precision",
            precision,
            "--length",
            "1",
            "--out",
            text(&run),
        ];
        let (stdout, _) = succeeds(&[&arguments[..], more].concat());
        (stdout, fs::read(run.join("weights.safetensors")).expect("weights"))
    };
    let (stdout, observed) = train("observed", &["--observe", text(&log)]);
    let (_, plain) = train("plain", &[]);
    assert!(observed == plain, "an observed run ends elsewhere");
    let lines = fs::read_to_string(&log).expect("a log");
    for name in ["block0.qkv", "block0.projection", "block1.up", "block1.down", "head"] {
        assert!(lines.contains(&format!("\"{name}\"")), "{name} is missing in the log");
        assert!(stdout.contains(name), "{name} is missing in {stdout}");
    }
    assert!(stdout.contains("cargo xtask report"));
}

#[test]
fn products_of_the_decorator_are_observed() {
    is_observed_by_name_and_does_not_notice("fp8-delayed");
}

#[test]
fn products_of_layers_are_observed() {
    is_observed_by_name_and_does_not_notice("fp8-layers");
}

/// The observatory is for exactly such runs: nothing that it saw may be lost with the sample.
#[test]
fn a_run_that_diverges_shows_what_was_seen_of_it() {
    let folder = folder();
    let (run, log) = (folder.path().join("run"), folder.path().join("log.jsonl"));
    let train = |more: &[&str]| {
        let arguments =
            ["train", "--size", "smoke", "--precision", "fp8-current", "--out", text(&run)];
        succeeds(&[&arguments[..], more].concat())
    };
    train(&["--epochs", "1"]);
    // The last of its LayerNorms becomes NaN in the checkpoint, and eight more epochs are asked for: the hundredth step is among theirs.
    let weights = fs::read(run.join("weights.safetensors")).expect("weights");
    let file = SafeTensors::deserialize(&weights).expect("safetensors");
    let gamma = file.tensor("norm.gamma").expect("the last norm").data();
    let path = run.join("checkpoint/model-1.mpk");
    let mut model = fs::read(&path).expect("a checkpoint");
    model.truncate(model.len() - 4);
    let place = model.windows(gamma.len()).position(|bytes| bytes == gamma).expect("its gamma");
    for number in model[place..place + gamma.len()].chunks_exact_mut(4) {
        number.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    model.extend(crc32fast::hash(&model).to_le_bytes());
    fs::write(&path, model).expect("written");
    for file in ["outcome.json", "weights.safetensors"] {
        fs::remove_file(run.join(file)).expect("removed");
    }
    let mut settings = json(run.join("run.json"));
    settings["epochs"] = 9.into();
    fs::write(run.join("run.json"), settings.to_string()).expect("written");

    let resume = ["--epochs", "9", "--resume"];
    let (stdout, stderr) = train(&[&resume[..], &["--observe", text(&log)]].concat());
    for words in ["the training has diverged", "warning: there is no sample: the model gives no"] {
        assert!(stderr.contains(words), "`{words}` is missing in: {stderr}");
    }
    for words in ["validation loss NaN", "block0.qkv", "cargo xtask report", text(&log), text(&run)]
    {
        assert!(stdout.contains(words), "`{words}` is missing in: {stdout}");
    }
    assert!(run.join("outcome.json").exists(), "the run is kept");
    // Once more, of the finished run.
    let (again, stderr) = train(&resume);
    assert!(stderr.contains("warning: there is no sample"), "{stderr}");
    assert!(again.contains("validation loss NaN"), "{again}");
}

#[test]
fn a_block_is_timed_in_every_precision() {
    let folder = folder();
    let (stdout, _) = succeeds(&[
        "block",
        "--size",
        "smoke",
        "--rounds",
        "3",
        "--batch",
        "2",
        "--out",
        text(folder.path()),
    ]);
    let timing = json(folder.path().join("block.json"));
    let rows = timing["rows"].as_array().expect("rows");
    let names = [
        "f32",
        "mixed bf16",
        "mixed bf16 + FP8, current scaling",
        "mixed bf16 + FP8, delayed scaling",
        "mixed bf16 + FP8 layers",
    ];
    assert_eq!(rows.len(), names.len());
    let is_native = Fp8Backend::<Flex>::capability(&Default::default()).is_native();
    for (row, name) in rows.iter().zip(names) {
        assert_eq!(row["name"], name);
        assert!(stdout.contains(name));
        // Three products of each of four layers, on the matrix unit if the CPU has one.
        let fp8 = if name.contains("FP8") { 12.0 } else { 0.0 };
        let native = if is_native { fp8 } else { 0.0 };
        assert_eq!([number(row, "fp8_products"), number(row, "native_products")], [fp8, native]);
        for field in ["forward_ms", "forward_backward_ms"] {
            let mut all: Vec<f64> = row[format!("all_{field}")]
                .as_array()
                .expect("times")
                .iter()
                .map(|time| time.as_f64().expect("a time"))
                .collect();
            // Of three rounds the middle one.
            all.sort_unstable_by(f64::total_cmp);
            assert!(all.len() == 3 && all[0] > 0.0 && all[1] == number(row, field), "{row}");
        }
    }
    assert_eq!((number(&timing, "batch"), number(&timing, "width")), (2.0, 32.0));
    assert!(stdout.contains("built without optimizations") == cfg!(debug_assertions));
}
