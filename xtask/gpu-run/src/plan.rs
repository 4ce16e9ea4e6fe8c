//! What runs, in which order: phases, each a program with a limit of time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::arguments::Arguments;
use crate::process::Environment;

/// Test programs, each with a phase for every module. A program's phases are called as it is, without `-tests`.
const TEST_PROGRAMS: [&str; 3] =
    ["burn-fp8-cublaslt-tests", "burn-fp8-kernels-tests", "burn-fp8-tests"];

/// The program whose tests compute-sanitizer watches.
const SANITIZED: &str = "burn-fp8-tests";
/// Few tests, since they take many times as long: kernels, and products on tensor cores. What memory the vendor's product shares and
/// leaves uninitialized is not ours to check.
const SANITIZER: [(&str, &[&str]); 3] = [
    ("memcheck", &["codes::unfused::of_joined_dimensions", "products::unfused::are_deterministic"]),
    ("racecheck", &["codes::unfused::of_joined_dimensions"]),
    ("initcheck", &["codes::unfused::of_joined_dimensions"]),
];

/// What a benchmark gets in its arguments for the seconds that it has.
pub const SECONDS: &str = "{seconds}";

/// A configuration that has no emulation: its file and its text.
pub const NATIVE: (&str, &str) = ("digits.json", "{\"execution\": \"native\"}\n");

/// A command that runs for a limited time.
pub struct Phase {
    pub name: String,
    pub group: Group,
    pub work: Work,
    /// At most.
    pub seconds: u64,
    /// Words that show that it ran on tensor cores, and how often at least it prints them: what emulates where it must not ends well, too.
    pub evidence: Option<(&'static str, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Tests,
    Sanitizer,
    Accuracy,
    Examples,
    Peers,
    Bench,
}

pub enum Work {
    Run(Program, Vec<String>),
    /// Left out, since it is not asked for; why.
    Skip(String),
    /// Left out though it should have run; why.
    Lose(String),
}

/// What a phase starts.
#[derive(Clone, Copy)]
pub enum Program {
    /// A program of the archive.
    Own(&'static str),
    /// The same, watched by a tool of compute-sanitizer.
    Watched(&'static str, &'static str),
    /// A script of the archive, run by the Python that has torch.
    Script(&'static str),
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Sanitizer => "sanitizer",
            Self::Accuracy => "accuracy",
            Self::Examples => "examples",
            Self::Peers => "peers",
            Self::Bench => "bench",
        }
    }

    pub fn is_benchmark(self) -> bool {
        matches!(self, Self::Peers | Self::Bench)
    }
}

impl Phase {
    fn new(name: impl Into<String>, group: Group, seconds: u64, work: Work) -> Self {
        Self { name: name.into(), group, work, seconds, evidence: None }
    }

    /// Whether it is meant by a name on the command line: its own, its group's, that of its test program, or that of a module of a
    /// program whose modules are not known.
    fn is_called(&self, name: &str) -> bool {
        let program = self.name.split(':').next();
        let module = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix(':'));
        [Some(self.name.as_str()), Some(self.group.name()), program].contains(&Some(name))
            || (matches!(self.work, Work::Lose(_)) && module.is_some_and(|name| !name.is_empty()))
    }
}

/// The phases that the command line asks for, as far as modules of tests are known: where their program is.
///
/// # Errors
/// If no phase has a name that is asked for.
pub fn wanted(arguments: &Arguments, archive: &Path) -> Result<Vec<Phase>, String> {
    let names = &arguments.phases;
    let mut phases = all(archive, arguments.quick, !names.is_empty());
    if let Some(name) = names.iter().find(|name| !phases.iter().any(|phase| phase.is_called(name)))
    {
        return Err(format!("no phase is called {name}: --list lists them"));
    }
    phases.retain(|phase| match (names.is_empty(), phase.group.is_benchmark()) {
        (false, _) => names.iter().any(|name| phase.is_called(name)),
        (true, true) => !arguments.validate_only,
        (true, false) => !arguments.bench_only,
    });
    Ok(phases)
}

/// All phases. With `quick` they are smaller, and compute-sanitizer runs only where phases are named.
fn all(archive: &Path, quick: bool, named: bool) -> Vec<Phase> {
    let tests = TEST_PROGRAMS.into_iter().flat_map(|program| tests(archive, program, quick));
    let others = [sanitizer(archive, quick && !named), examples(quick), measured(quick)];
    tests.chain(others.into_iter().flatten()).collect()
}

/// The names of a program's tests. All of these need a GPU, and say so by being ignored elsewhere.
fn tests_of(archive: &Path, program: &str) -> Result<Vec<String>, String> {
    let path = archive.join("bin").join(program);
    if !path.is_file() {
        return Err(format!("there is no bin/{program}"));
    }
    let mut command = Command::new(path);
    command.args(["--list", "--ignored", "--format", "terse"]);
    let output = Environment::default().output(&mut command, 60);
    let text = output.map(|output| output.text).unwrap_or_default();
    let tests: Vec<String> =
        text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    if tests.is_empty() { Err("the program lists no tests".to_owned()) } else { Ok(tests) }
}

/// A phase for each module of a test program, so that one which ends a process ends no other.
fn tests(archive: &Path, program: &'static str, quick: bool) -> Vec<Phase> {
    let prefix = program.trim_end_matches("-tests");
    let tests = match tests_of(archive, program) {
        Ok(tests) => tests,
        Err(reason) => return vec![Phase::new(prefix, Group::Tests, 0, Work::Lose(reason))],
    };
    let mut modules = BTreeMap::<String, Vec<String>>::new();
    for test in tests {
        let module = test.split_once("::").map(|(module, _)| format!(":{module}"));
        modules.entry(module.unwrap_or_default()).or_default().push(test);
    }
    let of_module = |(module, tests)| {
        let mut words = words("--ignored --exact --show-output --test-threads=1");
        words.extend(tests);
        let work = Work::Run(Program::Own(program), words);
        Phase::new(format!("{prefix}{module}"), Group::Tests, if quick { 180 } else { 600 }, work)
    };
    modules.into_iter().map(of_module).collect()
}

/// Some tests, with each access to memory checked in software.
fn sanitizer(archive: &Path, skipped: bool) -> Vec<Phase> {
    let known = tests_of(archive, SANITIZED).unwrap_or_default();
    let phase = |(tool, tests): (&'static str, &[&str])| {
        // A name that matches nothing would be no failure of the program.
        let unknown = tests.iter().find(|test| !known.iter().any(|known| known == *test));
        let work = match unknown {
            _ if skipped => Work::Skip("not with --quick".to_owned()),
            Some(test) if !known.is_empty() => Work::Lose(format!("there is no test {test}")),
            _ => {
                let mut words = words("--ignored --exact --test-threads=1");
                words.extend(tests.iter().map(ToString::to_string));
                Work::Run(Program::Watched(SANITIZED, tool), words)
            }
        };
        Phase::new(format!("sanitizer-{tool}"), Group::Sanitizer, 600, work)
    };
    SANITIZER.map(phase).into()
}

fn examples(quick: bool) -> Vec<Phase> {
    let phase = |name, seconds, program, arguments: &str, evidence| {
        let work = Work::Run(Program::Own(program), words(arguments));
        Phase { evidence, ..Phase::new(name, Group::Examples, seconds, work) }
    };
    let epochs = if quick { 2 } else { 10 };
    let digits = format!("--backend cuda --config {} --epochs {epochs} --out digits", NATIVE.0);
    let train =
        "train --backend cuda --size smoke --epochs 2 --precision fp8-current --out char-lm";
    vec![
        // Its products run on tensor cores or end it. Layers too narrow for FP8 are left out by the filter, not emulated.
        phase("digits", 180, "digits", &digits, None),
        // It prints what ran each step. Not with `--execution native`: cuBLASLt may lack GELU with an FP8 output, which ends it there.
        // The other five of its eight products have none.
        phase(
            "fused_matmul",
            120,
            "fused_matmul",
            "--backend cuda --execution auto",
            Some(("native: algorithm ", 5)),
        ),
        // A language model through Burn's Learner with its checkpoints; and one block of it in five precisions, three of them in FP8,
        // each with three products of four layers.
        phase("char-lm", 240, "char-lm", train, None),
        phase(
            "char-lm-block",
            120,
            "char-lm",
            "block --backend cuda --out char-lm-block",
            Some((": 12 of 12 FP8 products on tensor cores", 3)),
        ),
    ]
}

/// Errors of products beside torch's, then speeds.
fn measured(quick: bool) -> Vec<Phase> {
    let phase = |name: &str, group, seconds, program, arguments: &str| {
        let mut words = words(arguments);
        let takes_quick = name != "accuracy";
        words.extend((quick && takes_quick).then(|| "--quick".to_owned()));
        Phase::new(name, group, seconds, Work::Run(program, words))
    };
    let ours = Program::Own("burn-fp8-gpu");
    let judge = Program::Script("gpu_accuracy.py");
    let peers = Program::Script("gpu_peers.py");
    let mut phases = vec![
        phase("accuracy-products", Group::Accuracy, 120, ours, "accuracy accuracy"),
        phase("accuracy", Group::Accuracy, 120, judge, "accuracy accuracy.json"),
        phase("peers", Group::Peers, 300, peers, "torch.json"),
    ];
    for name in ["gpu-gemm", "gpu-kernels", "gpu-linear", "gpu-host"] {
        let arguments = format!("bench {name} --json rows-{name}.json");
        phases.push(phase(name, Group::Bench, 180, ours, &arguments));
    }
    let name = "gpu-break-even";
    let arguments = format!("bench {name} --json rows-{name}.json --out . --seconds {SECONDS}");
    phases.push(phase(name, Group::Bench, if quick { 120 } else { 540 }, ours, &arguments));
    phases
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn wanted(arguments: &str) -> Result<Vec<String>, String> {
        let arguments = Arguments::parse_from(["run.sh"].into_iter().chain(arguments.split(' ')));
        let phases = super::wanted(&arguments, Path::new("/no/such/archive"));
        phases.map(|phases| phases.into_iter().map(|phase| phase.name).collect())
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
