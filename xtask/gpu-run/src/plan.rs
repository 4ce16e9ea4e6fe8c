//! What runs, in which order: phases, each a program with a limit of time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::arguments::Arguments;
use crate::process::Environment;

pub const TESTS: &str = "tests";
pub const SANITIZER: &str = "sanitizer";
pub const BENCH: &str = "bench";
/// Groups of phases that need torch.
pub const WITH_TORCH: [&str; 2] = ["accuracy", "peers"];
/// The phase without which no other makes sense.
const DEVICE: &str = "device";

/// Test programs, each with a phase for every module. A program's phases are called as it is, without `-tests`.
const TEST_PROGRAMS: [&str; 3] =
    ["burn-fp8-cublaslt-tests", "burn-fp8-kernels-tests", "burn-fp8-tests"];
/// The module of tests that only a simulated device can pass: faults on demand.
const SIMULATED: &str = "simulated::";
/// How a test program runs those that it is given, all of which are ignored where there is no GPU.
const EXACTLY: &str = "--ignored --exact --show-output --test-threads=1";

/// All other phases: name, group, seconds at most, program or script, and its arguments.
///
/// - compute-sanitizer watches few tests, since they take many times as long: kernels, and products on tensor cores. What memory the
///   vendor's product shares and leaves uninitialized is not ours to check.
/// - The products of `digits` run on tensor cores or end it. Layers too narrow for FP8 are left out by the filter, not emulated.
/// - `fused_matmul` prints what ran each step. Not with `--execution native`: cuBLASLt may lack GELU with an FP8 output, which ends it
///   there. The other five of its eight products have none.
/// - `char-lm` trains a language model through Burn's Learner with its checkpoints.
const OTHERS: &str = "\
device | device | 120 | burn-fp8-gpu | device --json device.json
sanitizer-memcheck | sanitizer | 600 | burn-fp8-tests | codes::unfused::of_joined_dimensions products::unfused::are_deterministic
sanitizer-racecheck | sanitizer | 600 | burn-fp8-tests | codes::unfused::of_joined_dimensions
sanitizer-initcheck | sanitizer | 600 | burn-fp8-tests | codes::unfused::of_joined_dimensions
accuracy-products | accuracy | 120 | burn-fp8-gpu | accuracy accuracy {quick}
accuracy | accuracy | 120 | gpu_accuracy.py | accuracy accuracy.json
digits | examples | 180 | digits | --backend cuda --config digits.json --epochs {epochs} --out digits
fused_matmul | examples | 120 | fused_matmul | --backend cuda --execution auto
char-lm | examples | 240 | char-lm | train --backend cuda --size smoke --epochs 2 --precision m=fp8 --out char-lm
peers | peers | 300 | gpu_peers.py | torch.json {quick}
gpu-gemm | bench | 180 | burn-fp8-gpu | bench gpu-gemm --json rows-gpu-gemm.json {quick}
gpu-kernels | bench | 180 | burn-fp8-gpu | bench gpu-kernels --json rows-gpu-kernels.json {quick}
gpu-linear | bench | 180 | burn-fp8-gpu | bench gpu-linear --json rows-gpu-linear.json {quick}
gpu-host | bench | 180 | burn-fp8-gpu | bench gpu-host --json rows-gpu-host.json {quick}
gpu-break-even | bench | 540 | burn-fp8-gpu | bench gpu-break-even --json rows-gpu-break-even.json --seconds {seconds} {quick}";

/// What shows that a phase ran on tensor cores: words, and how often at least it prints them. What emulates where it must not ends
/// well, too.
const EVIDENCE: [(&str, &str, usize); 1] = [("fused_matmul", "native: algorithm ", 5)];

/// A command that runs for a limited time.
pub struct Phase {
    pub name: String,
    pub group: &'static str,
    /// At most.
    pub seconds: u64,
    /// A program of the archive, or a script.
    pub program: &'static str,
    pub arguments: Vec<String>,
    /// Why it cannot run, though it should.
    pub lost: Option<String>,
}

impl Phase {
    /// Whether nothing else makes sense without it.
    pub fn is_first(&self) -> bool {
        self.name == DEVICE
    }

    pub fn is_benchmark(&self) -> bool {
        ["peers", BENCH].contains(&self.group)
    }

    /// Words, and how often at least it has to print them.
    pub fn evidence(&self) -> Option<(&'static str, usize)> {
        let mut evidence = EVIDENCE.into_iter();
        evidence.find(|(phase, ..)| *phase == self.name).map(|(_, words, times)| (words, times))
    }

    /// Whether it is meant by a name on the command line: its own, its group's, that of its test program, or that of a module of a
    /// program whose modules are not known.
    fn is_called(&self, name: &str) -> bool {
        let program = self.name.split(':').next().unwrap_or(&self.name);
        let module = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix(':'));
        [&self.name, self.group, program].contains(&name)
            || (self.lost.is_some() && module.is_some_and(|module| !module.is_empty()))
    }
}

/// The phases that the command line asks for, as far as modules of tests are known: where their program is. The first looks at the
/// device.
///
/// # Errors
/// If no phase has a name that is asked for.
pub fn wanted(arguments: &Arguments, archive: &Path) -> Result<Vec<Phase>, String> {
    let names = &arguments.phases;
    let mut phases: Vec<Phase> = OTHERS.lines().map(|line| other(line, arguments.quick)).collect();
    for program in TEST_PROGRAMS.into_iter().rev() {
        phases.splice(1..1, tests(archive, program, arguments.quick));
    }
    for phase in phases.iter_mut().filter(|phase| phase.group == SANITIZER) {
        // A name that matches nothing would be no failure of the program.
        let known = tests_of(archive, phase.program).unwrap_or_else(|_| phase.arguments.clone());
        let unknown = phase.arguments.iter().find(|test| !known.contains(test));
        phase.lost = unknown.map(|test| format!("there is no test {test}"));
        phase.arguments.splice(0..0, words(EXACTLY));
    }
    if let Some(name) = names.iter().find(|name| !phases.iter().any(|phase| phase.is_called(name)))
    {
        return Err(format!("no phase is called {name}: --list lists them"));
    }
    phases.retain(|phase| match (names.is_empty(), phase.is_benchmark()) {
        _ if phase.is_first() => true,
        (false, _) => names.iter().any(|name| phase.is_called(name)),
        (true, true) => !arguments.validate_only,
        (true, false) => !arguments.bench_only,
    });
    Ok(phases)
}

/// A line of [`OTHERS`].
fn other(line: &'static str, quick: bool) -> Phase {
    let columns: Vec<&str> = line.split(" | ").collect();
    let [name, group, seconds, program, arguments] = columns[..] else { panic!("{line}") };
    let arguments = arguments.replace("{epochs}", if quick { "2" } else { "10" });
    let arguments = words(&arguments).filter(|word| quick || word != "{quick}");
    Phase {
        name: name.to_owned(),
        group,
        seconds: seconds.parse().expect("a number of seconds"),
        program,
        arguments: arguments.map(|word| word.replace("{quick}", "--quick")).collect(),
        lost: None,
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(' ').map(str::to_owned)
}

/// The names of a program's tests that need a GPU.
fn tests_of(archive: &Path, program: &str) -> Result<Vec<String>, String> {
    let path = archive.join("bin").join(program);
    if !path.is_file() {
        return Err(format!("there is no bin/{program}"));
    }
    let mut command = Command::new(path);
    command.args(["--list", "--ignored", "--format", "terse"]);
    let output = Environment::default().output(&mut command, 60);
    let text = output.map(|output| output.text).unwrap_or_default();
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    let tests = tests.filter(|test| !test.starts_with(SIMULATED));
    let tests: Vec<String> = tests.map(str::to_owned).collect();
    if tests.is_empty() { Err("the program lists no tests".to_owned()) } else { Ok(tests) }
}

/// A phase for each module of a test program, so that one which ends a process ends no other.
fn tests(archive: &Path, program: &'static str, quick: bool) -> Vec<Phase> {
    let prefix = program.trim_end_matches("-tests");
    let seconds = if quick { 180 } else { 600 };
    let phase = |(module, tests): (String, Vec<String>)| Phase {
        name: format!("{prefix}{module}"),
        group: TESTS,
        seconds,
        program,
        arguments: words(EXACTLY).chain(tests).collect(),
        lost: None,
    };
    let tests = match tests_of(archive, program) {
        Ok(tests) => tests,
        Err(reason) => return vec![Phase { lost: Some(reason), ..phase((String::new(), vec![])) }],
    };
    let mut modules = BTreeMap::<String, Vec<String>>::new();
    for test in tests {
        let module = test.split_once("::").map(|(module, _)| format!(":{module}"));
        modules.entry(module.unwrap_or_default()).or_default().push(test);
    }
    modules.into_iter().map(phase).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn wanted(arguments: &str) -> Result<Vec<String>, String> {
        let arguments = Arguments::parse_from(["run.sh"].into_iter().chain(arguments.split(' ')));
        let phases = super::wanted(&arguments, Path::new("/no/such/archive"));
        phases.map(|phases| phases.into_iter().skip(1).map(|phase| phase.name).collect())
    }

    #[test]
    fn a_phase_is_called_by_its_name_its_program_or_its_group() {
        for name in ["tests", "burn-fp8", "burn-fp8-kernels", "burn-fp8:codes", "bench", "digits"] {
            assert!(wanted(&format!("--phases {name}")).is_ok(), "{name}");
        }
        for name in ["foo", "burn-fp8-foo", "burn-fp8:", "", "digits:a"] {
            let error = wanted(&format!("--phases {name}")).unwrap_err();
            assert_eq!(error, format!("no phase is called {name}: --list lists them"));
        }
        let phases = wanted("--phases burn-fp8:codes,gpu-host,accuracy").unwrap();
        assert_eq!(phases, ["burn-fp8", "accuracy-products", "accuracy", "gpu-host"]);
    }

    #[test]
    fn halves_are_validation_and_benchmarks() {
        let (validation, bench) = (wanted("--validate-only").unwrap(), wanted("--bench-only"));
        assert!(validation.contains(&"digits".into()) && !validation.contains(&"peers".into()));
        let bench = bench.unwrap();
        assert_eq!(bench[0], "peers");
        assert_eq!([validation, bench].concat().len(), wanted("--quick").unwrap().len());
    }
}
