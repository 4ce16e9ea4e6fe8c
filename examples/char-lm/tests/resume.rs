//! A run that is killed and resumed ends where an uninterrupted one ends, bit for bit.

mod common;

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{fails, folder, json, program, succeeds, text};

/// Trains with these options; epochs enough for a kill to come in between.
fn arguments<'a>(precision: &'a str, out: &'a Path) -> Vec<&'a str> {
    let out = text(out);
    vec![
        "train",
        "--size",
        "smoke",
        "--precision",
        precision,
        "--epochs",
        "4",
        "--length",
        "20",
        "--out",
        out,
    ]
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("weights.safetensors")).expect("a finished run has weights")
}

/// Starts a run and kills it, by SIGKILL, as soon as its losses of so many epochs and the checkpoint of the last of them are there.
fn kill_after_epoch(arguments: &[&str], run: &Path, epoch: usize) {
    let mut child = program(arguments).spawn().expect("the program starts");
    let start = Instant::now();
    let parts = ["model", "optim", "scheduler"]
        .map(|part| run.join(format!("checkpoint/{part}-{epoch}.mpk")));
    let losses =
        || fs::read_to_string(run.join("losses.jsonl")).map_or(0, |text| text.lines().count());
    while losses() < epoch || !parts.iter().all(|part| part.exists()) {
        assert!(child.try_wait().expect("a child").is_none(), "it ended before it could be killed");
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint in a minute");
        sleep(Duration::from_millis(2));
    }
    // SIGKILL on Unix.
    child.kill().expect("it can be killed");
    let status = child.wait().expect("it has ended");
    assert!(
        !status.success() && status.code().is_none(),
        "killed by a signal, not ended: {status}"
    );
    assert!(!run.join("weights.safetensors").exists(), "it was not finished");
}

fn resumes_to_equal_bits(precision: &str) {
    let folder = folder();
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    succeeds(&arguments(precision, &whole));

    kill_after_epoch(&arguments(precision, &killed), &killed, 1);
    let resume = [arguments(precision, &killed), vec!["--resume"]].concat();
    let (stdout, stderr) = succeeds(&resume);
    assert!(stderr.contains("going on from the checkpoint of epoch"), "{stderr}");
    assert!(!stderr.contains("epoch   1/4"), "the first epoch is not trained again: {stderr}");
    assert!(weights(&whole) == weights(&killed), "a resumed run ends elsewhere");
    let losses = |run: &Path| json(run.join("outcome.json"))["losses"].clone();
    assert_eq!(
        losses(&whole),
        losses(&killed),
        "the losses of all epochs, those before the kill too"
    );
    assert_eq!(losses(&killed).as_array().map(Vec::len), Some(4));
    assert_eq!(json(killed.join("outcome.json"))["resumed"], true);
    assert_eq!(json(whole.join("outcome.json"))["resumed"], false);

    // A finished run is not trained again, and writes the same text.
    let before = fs::metadata(killed.join("weights.safetensors")).and_then(|file| file.modified());
    let (again, stderr) = succeeds(&resume);
    assert!(again == stdout && !stderr.contains("epoch"), "{again}{stderr}");
    let after = fs::metadata(killed.join("weights.safetensors")).and_then(|file| file.modified());
    assert_eq!(before.expect("a file"), after.expect("a file"));
}

#[test]
fn f32_resumes_to_equal_bits() {
    resumes_to_equal_bits("f32");
}

#[test]
fn bf16_resumes_to_equal_bits() {
    resumes_to_equal_bits("bf16");
}

#[test]
fn delayed_scaling_resumes_to_equal_bits() {
    resumes_to_equal_bits("fp8-delayed");
}

#[test]
fn fp8_layers_resume_to_equal_bits() {
    resumes_to_equal_bits("fp8-layers");
}

#[test]
fn seeds_matter() {
    // Without this the equality above could be that of runs that train nothing.
    let folder = folder();
    let runs = ["1", "2"].map(|seed| {
        let run = folder.path().join(seed);
        let arguments = arguments("f32", &run);
        succeeds(&[&arguments[..], &["--seed", seed]].concat());
        weights(&run)
    });
    assert!(runs[0] != runs[1]);
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let folder = folder();
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    succeeds(&arguments("fp8-delayed", &whole));
    kill_after_epoch(&arguments("fp8-delayed", &killed), &killed, 2);
    // As a kill leaves it that comes while the file is written; what was written after epoch 2 is not there yet.
    for entry in fs::read_dir(killed.join("checkpoint")).expect("checkpoints") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if name.ends_with("-3.mpk") || name.ends_with("-4.mpk") {
            fs::remove_file(path).expect("removed");
        }
    }
    let file = killed.join("checkpoint/optim-2.mpk");
    let bytes = fs::read(&file).expect("a checkpoint");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    let resume = [arguments("fp8-delayed", &killed), vec!["--resume"]].concat();
    let first = killed.join("checkpoint/optim-1.mpk");
    if !first.exists() {
        // The kill came after the checkpoint of epoch 3 had replaced that of epoch 1.
        fails(&resume, &["optim-2.mpk"]);
        return;
    }
    let (_, stderr) = succeeds(&resume);
    assert!(
        stderr.contains("the checkpoint of epoch 2 is passed over: optim-2.mpk is damaged"),
        "{stderr}"
    );
    assert!(stderr.contains("going on from the checkpoint of epoch 1"), "{stderr}");
    assert!(weights(&whole) == weights(&killed), "a resumed run ends elsewhere");
}
