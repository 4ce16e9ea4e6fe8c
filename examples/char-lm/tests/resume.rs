//! A run that is killed and resumed ends where an uninterrupted one ends, bit for bit.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
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

/// The losses as text: of two numbers that differ, no two are written alike, whatever a parser makes of them.
fn losses(run: &Path) -> String {
    fs::read_to_string(run.join("losses.jsonl")).expect("a run has losses")
}

/// Those of the outcome of a finished run, as text as well.
fn outcome_losses(run: &Path) -> String {
    let text = fs::read_to_string(run.join("outcome.json")).expect("a finished run has an outcome");
    let losses = text.split_once("\"losses\": [").and_then(|(_, rest)| rest.split_once(']'));
    losses.expect("a list of losses").0.to_owned()
}

/// Starts a run and kills it, by SIGKILL, as soon as its losses of so many epochs and the checkpoint of the last of them are there.
fn kill_after_epoch(arguments: &[&str], run: &Path, epoch: usize) {
    let mut child = program(arguments).stderr(Stdio::null()).spawn().expect("the program starts");
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
    assert_eq!(losses(&killed).lines().count(), 4);
    assert_eq!(losses(&whole), losses(&killed), "of all epochs, those before the kill too");
    assert_eq!(outcome_losses(&whole), outcome_losses(&killed));
    assert_eq!(json(killed.join("outcome.json"))["resumed"], true);
    assert_eq!(json(whole.join("outcome.json"))["resumed"], false);

    // A finished run is not trained again, and writes the same text.
    let before = fs::metadata(killed.join("weights.safetensors")).and_then(|file| file.modified());
    let (again, stderr) = succeeds(&resume);
    assert!(again == stdout && !stderr.contains("epoch"), "{again}{stderr}");
    let after = fs::metadata(killed.join("weights.safetensors")).and_then(|file| file.modified());
    assert_eq!(before.expect("a file"), after.expect("a file"));

    // A kill between the last checkpoint and the end leaves nothing to train.
    let share = json(killed.join("outcome.json"))["fp8_share"].clone();
    for file in ["outcome.json", "weights.safetensors"] {
        fs::remove_file(killed.join(file)).expect("removed");
    }
    let (stdout, _) = succeeds(&resume);
    assert!(stdout.contains("nothing was left to train"), "{stdout}");
    assert!(weights(&whole) == weights(&killed), "the last checkpoint is the end of the run");
    assert_eq!(losses(&whole), losses(&killed));
    assert_eq!(outcome_losses(&whole), outcome_losses(&killed));
    assert_eq!(json(killed.join("outcome.json"))["fp8_share"], share);
}

#[test]
fn f32_resumes_to_equal_bits() {
    resumes_to_equal_bits("f32");
}

/// The state of loss scaling and that of delayed scaling.
#[test]
fn a_policy_resumes_to_equal_bits() {
    resumes_to_equal_bits("p=f32,c=f16,o=f32,m=fp8_delayed");
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

/// A killed run, in a folder in this one, with the checkpoints of epochs 1 and 2.
fn killed_after_two_epochs(folder: &Path) -> PathBuf {
    let parts = ["model", "optim", "scheduler"];
    let file = |run: &Path, part, epoch| run.join(format!("checkpoint/{part}-{epoch}.mpk"));
    for attempt in 0..5 {
        let run = folder.join(attempt.to_string());
        kill_after_epoch(&arguments("fp8-delayed", &run), &run, 2);
        // On a busy machine the kill may come later, when the first checkpoint has been deleted.
        if parts.iter().all(|part| file(&run, part, 1).exists()) {
            for path in parts.iter().map(|part| file(&run, part, 3)).filter(|path| path.exists()) {
                fs::remove_file(path).expect("removed");
            }
            let two: String = losses(&run).split_inclusive('\n').take(2).collect();
            fs::write(run.join("losses.jsonl"), two).expect("written");
            return run;
        }
    }
    panic!("five kills came too late");
}

#[test]
fn checkpoints_that_are_not_whole_are_passed_over() {
    let folder = folder();
    let whole = folder.path().join("whole");
    succeeds(&arguments("fp8-delayed", &whole));

    let damaged = killed_after_two_epochs(&folder.path().join("damaged"));
    let resume = [arguments("fp8-delayed", &damaged), vec!["--resume"]].concat();
    let file = damaged.join("checkpoint/optim-2.mpk");
    let bytes = fs::read(&file).expect("a checkpoint");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("written");
    let (_, stderr) = succeeds(&resume);
    assert!(
        stderr.contains("the checkpoint of epoch 2 is passed over: optim-2.mpk is damaged"),
        "{stderr}"
    );
    assert!(stderr.contains("going on from the checkpoint of epoch 1"), "{stderr}");
    assert!(weights(&whole) == weights(&damaged), "a resumed run ends elsewhere");

    // A flipped bit of a weight is a weight as well: the checksum tells.
    let flipped = killed_after_two_epochs(&folder.path().join("flipped"));
    let resume = [arguments("fp8-delayed", &flipped), vec!["--resume"]].concat();
    let file = flipped.join("checkpoint/model-2.mpk");
    let mut model = fs::read(&file).expect("a checkpoint");
    let middle = model.len() / 2;
    model[middle] ^= 1;
    fs::write(&file, &model).expect("written");
    let (_, stderr) = succeeds(&resume);
    assert!(stderr.contains("model-2.mpk is damaged: its checksum"), "{stderr}");
    assert!(weights(&whole) == weights(&flipped), "a resumed run ends elsewhere");

    // As a kill leaves it that comes while the second file is written.
    let unwritten = killed_after_two_epochs(&folder.path().join("unwritten"));
    let resume = [arguments("fp8-delayed", &unwritten), vec!["--resume"]].concat();
    let file = unwritten.join("checkpoint/optim-2.mpk");
    fs::write(unwritten.join("checkpoint/part-optim-2.mpk"), &bytes[..100]).expect("written");
    fs::remove_file(&file).expect("removed");
    let (_, stderr) = succeeds(&resume);
    assert!(
        stderr.contains("the checkpoint of epoch 2 is passed over: optim-2.mpk was not written"),
        "{stderr}"
    );
    assert!(stderr.contains("going on from the checkpoint of epoch 1"), "{stderr}");
    assert!(weights(&whole) == weights(&unwritten), "a resumed run ends elsewhere");
}

#[test]
fn one_process_trains_in_a_folder() {
    let folder = folder();
    let run = folder.path().join("run");
    let mut long = arguments("f32", &run);
    let epochs = long.iter().position(|argument| *argument == "4").expect("epochs");
    long[epochs] = "1000";
    let mut child = program(&long).stderr(Stdio::null()).spawn().expect("the program starts");
    while !run.join("losses.jsonl").exists() {
        sleep(Duration::from_millis(2));
    }
    fails(&[&long[..], &["--resume"]].concat(), &["another process trains in", "wait for it"]);
    child.kill().expect("it can be killed");
    child.wait().expect("it has ended");
}

#[test]
fn losses_that_were_lost_cost_no_checkpoints() {
    let folder = folder();
    let run = killed_after_two_epochs(folder.path());
    fs::write(run.join("losses.jsonl"), "").expect("written");
    let resume = [arguments("fp8-delayed", &run), vec!["--resume"]].concat();
    let output = program(&resume).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let error = stderr.lines().last().expect("an error");
    for words in ["error: ", "checkpoint of epoch 2", "losses.jsonl only 0", "another --out"] {
        assert!(error.contains(words), "{stderr}");
    }
    assert!(run.join("checkpoint/model-2.mpk").exists());
}

/// A run with all of its checkpoints that has not written what it came to.
fn unfinished(folder: &Path) -> PathBuf {
    let run = folder.join("run");
    succeeds(&arguments("f32", &run));
    for file in ["outcome.json", "weights.safetensors"] {
        fs::remove_file(run.join(file)).expect("removed");
    }
    run
}

/// Resumes a run, which must fail with these words in the last line, and train nothing.
fn cannot_go_on(run: &Path, words: &[&str]) {
    let before = losses(run);
    let resume = [arguments("f32", run), vec!["--resume"]].concat();
    let output = program(&resume).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let error = stderr.lines().last().expect("an error");
    for words in [&["error: ", "another --out"], words].concat() {
        assert!(error.contains(words), "`{words}` is missing in: {stderr}");
    }
    assert_eq!(losses(run), before);
}

/// Once the losses of a later epoch are there, a checkpoint was whole: training from the beginning would throw the run away.
#[test]
fn files_that_are_missing_are_damage() {
    let folder = folder();
    let run = unfinished(folder.path());
    let whole = folder.path().join("whole");
    succeeds(&arguments("f32", &whole));
    let remove = |name: &str| fs::remove_file(run.join("checkpoint").join(name)).expect("removed");

    // The last three are kept. Of the last epoch, a kill may have come while it was written.
    remove("optim-4.mpk");
    remove("model-3.mpk");
    let resume = [arguments("f32", &run), vec!["--resume"]].concat();
    let (_, stderr) = succeeds(&resume);
    for line in [
        "the checkpoint of epoch 4 is passed over: optim-4.mpk was not written",
        "the checkpoint of epoch 3 is passed over: model-3.mpk is missing",
        "going on from the checkpoint of epoch 2",
    ] {
        assert!(stderr.contains(line), "`{line}` is missing in: {stderr}");
    }
    assert!(weights(&whole) == weights(&run), "a resumed run ends elsewhere");

    for file in ["outcome.json", "weights.safetensors"] {
        fs::remove_file(run.join(file)).expect("removed");
    }
    for name in ["optim-4.mpk", "model-3.mpk", "scheduler-2.mpk"] {
        remove(name);
    }
    cannot_go_on(&run, &["no checkpoint in", "is whole", "model-3.mpk is missing"]);
    fs::remove_dir_all(run.join("checkpoint")).expect("removed");
    cannot_go_on(&run, &["losses.jsonl has 4 epochs", "no whole checkpoint"]);
}

#[test]
fn a_kill_while_the_first_checkpoint_is_written_costs_no_more_than_the_time() {
    let folder = folder();
    let run = unfinished(folder.path());
    // As such a kill leaves it: the losses of one epoch, and of its checkpoint the first file.
    let first: String = losses(&run).split_inclusive('\n').take(1).collect();
    fs::write(run.join("losses.jsonl"), first).expect("written");
    let checkpoints = run.join("checkpoint");
    fs::remove_dir_all(&checkpoints).expect("removed");
    fs::create_dir(&checkpoints).expect("made");
    fs::write(checkpoints.join("model-1.mpk"), "whole or not").expect("written");
    let (_, stderr) = succeeds(&[arguments("f32", &run), vec!["--resume"]].concat());
    assert!(stderr.contains("optim-1.mpk was not written"), "{stderr}");
    assert!(stderr.contains("training from the beginning"), "{stderr}");
}

#[test]
fn a_kill_before_the_first_checkpoint_costs_no_more_than_the_time() {
    let folder = folder();
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    succeeds(&arguments("f32", &whole));
    let mut child = program(&arguments("f32", &killed))
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    while !killed.join("run.json").exists() {
        sleep(Duration::from_millis(2));
    }
    child.kill().expect("it can be killed");
    assert_eq!(child.wait().expect("it has ended").code(), None, "by a signal");
    let (_, stderr) = succeeds(&[arguments("f32", &killed), vec!["--resume"]].concat());
    assert!(stderr.contains("training from the beginning"), "{stderr}");
    assert!(weights(&whole) == weights(&killed));
}
