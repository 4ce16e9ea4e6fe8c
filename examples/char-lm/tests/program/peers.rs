//! Processes that `mpirun` starts train one model, and lose nothing where one is killed.

use std::fs;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use examples_common::testing::{Program, has, number};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What `mpirun` needs here, whoever runs the tests, on however few cores.
const MPIRUN: [&str; 6] =
    ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "300"];

struct Runs(Program);

impl Runs {
    fn new() -> Self {
        Self(Program::new(env!("CARGO_BIN_EXE_char-lm")))
    }

    fn train(run: &str) -> String {
        format!(
            "train --size smoke --precision m=fp8_delayed --wire fp8 --epochs 4 --length 5 --out {run}"
        )
    }

    /// So many processes with these arguments.
    fn mpirun(&self, size: usize, arguments: &str) -> Command {
        let mut command = self.mpirun_of(&[]);
        command.args(["-n", &size.to_string()]).arg(env!("CARGO_BIN_EXE_char-lm"));
        command.args(arguments.split_whitespace());
        command
    }

    fn mpirun_of(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("mpirun");
        command.args(MPIRUN).args(arguments).current_dir(self.0.path("."));
        command.env("RAYON_NUM_THREADS", "1").env("OMPI_MCA_mpi_yield_when_idle", "1");
        command
    }

    /// What they print on stdout and on stderr.
    #[track_caller]
    fn succeed(&self, size: usize, arguments: &str) -> [String; 2] {
        let output = self.mpirun(size, arguments).output().expect("OpenMPI is installed");
        let [stdout, stderr] = said(&output);
        assert!(output.status.success(), "{arguments}: {stderr}");
        [stdout, stderr]
    }

    /// The weights and the losses of a run.
    fn end(&self, run: &str) -> (Vec<u8>, String) {
        let weights = self.0.read(&format!("{run}/weights.safetensors"));
        (weights, self.0.text(&format!("{run}/losses.jsonl")))
    }

    fn final_loss(&self, run: &str) -> f64 {
        let outcome = self.0.json(&format!("{run}/outcome.json"));
        number(&outcome["losses"][3], "valid_loss")
    }

    /// Leaves what a kill leaves that comes between the second and the third epoch.
    fn forget_two_epochs(&self, run: &str) {
        let parts = ["model", "optim", "scheduler"];
        let checkpoints = parts
            .iter()
            .flat_map(|part| [3, 4].map(|epoch| format!("checkpoint/{part}-{epoch}.mpk")));
        for file in checkpoints.chain(["outcome.json", "weights.safetensors"].map(Into::into)) {
            self.0.remove(&format!("{run}/{file}"));
        }
        let losses = self.0.text(&format!("{run}/losses.jsonl"));
        let two: String = losses.split_inclusive('\n').take(2).collect();
        self.0.write(&format!("{run}/losses.jsonl"), two);
    }
}

fn said(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

/// The processes that a process has started and that have not ended.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name, which may hold anything: the state and the parent.
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let mut after = after.split(' ');
        after.next().is_some_and(|state| state != "Z") && after.next() == Some(&parent.to_string())
    })
    .collect()
}

/// Kills one of the processes that `mpirun` has started, by SIGKILL. All of them end, in time, where there was one to kill.
fn kill_one(mpirun: &Child, index: usize) {
    let trained = children(mpirun.id());
    let Some(pid) = trained.get(index % trained.len().max(1)) else { return };
    let start = Instant::now();
    // It may have ended in between.
    let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
    while !children(mpirun.id()).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "the others went on alone");
        sleep(Duration::from_millis(20));
    }
}

/// Waits for `mpirun`, whose processes are killed or end with an error.
///
/// All that it started has ended, and yet it may stand still: that of OpenMPI 4.1.4 with PMIx 4.2.2 did for good, where a killed program of ten lines of C was as good (`docs/many-machines.md`). Then it is killed.
fn end(mpirun: &mut Child) -> ExitStatus {
    let mut last_seen = Instant::now();
    loop {
        if let Some(status) = mpirun.try_wait().expect("a child") {
            return status;
        }
        if !children(mpirun.id()).is_empty() {
            last_seen = Instant::now();
        } else if last_seen.elapsed() > Duration::from_secs(20) {
            println!("mpirun stands still without processes: it is killed");
            mpirun.kill().expect("a child");
        }
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn processes_train_one_model() {
    let runs = Runs::new();
    for (run, size) in [("one", 1), ("two", 2), ("again", 2), ("three", 3)] {
        let [stdout, stderr] = runs.succeed(size, &Runs::train(run));
        // One of them tells, once.
        assert_eq!(stderr.matches("epoch   4/4").count(), 1, "{stderr}");
        assert_eq!(stdout.matches("validation loss").count(), 1, "{stdout}");
        let together = format!("{size} peers, each of which sends 0.");
        assert_eq!(stdout.contains(&together), size > 1, "{stdout}");
    }
    let plain = Runs::train("plain");
    runs.0.succeeds(&plain);
    assert!(runs.end("one") == runs.end("plain"), "a process without others is as it always was");
    assert!(runs.end("two") == runs.end("again"), "the same processes end at the same bits");
    // What is dropped differs. Untrained, the loss is ln 64 = 4.2.
    for run in ["two", "three"] {
        let [loss, expected] = [run, "one"].map(|run| runs.final_loss(run));
        assert!(loss != expected && (loss / expected - 1.0).abs() < 0.05, "{loss}, not {expected}");
    }
}

/// Three kills in each of two runs, or in as many as `BURN_FP8_KILLED_RUNS` says.
#[test]
fn killed_processes_lose_nothing() {
    let count = std::env::var("BURN_FP8_KILLED_RUNS");
    let count = count.map_or(2, |count| count.parse().expect("BURN_FP8_KILLED_RUNS is a number"));
    let runs = Runs::new();
    let start = Instant::now();
    runs.succeed(2, &Runs::train("whole"));
    let time = start.elapsed();
    let mut random = StdRng::seed_from_u64(28);
    let mut killed = 0;
    for run in (0..count).map(|run| format!("run-{run}")) {
        for _ in 0..3 {
            let resume = if runs.0.has(&format!("{run}/run.json")) { " --resume" } else { "" };
            let mut command = runs.mpirun(2, &(Runs::train(&run) + resume));
            let mut mpirun =
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mpirun");
            sleep(time.mul_f64(random.random()));
            kill_one(&mpirun, random.random_range(0..2));
            killed += usize::from(!end(&mut mpirun).success());
        }
        let resume = if runs.0.has(&format!("{run}/run.json")) { " --resume" } else { "" };
        runs.succeed(2, &(Runs::train(&run) + resume));
        assert!(runs.end(&run) == runs.end("whole"), "{run} ends elsewhere");
    }
    println!("{killed} of {} kills came before the end of a run", 3 * count);
    assert!(killed > 0, "all kills came too late");
}

/// One that is stopped, as if its machine had gone away, is an error in the time that `--wait` gives, in one line; the launcher ends it.
#[test]
fn a_process_that_hangs_is_an_error() {
    let runs = Runs::new();
    let run = Runs::train("hangs").replace("--epochs 4", "--epochs 2000") + " --wait 3";
    let mut command = runs.mpirun(2, &run);
    let mut mpirun = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("mpirun");
    let begun = Instant::now();
    // There is a file before the first of them trains.
    while !runs.0.has("hangs/losses.jsonl") || runs.0.text("hangs/losses.jsonl").is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
        sleep(Duration::from_millis(20));
    }
    let stopped = Instant::now();
    let trained = children(mpirun.id());
    let stop = Command::new("kill").args(["-STOP", &trained[1].to_string()]).status();
    assert!(stop.expect("kill").success());
    // What it says is short, and waits for its reader.
    end(&mut mpirun);
    let output = mpirun.wait_with_output().expect("a child");
    let [_, stderr] = said(&output);
    assert!(!output.status.success() && stopped.elapsed() < Duration::from_secs(30), "{stderr}");
    assert!(stderr.contains("waited 3 seconds for the others"), "{stderr}");
    assert!(
        stderr.contains("checkpoint, with --resume") && !stderr.contains("panicked"),
        "{stderr}"
    );
}

/// Scales, moments and losses carry over; the parts of the batch, and what is dropped, are other ones.
#[test]
fn another_number_of_processes_goes_on() {
    let runs = Runs::new();
    runs.succeed(2, &Runs::train("whole"));
    for size in [1, 2, 3] {
        let run = format!("by-{size}");
        let [from, to] = [runs.0.path("whole"), runs.0.path(&run)];
        assert!(Command::new("cp").arg("-r").args([from, to]).status().expect("cp").success());
        runs.forget_two_epochs(&run);
        let [_, stderr] = runs.succeed(size, &(Runs::train(&run) + " --resume"));
        has(&stderr, &["going on from the checkpoint of epoch 2"]);
        let [loss, whole] = [run.as_str(), "whole"].map(|run| runs.final_loss(run));
        assert!((loss / whole - 1.0).abs() < 0.05, "{size}: {loss}, not {whole}");
        assert_eq!(runs.end(&run) == runs.end("whole"), size == 2, "{size}");
        // A finished run is not trained again, and its processes say so together.
        let [stdout, stderr] = runs.succeed(size, &(Runs::train(&run) + " --resume"));
        assert!(!stderr.contains("epoch") && stdout.contains("validation loss"), "{stderr}");
    }
}

#[test]
fn what_cannot_be_trained_together_is_an_error() {
    let runs = Runs::new();
    let fails = |mut command: Command, words: &[&str]| {
        let start = Instant::now();
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut mpirun = command.spawn().expect("OpenMPI is installed");
        end(&mut mpirun);
        let output = mpirun.wait_with_output().expect("a child");
        let [_, stderr] = said(&output);
        assert!(!output.status.success() && !stderr.contains("panicked"), "{stderr}");
        has(&stderr, words);
        assert!(start.elapsed() < Duration::from_secs(60), "{stderr}");
    };
    let train = Runs::train("run");
    fails(runs.mpirun(9, &train), &["9 peers cannot divide a batch of 8 sequences"]);
    let program = env!("CARGO_BIN_EXE_char-lm");
    let one = |arguments: &str| -> Vec<String> {
        let all = format!("-n 1 {program} {arguments}");
        all.split_whitespace().map(Into::into).collect()
    };
    let both = [one(&train), vec![":".into()], one(&format!("{train} --seed 2"))].concat();
    let both: Vec<_> = both.iter().map(String::as_str).collect();
    fails(runs.mpirun_of(&both), &["differ", "\"seed\": 1", "\"seed\": 2"]);
    let both =
        [one(&train), vec![":".into()], one(&train.replace("--wire fp8", "--wire bf16"))].concat();
    let both: Vec<_> = both.iter().map(String::as_str).collect();
    fails(runs.mpirun_of(&both), &["differ", "--wire Fp8", "--wire Bf16"]);
    assert!(!runs.0.has("run"), "nothing was begun");
    fails(runs.mpirun(2, &format!("{train} --resume")), &["no run to go on with"]);
    fails(runs.mpirun(2, &format!("{train} --peers 2")), &["--peers 2", "2 processes", "already"]);
    // As the mpirun of another MPI starts it.
    runs.0.fails_in(&[("PMI_SIZE", "2")], &train, &["2 processes were started", "sees 1"]);
    assert!(!runs.0.has("run"));
}
