//! What runs on the simulated device: test programs, each in a process of its own, as many at a time as there are cores.

use std::fs::{self, File};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::Size;
use super::libraries::{COMPLAINED, Folders};
use super::programs::Programs;

/// One process.
struct Job {
    /// Names its log.
    name: String,
    package: &'static str,
    target: &'static str,
    /// Only tests whose names contain one of these; all if there are none.
    only: &'static [&'static str],
    /// No test whose name contains one of these.
    skip: &'static [&'static str],
    variables: Vec<(&'static str, &'static str)>,
    /// Whether the simulation has to complain: its events do nothing.
    is_mutation: bool,
}

impl Job {
    fn new(name: impl Into<String>, package: &'static str, target: &'static str) -> Self {
        Self {
            name: name.into(),
            package,
            target,
            only: &[],
            skip: &[],
            variables: vec![],
            is_mutation: false,
        }
    }

    fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    fn skip(self, skip: &'static [&'static str]) -> Self {
        Self { skip, ..self }
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }
}

/// All jobs, the longest first.
fn jobs() -> Vec<Job> {
    let cuda = |name, only| Job::new(name, "burn-fp8", "cuda").only(only);
    let mut jobs = vec![
        cuda("training", &["training::"]),
        cuda("products, unfused", &["products::unfused"]),
        cuda("products, fused", &["products::fused"]),
        cuda("codes", &["codes::"]),
        cuda("layers", &["layers::", "frozen::", "delayed::"]),
        cuda(
            "accuracy and the rest",
            &["accuracy::", "golden::", "ladder::", "special::", "scaled::"],
        ),
        // Tensors that travel: CubeCL itself reads memory that another stream has not written yet.
        cuda("stress and threads", &["stress::", "threads::"]).skip(&["with_tensors_that_travel"]),
        // It fills 4 GiB of device memory: the simulation knows of each byte, in eight.
        Job::new("kernels", "burn-fp8-kernels", "gpu").skip(&["more_elements_than_32_bits_reach"]),
        Job::new("faults and devices", "burn-fp8", "simulated"),
    ];
    for capability in ["89", "90", "100"] {
        let of = |target| {
            Job::new(format!("cublaslt {target} {capability}"), "burn-fp8-cublaslt", target)
                .with("SIM_CAPABILITY", capability)
        };
        jobs.extend([of("gpu"), of("simulated")]);
    }
    for event in ["SIM_WITHOUT_RECORD", "SIM_WITHOUT_WAIT"] {
        let mutation = |name, package, target, only| Job {
            is_mutation: true,
            ..Job::new(format!("{name}, {event}"), package, target).only(only).with(event, "1")
        };
        jobs.extend([
            mutation("order", "burn-fp8", "simulated", &["order::unfused"][..]),
            mutation("order with Fusion", "burn-fp8", "simulated", &["order::fused"]),
            mutation(
                "order of cublaslt",
                "burn-fp8-cublaslt",
                "gpu",
                &["products_are_ordered_with_several_streams_that_take_turns"],
            ),
        ]);
    }
    jobs
}

/// Runs all jobs, prints a line for each, and the log of each that failed.
pub fn run_all(
    folders: &Folders,
    programs: &Programs,
    filter: Option<&str>,
    size: Size,
) -> Result<()> {
    let jobs = jobs();
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![]);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let start = Instant::now();
                    let result = run(job, folders, programs, filter, size);
                    let seconds = start.elapsed().as_secs_f64();
                    match &result {
                        Ok(Some(done)) => println!("{:<45} {seconds:>7.1} s  {done}", job.name),
                        Ok(None) => {}
                        Err(error) => {
                            println!("{:<45} {seconds:>7.1} s  FAILED: {error:#}", job.name)
                        }
                    }
                    results.lock().expect("no thread panics with it").push(result);
                }
            });
        }
    });
    let results = results.into_inner().expect("no thread has panicked");
    let failed = results.iter().filter(|result| result.is_err()).count();
    ensure!(failed == 0, "{failed} of {} jobs failed", jobs.len());
    let ran = results.iter().filter(|result| matches!(result, Ok(Some(_)))).count();
    ensure!(ran > 0, "no test has such a name");
    Ok(())
}

/// Runs a job. What it did; nothing where no test of it has such a name.
fn run(
    job: &Job,
    folders: &Folders,
    programs: &Programs,
    filter: Option<&str>,
    size: Size,
) -> Result<Option<String>> {
    let (program, folder) = programs.get(job.package, job.target)?;
    let mut list = Command::new(program);
    let list = list.args(["--ignored", "--list"]).envs(folders.variables()?).output()?;
    let list = String::from_utf8_lossy(&list.stdout);
    let tests: Vec<_> = list
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|test| job.only.is_empty() || job.only.iter().any(|part| test.contains(part)))
        .filter(|test| !job.skip.iter().any(|part| test.contains(part)))
        .filter(|test| filter.is_none_or(|part| test.contains(part)))
        .collect();
    if tests.is_empty() {
        ensure!(filter.is_some(), "no test of {} is left", job.package);
        return Ok(None);
    }
    let log = folders.log(&job.name);
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--test-threads=1"]).args(&tests).current_dir(folder);
    command.envs(folders.variables()?).envs(job.variables.iter().copied());
    if size == Size::Small {
        command.env("BURN_FP8_TEST_SIZE", "small");
    }
    command.stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if job.is_mutation {
        let complained = said.contains("is not ordered after the ");
        ensure!(
            complained && !status.success(),
            "the order was switched off, and nothing complained: see {}",
            log.display()
        );
        return Ok(Some("complained of, as it has to be".to_owned()));
    }
    if !status.success() {
        const LINES: usize = 40;
        let lines: Vec<_> = said.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(LINES)..].join("\n"));
        let complaint =
            if status.code() == Some(COMPLAINED) { ": the simulation complained" } else { "" };
        bail!("{status}{complaint}; all of it is in {}", log.display());
    }
    let passed = format!("{} passed", tests.len());
    ensure!(said.contains(&passed), "not all tests ran: see {}", log.display());
    Ok(Some(passed))
}
