//! What runs on the simulated device: test programs, each in a process of its own, as many at a time as there are cores.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::libraries::{COMPLAINED, Folders};
use super::programs::Programs;

/// How large tests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// For two cores and minutes.
    Small,
    /// The same, of the libraries alone: without the examples, which are then built without CUDA.
    Libraries,
    /// As on a GPU: hours.
    Full,
}

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
    /// What the simulation has to complain of, where its events do nothing.
    complaint: Option<&'static str>,
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
            complaint: None,
        }
    }

    fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    fn skip(self, skip: &'static [&'static str]) -> Self {
        Self { skip, ..self }
    }

    /// Whether it runs a test.
    fn takes(&self, test: &str) -> bool {
        let is_in = |parts: &[&str]| parts.iter().any(|part| test.contains(part));
        (self.only.is_empty() || is_in(self.only)) && !is_in(self.skip)
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }
}

/// All jobs, the longest first.
fn jobs(size: Size) -> Vec<Job> {
    let cuda = |name, only| Job::new(name, "burn-fp8", "cuda").only(only);
    let mut jobs = vec![
        // One fills 4 GiB of device memory, of which the simulation knows each byte, in eight; one has 17 million threads, which run one after the other. Numbers
        // of every recipe are seen on Vulkan: compiling its kernels takes minutes.
        Job::new("kernels", "burn-fp8-kernels", "gpu").skip(&[
            "more_elements_than_32_bits_reach",
            "more_blocks_than_a_dimension_of_a_grid",
            "every_recipe_and_block",
            "every_amax",
        ]),
        cuda("training", &["training::"]),
        cuda("products, unfused", &["products::unfused"]),
        cuda("products, fused", &["products::fused"]),
        cuda("codes", &["codes::"]),
        cuda("layers", &["layers::", "delayed::"]),
        cuda("accuracy and the rest", &["accuracy::", "special::", "scaled::", "sums::"]),
        cuda("sums, Hopper", &["sums::"]).with("SIM_CAPABILITY", "90"),
        cuda("blocks, Hopper", &["blocks::"]).with("SIM_CAPABILITY", "90"),
        cuda("blocks, Blackwell", &["blocks::"]).with("SIM_CAPABILITY", "100"),
        // Tensors that travel: CubeCL itself reads memory that another stream has not written yet.
        cuda("stress and threads", &["stress::", "threads::"]).skip(&["with_tensors_that_travel"]),
        cuda("faults and devices", &["simulated::"]),
    ];
    if size != Size::Libraries {
        jobs.push(Job::new("char-lm", "char-lm", "program").only(&["training::"]));
        jobs.push(Job::new("digits", "digits", "program").only(&["training::"]));
        jobs.push(Job::new("fused_matmul", "fused_matmul", "ladder"));
    }
    for capability in ["89", "90", "100"] {
        let of = |target| {
            Job::new(format!("cublaslt {target} {capability}"), "burn-fp8-cublaslt", target)
                .with("SIM_CAPABILITY", capability)
        };
        jobs.extend([of("gpu"), of("simulated")]);
    }
    // What a product reads too early; and what is written, in memory that a pool has given out again, while a product still reads it.
    let (early, late) =
        ("read by cublasLtMatmul (", "is not ordered after the read by cublasLtMatmul (");
    let (record, wait) = ("SIM_WITHOUT_RECORD", "SIM_WITHOUT_WAIT");
    for (event, complaint) in [(record, early), (wait, late)] {
        let mutation = |name, only| Job {
            complaint: Some(complaint),
            ..Job::new(format!("{name}, {event}"), "burn-fp8", "cuda").only(only).with(event, "1")
        };
        jobs.push(mutation("order", &["simulated::order::unfused"]));
        jobs.push(mutation("order with Fusion", &["simulated::order::fused"]));
    }
    for (event, complaint) in
        [(record, early), (wait, "is not ordered after the write by cublasLtMatmul (")]
    {
        let job = Job::new(format!("order of cublaslt, {event}"), "burn-fp8-cublaslt", "gpu");
        let only = &["products_are_ordered_with_several_streams_that_take_turns"];
        jobs.push(Job { complaint: Some(complaint), ..job.only(only).with(event, "1") });
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
    let jobs = jobs(size);
    check_complete(&jobs, folders, programs)?;
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
    let place = programs.get(job.package, job.target)?;
    let (program, folder) = place;
    let mut tests = tests_of(place, folders)?;
    tests.retain(|test| job.takes(test) && filter.is_none_or(|part| test.contains(part)));
    if tests.is_empty() {
        ensure!(filter.is_some(), "no test of {} is left", job.package);
        return Ok(None);
    }
    let log = folders.log(&job.name);
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(program);
    command.args(["--ignored", "--exact", "--test-threads=1"]).args(&tests).current_dir(folder);
    command.envs(folders.variables()?).envs(job.variables.iter().copied());
    if size != Size::Full {
        command.env("BURN_FP8_TEST_SIZE", "small");
    }
    command.stdout(file.try_clone()?).stderr(file);
    let status = status_in_time(command)
        .with_context(|| format!("{} for {}", program.display(), log.display()))?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if let Some(complaint) = job.complaint {
        ensure!(
            said.contains(complaint) && !status.success(),
            "the order was switched off, and nothing said \"{complaint}\": see {}",
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
    // Tests that start themselves say so of one test each: the last line counts.
    let passed = format!("ok. {} passed; 0 failed;", tests.len());
    let result = said.lines().rfind(|line| line.starts_with("test result: "));
    let all = result.is_some_and(|line| line.contains(&passed));
    ensure!(all, "not all tests ran: see {}", log.display());
    Ok(Some(format!("{} passed", tests.len())))
}

/// How a process ends, which has so long and no longer.
fn status_in_time(mut command: Command) -> Result<ExitStatus> {
    const LIMIT: Duration = Duration::from_secs(20 * 60);
    let mut child = command.spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it did not end within {} minutes", LIMIT.as_secs() / 60);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Fails where a test is in no job: a new module of tests would never run.
fn check_complete(jobs: &[Job], folders: &Folders, programs: &Programs) -> Result<()> {
    for (package, target) in
        jobs.iter().map(|job| (job.package, job.target)).collect::<BTreeSet<_>>()
    {
        for test in tests_of(programs.get(package, target)?, folders)? {
            let is_known = jobs.iter().any(|job| {
                (job.package, job.target) == (package, target)
                    && (job.takes(&test) || job.skip.iter().any(|part| test.contains(part)))
            });
            ensure!(is_known, "the test {test} of {package} is in no job of xtask/src/sim/jobs.rs");
        }
    }
    Ok(())
}

/// The names of the ignored tests of a program.
fn tests_of((program, _): &(PathBuf, PathBuf), folders: &Folders) -> Result<Vec<String>> {
    let mut list = Command::new(program);
    let list = list.args(["--ignored", "--list"]).envs(folders.variables()?).output()?;
    let list = String::from_utf8(list.stdout)?;
    Ok(list.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
