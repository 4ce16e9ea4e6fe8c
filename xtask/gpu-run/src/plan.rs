//! What runs, in which order.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::host::{Machine, Torch};
use crate::phases::{Half, OTHERS, Phase, TEST_PROGRAMS, TESTS, modules, prefix_of, tests_of};
use crate::session::{Outcome, Session};

/// CubeCL is to search for its fastest kernels over few classes of shapes: compiling them is most of what tests take.
const FEW_SHAPES: &[(&str, &str)] = &[("CUBECL_AUTOTUNE_LEVEL", "minimal")];

/// The program whose tests compute-sanitizer watches.
const SANITIZED: &str = "burn-fp8-tests";
/// Few tests, since they take many times as long: kernels, and products on tensor cores. What memory the vendor's product shares and
/// leaves uninitialized is not ours to check.
const SANITIZER: [(&str, &[&str]); 3] = [
    ("memcheck", &["codes::unfused::of_joined_dimensions", "products::unfused::are_deterministic"]),
    ("racecheck", &["codes::unfused::of_joined_dimensions"]),
    ("initcheck", &["codes::unfused::of_joined_dimensions"]),
];

/// Prints the phases, each with its group.
pub fn list(archive: &Path) {
    for program in TEST_PROGRAMS {
        let tests = tests_of(archive, program);
        for (module, _) in modules(&tests) {
            println!("{} (group {TESTS})", name_of(program, module));
        }
        if tests.is_empty() {
            eprintln!("{}: {}", prefix_of(program), without_tests(archive, program));
        }
    }
    for (phase, group) in OTHERS {
        println!("{phase} (group {group})");
    }
}

/// Runs all phases that are wanted.
pub fn run(session: &mut Session<'_>, machine: &Machine) {
    for program in TEST_PROGRAMS {
        tests(session, program);
    }
    sanitizer(session, machine);
    accuracy(session, machine);
    examples(session);
    benchmarks(session, machine);
    // What was written for torch's comparison is large and of no further use.
    let _ = fs::remove_dir_all(session.results.folder().join("accuracy"));
}

fn name_of(program: &str, module: &str) -> String {
    let prefix = prefix_of(program);
    if module.is_empty() { prefix.to_owned() } else { format!("{prefix}:{module}") }
}

fn without_tests(archive: &Path, program: &str) -> String {
    if archive.join("bin").join(program).is_file() {
        "the program lists no tests".to_owned()
    } else {
        format!("there is no bin/{program}")
    }
}

/// A command: a program and its arguments.
fn words<const N: usize>(program: impl Into<OsString>, rest: [&str; N]) -> Vec<OsString> {
    std::iter::once(program.into()).chain(rest.map(OsString::from)).collect()
}

/// A phase for each module of a test program, so that one which ends a process ends no other.
fn tests(session: &mut Session<'_>, program: &str) {
    let prefix = prefix_of(program);
    let tests = tests_of(session.archive, program);
    let by_module = format!("{prefix}:");
    if tests.is_empty()
        && (session.selection.wants(prefix, TESTS) || session.selection.names_one_of(&by_module))
    {
        let reason = without_tests(session.archive, program);
        session.lose(prefix, &reason);
    }
    let seconds = if session.arguments.quick { 180 } else { 600 };
    for (module, names) in modules(&tests) {
        let mut command = words(
            session.program(program),
            ["--ignored", "--exact", "--show-output", "--test-threads=1"],
        );
        command.extend(names.into_iter().map(OsString::from));
        session.phase(Phase {
            name: name_of(program, module),
            group: TESTS,
            limit: Duration::from_secs(seconds),
            command,
            environment: FEW_SHAPES,
            evidence: None,
        });
    }
}

/// Some tests, with each access to memory checked in software.
fn sanitizer(session: &mut Session<'_>, machine: &Machine) {
    let group = "sanitizer";
    let wanted = |tool: &str| session.selection.wants(&format!("{group}-{tool}"), group);
    if !SANITIZER.iter().any(|(tool, _)| wanted(tool)) {
        return;
    }
    let sanitizer = match &machine.sanitizer {
        None => Err("no compute-sanitizer".to_owned()),
        Some(_) if session.arguments.quick && !session.selection.is_of_names() => {
            Err("not with --quick".to_owned())
        }
        Some(sanitizer) => refusal(session, sanitizer).map_or(Ok(sanitizer), Err),
    };
    let sanitizer = match sanitizer {
        Ok(sanitizer) => sanitizer,
        Err(reason) => return session.skip(group, &reason),
    };
    let known = tests_of(session.archive, SANITIZED);
    for (tool, tests) in SANITIZER {
        let name = format!("{group}-{tool}");
        // A name that matches nothing would be no failure of the program.
        let unknown = tests.iter().find(|test| !known.iter().any(|known| known == *test));
        if let Some(test) = unknown.filter(|_| !known.is_empty())
            && session.selection.wants(&name, group)
        {
            session.lose(&name, &format!("there is no test {test}"));
            continue;
        }
        let mut command = words(sanitizer, ["--tool", tool, "--error-exitcode", "9"]);
        command.push(session.program(SANITIZED).into());
        command.extend(words("--ignored", ["--exact", "--test-threads=1"]));
        command.extend(tests.iter().map(OsString::from));
        session.phase(Phase { environment: FEW_SHAPES, ..Phase::new(&name, 600, command) });
    }
}

/// Why compute-sanitizer cannot watch a program here, if so: a container may not allow it, and it knows certain devices only. The
/// program has just run without it.
fn refusal(session: &Session<'_>, sanitizer: &Path) -> Option<String> {
    let mut command = words(sanitizer, ["--tool", "memcheck"]);
    command.extend([session.program("burn-fp8-gpu").into(), OsString::from("device")]);
    let log = "sanitizer-probe.log";
    let ended = session.run_into(log, Duration::from_secs(180), &command, &[]);
    let text = session.read_log(log);
    let reason = refused(&text);
    if ended.as_ref().is_ok_and(|ended| ended.is_ok()) && reason.is_none() {
        return None;
    }
    let reason = match (reason, ended) {
        (Some(line), _) => line.to_owned(),
        (None, Ok(ended)) => {
            text.trim().lines().next_back().map_or_else(|| ended.to_string(), str::to_owned)
        }
        (None, Err(error)) => error.to_string(),
    };
    Some(format!("compute-sanitizer cannot watch a program here: {reason}"))
}

/// The line in which compute-sanitizer says that it cannot work.
fn refused(text: &str) -> Option<&str> {
    let marks = ["internal sanitizer error", "unable to", "not supported", "no attachable process"];
    text.lines().find(|line| {
        let line = line.to_lowercase();
        marks.iter().any(|mark| line.contains(mark))
    })
}

/// Errors of products, beside torch's.
fn accuracy(session: &mut Session<'_>, machine: &Machine) {
    let (products, judge) = ("accuracy-products", "accuracy");
    let Some(torch) = &machine.torch else {
        if session.selection.wants(products, judge) || session.selection.wants(judge, judge) {
            session.skip(judge, "no torch");
        }
        return;
    };
    let mut command = words(session.program("burn-fp8-gpu"), ["accuracy", "accuracy"]);
    command.extend(small(session));
    if session.phase(Phase::new(products, 120, command)) == Outcome::Failed {
        if session.selection.wants(judge, judge) {
            session.skip(judge, &format!("{products} failed"));
        }
        return;
    }
    let command = script(session, torch, "gpu_accuracy.py", ["accuracy", "accuracy.json"]);
    session.phase(Phase::new(judge, 120, command));
}

fn examples(session: &mut Session<'_>) {
    let group = "examples";
    if session.selection.wants("digits", group) {
        // Its products run on tensor cores or end it. Layers too narrow for FP8 are left out by the filter, not emulated.
        let path = session.results.folder().join("digits.json");
        if let Err(error) = fs::write(&path, "{\"execution\": \"native\"}\n") {
            eprintln!("note: cannot write {}: {error}", path.display());
        }
    }
    let epochs = if session.arguments.quick { "2" } else { "10" };
    let arguments =
        ["--backend", "cuda", "--config", "digits.json", "--epochs", epochs, "--out", "digits"];
    let command = words(session.program("digits"), arguments);
    session.phase(Phase::new("digits", 180, command));

    // It prints what ran each step. Not with `--execution native`: cuBLASLt may lack GELU with an FP8 output, which ends it there. The
    // other five of its eight products have none.
    let command =
        words(session.program("fused_matmul"), ["--backend", "cuda", "--execution", "auto"]);
    session.phase(Phase::new("fused_matmul", 120, command).showing(5, "native: algorithm "));

    // A language model through Burn's Learner with its checkpoints; and one block of it in five precisions, three of them in FP8, each
    // with three products of four layers.
    if session.selection.wants("char-lm", group) {
        // A run that has ended is not trained again.
        let _ = fs::remove_dir_all(session.results.folder().join("char-lm"));
    }
    let train = [
        "train",
        "--backend",
        "cuda",
        "--size",
        "smoke",
        "--epochs",
        "2",
        "--precision",
        "fp8-current",
        "--out",
        "char-lm",
    ];
    let command = words(session.program("char-lm"), train);
    session.phase(Phase::new("char-lm", 240, command));
    let block = ["block", "--backend", "cuda", "--out", "char-lm-block"];
    let command = words(session.program("char-lm"), block);
    session.phase(
        Phase::new("char-lm-block", 120, command)
            .showing(3, ": 12 of 12 FP8 products on tensor cores"),
    );
}

fn benchmarks(session: &mut Session<'_>, machine: &Machine) {
    let mut compare = vec![];
    if let Some(torch) = &machine.torch {
        let mut command = script(session, torch, "gpu_peers.py", ["torch.json"]);
        command.extend(small(session));
        session.phase(Phase::new("peers", 300, command));
        let measured = session.results.folder().join("torch.json");
        if fs::metadata(measured).is_ok_and(|file| file.len() > 0) {
            compare = words("--torch", ["torch.json"]);
        }
    } else if session.selection.wants("peers", "peers") {
        session.skip("peers", "no torch");
    }
    for group in ["gpu-gemm", "gpu-kernels", "gpu-linear", "gpu-host"] {
        let rows = format!("rows-{group}.json");
        let mut command = words(session.program("burn-fp8-gpu"), ["bench", group, "--json", &rows]);
        command.extend(compare.iter().cloned());
        command.extend(small(session));
        session.phase(Phase::new(group, 180, command));
    }
    // Leaves time to write what was measured.
    let left = session.left(Half::Benchmarks).map(|left| left.as_secs().saturating_sub(30));
    let budget = match left {
        _ if session.arguments.quick => 60,
        Some(left) => left.min(480),
        None => 480,
    };
    let group = "gpu-break-even";
    let mut command = words(
        session.program("burn-fp8-gpu"),
        [
            "bench",
            group,
            "--json",
            "rows-gpu-break-even.json",
            "--out",
            ".",
            "--seconds",
            &budget.to_string(),
        ],
    );
    command.extend(small(session));
    session.phase(Phase::new(group, budget + 60, command));
}

fn small(session: &Session<'_>) -> Option<OsString> {
    session.arguments.quick.then(|| OsString::from("--quick"))
}

/// A script of the archive, run by torch's Python.
fn script<const N: usize>(
    session: &Session<'_>,
    torch: &Torch,
    name: &str,
    rest: [&str; N],
) -> Vec<OsString> {
    let mut command = vec![torch.python.clone().into()];
    command.extend(words(session.archive.join("peers").join(name), rest));
    command
}

#[cfg(test)]
mod tests {
    use super::refused;

    #[test]
    fn a_sanitizer_that_cannot_work_says_so() {
        let line = "========= Error: Target application terminated before first instrumented API call, unable to attach";
        assert_eq!(refused(&format!("something\n{line}\nmore")), Some(line));
        assert_eq!(refused("========= ERROR SUMMARY: 0 errors\n"), None);
    }
}
