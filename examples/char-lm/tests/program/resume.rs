//! A run that is killed and resumed ends where an uninterrupted one ends, bit for bit.

use std::fs;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use examples_common::testing::{Program, has};

/// The files of a checkpoint.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];
/// What only a finished run has.
const OF_THE_END: [&str; 2] = ["outcome.json", "weights.safetensors"];

/// Trainings with these options in the folders of a program; epochs enough for a kill to come in between.
struct Runs {
    program: Program,
    precision: &'static str,
}

impl Runs {
    fn new(precision: &'static str) -> Self {
        Self { program: Program::new(env!("CARGO_BIN_EXE_char-lm")), precision }
    }

    fn arguments(&self, run: &str) -> String {
        let precision = self.precision;
        format!("train --size smoke --precision {precision} --epochs 4 --length 20 --out {run}")
    }

    fn train(&self, run: &str) -> (String, String) {
        self.program.succeeds(&self.arguments(run))
    }

    /// Resumes a run, which says these lines on the way.
    #[track_caller]
    fn resume(&self, run: &str, lines: &[&str]) -> (String, String) {
        let (stdout, stderr) = self.program.succeeds(&format!("{} --resume", self.arguments(run)));
        has(&stderr, lines);
        (stdout, stderr)
    }

    /// Resumes a run, which must fail with these words in the last line, and train nothing.
    #[track_caller]
    fn cannot_go_on(&self, run: &str, words: &[&str]) {
        let before = self.losses(run);
        let resume = format!("{} --resume", self.arguments(run));
        self.program.ends(&resume, &[&["another --out"], words].concat());
        assert_eq!(self.losses(run), before);
    }

    fn weights(&self, run: &str) -> Vec<u8> {
        self.program.read(&format!("{run}/weights.safetensors"))
    }

    /// The losses as text: of two numbers that differ, no two are written alike, whatever a parser makes of them.
    fn losses(&self, run: &str) -> String {
        self.program.text(&format!("{run}/losses.jsonl"))
    }

    /// Those of the outcome of a finished run, as text as well.
    fn outcome_losses(&self, run: &str) -> String {
        let text = self.program.text(&format!("{run}/outcome.json"));
        let losses = text.split_once("\"losses\": [").and_then(|(_, rest)| rest.split_once(']'));
        losses.expect("a list of losses").0.to_owned()
    }

    /// Both runs have the same weights.
    #[track_caller]
    fn end_alike(&self, run: &str, other: &str) {
        assert!(self.weights(run) == self.weights(other), "a resumed run ends elsewhere");
    }

    /// Forgets what a run came to, as if it had been killed after its last checkpoint.
    fn forget_the_end(&self, run: &str) {
        OF_THE_END.iter().for_each(|file| self.program.remove(&format!("{run}/{file}")));
    }

    /// Leaves the losses of so many epochs.
    fn cut_losses(&self, run: &str, epochs: usize) {
        let losses: String = self.losses(run).split_inclusive('\n').take(epochs).collect();
        self.program.write(&format!("{run}/losses.jsonl"), losses);
    }

    fn start(&self, arguments: &str) -> Child {
        self.program.command(arguments).stderr(Stdio::null()).spawn().expect("the program starts")
    }

    /// Starts a run and kills it, by SIGKILL, as soon as its losses of so many epochs and the checkpoint of the last of them are there.
    fn kill_after_epoch(&self, run: &str, epoch: usize) {
        let mut child = self.start(&self.arguments(run));
        let start = Instant::now();
        let losses = || {
            let text = fs::read_to_string(self.program.path(&format!("{run}/losses.jsonl")));
            text.map_or(0, |text| text.lines().count())
        };
        while losses() < epoch || !self.has_checkpoint(run, epoch) {
            let is_running = child.try_wait().expect("a child").is_none();
            assert!(is_running, "it ended before it could be killed");
            assert!(start.elapsed() < Duration::from_secs(600), "no checkpoint in ten minutes");
            sleep(Duration::from_millis(2));
        }
        kill(&mut child);
        assert!(!self.program.has(&format!("{run}/weights.safetensors")), "it was not finished");
    }

    fn has_checkpoint(&self, run: &str, epoch: usize) -> bool {
        PARTS.iter().all(|part| self.program.has(&format!("{run}/checkpoint/{part}-{epoch}.mpk")))
    }

    /// A killed run with the checkpoints of epochs 1 and 2.
    fn kill_after_two_epochs(&self, run: &str) {
        for _ in 0..5 {
            self.kill_after_epoch(run, 2);
            // On a busy machine the kill may come later, when the first checkpoint has been deleted.
            if self.has_checkpoint(run, 1) {
                let third = PARTS.map(|part| format!("{run}/checkpoint/{part}-3.mpk"));
                third.iter().filter(|file| self.program.has(file)).for_each(|file| {
                    self.program.remove(file);
                });
                return self.cut_losses(run, 2);
            }
            self.program.remove(run);
        }
        panic!("five kills came too late");
    }
}

/// SIGKILL on Unix.
fn kill(child: &mut Child) {
    child.kill().expect("it can be killed");
    let status = child.wait().expect("it has ended");
    assert!(
        !status.success() && status.code().is_none(),
        "killed by a signal, not ended: {status}"
    );
}

fn resumes_to_equal_bits(precision: &'static str) {
    let runs = Runs::new(precision);
    runs.train("whole");
    runs.kill_after_epoch("killed", 1);
    let (stdout, stderr) = runs.resume("killed", &["going on from the checkpoint of epoch"]);
    assert!(!stderr.contains("epoch   1/4"), "the first epoch is not trained again: {stderr}");
    // Of all epochs, those before the kill too.
    let are_alike = || {
        runs.end_alike("whole", "killed");
        assert_eq!(runs.losses("whole"), runs.losses("killed"));
        assert_eq!(runs.outcome_losses("whole"), runs.outcome_losses("killed"));
    };
    are_alike();
    assert_eq!(runs.losses("killed").lines().count(), 4);
    let outcome = runs.program.json("killed/outcome.json");
    assert_eq!(outcome["resumed"], true);
    assert_eq!(runs.program.json("whole/outcome.json")["resumed"], false);

    // A finished run is not trained again, and writes the same text.
    let weights = runs.program.path("killed/weights.safetensors");
    let written = || fs::metadata(&weights).and_then(|file| file.modified()).expect("a file");
    let before = written();
    let (again, stderr) = runs.resume("killed", &[]);
    assert!(again == stdout && !stderr.contains("epoch"), "{again}{stderr}");
    assert_eq!(before, written());

    // A kill between the last checkpoint and the end leaves nothing to train.
    runs.forget_the_end("killed");
    has(&runs.resume("killed", &[]).0, &["nothing was left to train"]);
    are_alike();
    assert_eq!(runs.program.json("killed/outcome.json")["fp8_share"], outcome["fp8_share"]);
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
    resumes_to_equal_bits("m=fp8_delayed");
}

#[test]
fn fp8_layers_resume_to_equal_bits() {
    resumes_to_equal_bits("layers=fp8");
}

#[test]
fn moments_in_fp8_resume_to_equal_bits() {
    resumes_to_equal_bits("f32 --moments fp8");
}

/// A run that an earlier version began goes on, and is read, by the name that it gave its precision, and with an option that is gone.
#[test]
fn a_run_with_an_old_name_goes_on() {
    let runs = Runs::new("m=fp8_delayed,fused=off");
    runs.train("whole");
    runs.train("old");
    runs.forget_the_end("old");
    runs.program.edit("old/run.json", |settings| {
        assert_eq!(settings["precision"], "m=fp8_delayed,fused=off");
        settings["precision"] = "fp8-delayed".into();
        settings["patience"] = 3.into();
    });
    runs.resume("old", &["going on from the checkpoint of epoch 4"]);
    runs.end_alike("whole", "old");
    runs.program.edit("old/run.json", |settings| settings["precision"] = "fp8-delayed".into());
    let text = |run| runs.program.prints(&format!("generate --run {run} --length 20"));
    assert_eq!(text("old"), text("whole"));
}

#[test]
fn seeds_matter() {
    // Without this the equality above could be that of runs that train nothing.
    let runs = Runs::new("f32");
    for seed in ["1", "2"] {
        runs.program.succeeds(&format!("{} --seed {seed}", runs.arguments(seed)));
    }
    assert!(runs.weights("1") != runs.weights("2"));
}

#[test]
fn checkpoints_that_are_not_whole_are_passed_over() {
    let runs = Runs::new("m=fp8_delayed");
    let program = &runs.program;
    runs.train("whole");
    let passed_over = "the checkpoint of epoch 2 is passed over: ";
    let from_the_first = "going on from the checkpoint of epoch 1";

    runs.kill_after_two_epochs("damaged");
    let bytes = program.read("damaged/checkpoint/optim-2.mpk");
    program.write("damaged/checkpoint/optim-2.mpk", &bytes[..bytes.len() / 2]);
    let damaged = format!("{passed_over}optim-2.mpk is damaged");
    runs.resume("damaged", &[&damaged, from_the_first]);
    runs.end_alike("whole", "damaged");

    // A flipped bit of a weight is a weight as well: the checksum tells.
    runs.kill_after_two_epochs("flipped");
    let mut model = program.read("flipped/checkpoint/model-2.mpk");
    let middle = model.len() / 2;
    model[middle] ^= 1;
    program.write("flipped/checkpoint/model-2.mpk", &model);
    runs.resume("flipped", &["model-2.mpk is damaged: its checksum"]);
    runs.end_alike("whole", "flipped");

    // As a kill leaves it that comes while the second file is written.
    runs.kill_after_two_epochs("unwritten");
    program.write("unwritten/checkpoint/part-optim-2.mpk", &bytes[..100]);
    program.remove("unwritten/checkpoint/optim-2.mpk");
    let unwritten = format!("{passed_over}optim-2.mpk was not written");
    runs.resume("unwritten", &[&unwritten, from_the_first]);
    runs.end_alike("whole", "unwritten");
}

#[test]
fn one_process_trains_in_a_folder() {
    let runs = Runs::new("f32");
    let long = runs.arguments("run").replace("--epochs 4", "--epochs 1000");
    let mut child = runs.start(&long);
    while !runs.program.has("run/losses.jsonl") {
        sleep(Duration::from_millis(2));
    }
    let words = ["another process trains in", "wait for it"];
    runs.program.fails(&format!("{long} --resume"), &words);
    kill(&mut child);
}

#[test]
fn losses_that_were_lost_cost_no_checkpoints() {
    let runs = Runs::new("m=fp8_delayed");
    runs.kill_after_two_epochs("run");
    runs.cut_losses("run", 0);
    runs.cannot_go_on("run", &["checkpoint of epoch 2", "losses.jsonl only 0"]);
    assert!(runs.program.has("run/checkpoint/model-2.mpk"));
}

/// Once the losses of a later epoch are there, a checkpoint was whole: training from the beginning would throw the run away.
#[test]
fn files_that_are_missing_are_damage() {
    let runs = Runs::new("f32");
    let remove = |name: &str| runs.program.remove(&format!("run/checkpoint/{name}"));
    runs.train("whole");
    runs.train("run");
    runs.forget_the_end("run");

    // The last three are kept. Of the last epoch, a kill may have come while it was written.
    remove("optim-4.mpk");
    remove("model-3.mpk");
    let lines = [
        "the checkpoint of epoch 4 is passed over: optim-4.mpk was not written",
        "the checkpoint of epoch 3 is passed over: model-3.mpk is missing",
        "going on from the checkpoint of epoch 2",
    ];
    runs.resume("run", &lines);
    runs.end_alike("whole", "run");

    runs.forget_the_end("run");
    ["optim-4.mpk", "model-3.mpk", "scheduler-2.mpk"].into_iter().for_each(remove);
    runs.cannot_go_on("run", &["no checkpoint in", "is whole", "model-3.mpk is missing"]);
    runs.program.remove("run/checkpoint");
    runs.cannot_go_on("run", &["losses.jsonl has 4 epochs", "no whole checkpoint"]);
}

#[test]
fn a_kill_while_the_first_checkpoint_is_written_costs_no_more_than_the_time() {
    let runs = Runs::new("f32");
    runs.train("run");
    runs.forget_the_end("run");
    // As such a kill leaves it: the losses of one epoch, and of its checkpoint the first file.
    runs.cut_losses("run", 1);
    runs.program.remove("run/checkpoint");
    fs::create_dir(runs.program.path("run/checkpoint")).expect("made");
    runs.program.write("run/checkpoint/model-1.mpk", "whole or not");
    runs.resume("run", &["optim-1.mpk was not written", "training from the beginning"]);
}

#[test]
fn a_kill_before_the_first_checkpoint_costs_no_more_than_the_time() {
    let runs = Runs::new("f32");
    runs.train("whole");
    let mut child = runs.start(&runs.arguments("killed"));
    while !runs.program.has("killed/run.json") {
        sleep(Duration::from_millis(2));
    }
    kill(&mut child);
    runs.resume("killed", &["training from the beginning"]);
    runs.end_alike("whole", "killed");
}
