//! What runs, and how a run ends.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::host::{Host, error, printed, remove, run_to_end};

#[test]
fn every_phase_runs_and_is_reported() {
    let host = Host::complete();
    let output = host.run(&["--out", "results"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", printed(&output), error(&output));
    let phases = host.phases();
    let status = |name: &str| {
        let found = phases.iter().find(|(phase, _)| phase == name);
        found.unwrap_or_else(|| panic!("{name} is not in {phases:?}")).1.clone()
    };
    for name in [
        "device",
        "burn-fp8:codes",
        "burn-fp8:products",
        "burn-fp8-cublaslt",
        "burn-fp8-cublaslt:epilogues",
        "burn-fp8-kernels:quantize",
        "digits",
        "fused_matmul",
        "char-lm",
        "char-lm-block",
        "gpu-gemm",
        "gpu-kernels",
        "gpu-linear",
        "gpu-host",
        "gpu-break-even",
    ] {
        assert_eq!(status(name), "ok");
    }
    for name in ["accuracy", "peers"] {
        assert_eq!(status(name), "skipped: no torch");
    }
    let log = fs::read_to_string(host.path("results/burn-fp8-codes.log")).unwrap();
    let golden = host.path("archive/golden");
    assert!(log.starts_with(golden.to_str().unwrap()), "{log}");
    assert!(log.trim_end().ends_with("codes::fused::a codes::unfused::a"), "{log}");
    let facts = fs::read_to_string(host.path("results/host.tsv")).unwrap();
    for fact in [
        "device\tNVIDIA H200\n",
        "compute capability\t9.0\n",
        "driver\t580.1\n",
        "CUDA of the driver\t13.0\n",
        "revision\tabc\n",
    ] {
        assert!(facts.contains(fact), "{fact:?} is not in\n{facts}");
    }
    assert!(host.path("results/results.json").exists());
    assert!(
        printed(&output).contains("15 passed, 0 failed, 3 skipped: skipped sanitizer (no compute-"),
        "{}",
        printed(&output)
    );
    let archive = host.path("results/results.tar.gz");
    let listed = printed(&run_to_end(Command::new("tar").arg("tzf").arg(archive)));
    assert!(listed.contains("results.json\n") && listed.contains("host.tsv\n"), "{listed}");
}

#[test]
fn a_phase_that_fails_stops_no_other_but_the_run_fails() {
    let host = Host::complete();
    host.program(
        "archive/bin/burn-fp8-tests",
        r#"if [ "$1" = --list ]; then printf 'codes::a: test\nproducts::b: test\n'; exit; fi
case "$*" in *codes*) echo 'test codes::a ... FAILED'; exit 101;; esac"#,
    );
    let output = host.run(&["--out", "results", "--validate-only"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("    test codes::a ... FAILED"), "{}", printed(&output));
    let summary = "9 passed, 1 failed, 2 skipped: failed burn-fp8:codes (failed: status 101); ";
    assert!(printed(&output).contains(summary), "{}", printed(&output));
    let phases = host.phases();
    assert!(phases.contains(&("burn-fp8:codes".into(), "failed: status 101".into())));
    assert!(phases.contains(&("burn-fp8:products".into(), "ok".into())));
    assert!(phases.iter().all(|(name, _)| !name.starts_with("gpu-")), "{phases:?}");
}

/// The examples end well where they emulate: one is asked for tensor cores, of the others what they printed is counted.
#[test]
fn an_example_that_is_emulated_is_a_failure() {
    let host = Host::complete();
    let run = || host.run(&["--out", "results", "--phases", "examples"]);
    host.fused_matmul(8);
    assert_eq!(run().status.code(), Some(0));

    host.fused_matmul(4);
    host.char_lm(11);
    host.digits(
        r#"[ "$config" = '{"execution": "native"}' ] || exit 0; echo 'error: native'; exit 2"#,
    );
    let output = run();
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let expected = [
        ("digits", "failed: status 2"),
        ("fused_matmul", "failed: 4 times on tensor cores instead of 5 or more"),
        ("char-lm", "ok"),
        ("char-lm-block", "failed: 2 times on tensor cores instead of 3 or more"),
    ];
    assert_eq!(host.phases()[1..], expected.map(|(name, status)| (name.into(), status.into())));
    assert!(printed(&output).contains("2 passed, 3 failed, 0 skipped: "), "{}", printed(&output));
}

#[test]
fn a_program_that_is_missing_is_a_failure() {
    for (program, phase) in [
        ("burn-fp8-tests", "burn-fp8"),
        ("burn-fp8-cublaslt-tests", "burn-fp8-cublaslt"),
        ("burn-fp8-kernels-tests", "burn-fp8-kernels"),
        ("digits", "digits"),
        ("fused_matmul", "fused_matmul"),
    ] {
        let host = Host::complete();
        remove(&host.path("archive/bin").join(program));
        let output = host.run(&["--out", "results"]);
        assert_eq!(output.status.code(), Some(1), "{program}");
        let reason = format!("there is no bin/{program}");
        let text = printed(&output);
        assert!(
            text.contains(&format!(" 1 failed, 3 skipped: failed {phase} ({reason}); ")),
            "{text}"
        );
        assert!(host.phases().contains(&(phase.into(), format!("skipped: {reason}"))));
    }
    let host = Host::complete();
    remove(&host.path("archive/bin/burn-fp8-tests"));
    let output = host.run(&["--out", "results", "--phases", "burn-fp8:codes"]);
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
}

/// One that watches runs the tests; one that may not is no failure.
#[test]
fn a_sanitizer_runs_or_is_skipped() {
    let host = Host::complete();
    let watching = r#"while [ "${1#-}" != "$1" ]; do case $1 in --tool) echo "tool $2"; shift 2;; --error-exitcode) shift 2;; esac; done
exec "$@""#;
    let tests = r#"if [ "$1" = --list ]; then printf 'codes::unfused::of_joined_dimensions: test\nproducts::unfused::are_deterministic: test\n'; fi"#;
    host.program("archive/bin/burn-fp8-tests", tests);
    host.program("bin/compute-sanitizer", watching);
    let run = || host.run(&["--out", "results", "--phases", "sanitizer"]);
    let output = run();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let names: Vec<_> = host.phases().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[1..], ["sanitizer-memcheck", "sanitizer-racecheck", "sanitizer-initcheck"]);

    // A test that was renamed would be run by nobody.
    host.program("archive/bin/burn-fp8-tests", &tests.replace("are_deterministic", "other"));
    assert!(printed(&run()).contains("there is no test products::unfused::are_deterministic"));

    host.program("bin/compute-sanitizer", "echo '========= Error: Unable to attach'; exit 255");
    let output = run();
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
    let skipped = "1 passed, 0 failed, 1 skipped: skipped sanitizer (compute-sanitizer cannot";
    assert!(printed(&output).contains(skipped), "{}", printed(&output));
}

#[test]
fn nothing_runs_where_the_device_is_not_native() {
    let host = Host::complete();
    host.program(
        "archive/bin/burn-fp8-gpu",
        r#"if [ "$1" = device ]; then echo 'fake-quantized: some reason'; exit 1; fi"#,
    );
    let output = host.run(&["--out", "results"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("some reason"));
    assert_eq!(host.phases(), [("device".into(), "failed: status 1".into())]);
}

#[test]
fn what_does_not_fit_in_the_time_is_left_out_and_said_so() {
    let host = Host::complete();
    let output = host.run(&["--out", "results", "--seconds", "5", "--phases", "tests"]);
    assert_eq!(output.status.code(), Some(1));
    let phases = host.phases();
    assert!(phases.contains(&("burn-fp8:codes".into(), "skipped: no time left".into())));

    // 14 s of 28 are too few for tests, but not for benchmarks.
    let output = host.run(&["--out", "results", "--seconds", "28"]);
    assert_eq!(output.status.code(), Some(1));
    let phases = host.phases();
    assert!(phases.contains(&("burn-fp8:codes".into(), "skipped: no time left".into())));
    assert!(phases.contains(&("gpu-host".into(), "ok".into())));
}

#[test]
fn phases_are_chosen_by_name_and_by_group() {
    let host = Host::complete();
    let output = host.run(&["--out", "results", "--phases", "burn-fp8:products,gpu-host"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let names: Vec<_> = host.phases().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["device", "burn-fp8:products", "gpu-host"]);

    let output = host.run(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(printed(&output).contains("burn-fp8:codes (group tests)\n"), "{}", printed(&output));
}

/// What a phase has started ends with it, and the run goes on.
#[test]
fn a_phase_ends_when_its_time_is_up() {
    let host = Host::complete();
    host.digits("sleep 60 & wait");
    let begun = Instant::now();
    let output = host.run(&["--out", "results", "--seconds", "20", "--phases", "examples"]);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let phases = host.phases();
    assert!(phases.contains(&("digits".into(), "timed out".into())), "{phases:?}");
    assert!(phases.contains(&("fused_matmul".into(), "skipped: no time left".into())));
}

/// Whoever interrupts a run gets a report of what ran before.
#[test]
fn an_interrupted_run_ends_its_phase_and_reports() {
    let host = Host::complete();
    host.digits("echo here >begun; sleep 30 & wait; echo on >alive");
    let mut command = host.command();
    command.args(["--python", "/no/such/python", "--out", "results", "--phases", "examples"]);
    let begun = Instant::now();
    let output = std::thread::scope(|scope| {
        // The script becomes the program, whose number it writes.
        let script = "echo $$ >pid; exec \"$0\" \"$@\"";
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(script).arg(command.get_program()).args(command.get_args());
        shell.current_dir(host.path(""));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let running = scope.spawn(move || run_to_end(&mut shell));
        while !host.path("results/begun").exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the phase does not begin");
            std::thread::sleep(Duration::from_millis(50));
        }
        let pid = fs::read_to_string(host.path("pid")).unwrap();
        run_to_end(Command::new("/bin/sh").args(["-c", &format!("kill -INT {}", pid.trim())]));
        running.join().unwrap()
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let phases = host.phases();
    assert!(phases.contains(&("digits".into(), "interrupted".into())), "{phases:?}");
    assert!(phases.contains(&("char-lm".into(), "skipped: interrupted".into())), "{phases:?}");
    assert!(host.path("results/results.json").exists());
    assert!(!host.path("results/alive").exists());
}

#[test]
fn a_failure_that_is_known_upstream_is_reported_as_such() {
    let host = Host::complete();
    host.program(
        "archive/bin/burn-fp8-tests",
        r#"if [ "$1" = --list ]; then printf 'codes::a: test\n'; exit; fi
echo "couldn't find resource for that handle: Memory page 0 doesn't exist"; exit 101"#,
    );
    let output = host.run(&["--out", "results", "--phases", "burn-fp8"]);
    assert_eq!(output.status.code(), Some(1));
    let (_, status) = host.phases().pop().unwrap();
    assert!(status.starts_with("failed: status 101 (upstream, CubeCL 0.10"), "{status}");
    assert!(status.contains("tracel-ai/cubecl issue 1401"), "{status}");
}

/// What an earlier run left would be reported as this one's; what is of none stays.
#[test]
fn results_of_an_earlier_run_are_removed() {
    let host = Host::complete();
    host.program("archive/bin/burn-fp8-gpu", "exit 0");
    let of_a_run = ["rows-gpu-gemm.json", "torch.json", "accuracy/products.bin", "results.json"];
    for file in of_a_run.into_iter().chain(["notes.txt"]) {
        host.file(&format!("results/{file}"), "old");
    }
    let output = host.run(&["--out", "results", "--phases", "peers"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    for file in of_a_run {
        assert!(!host.path("results").join(file).exists(), "{file}");
    }
    assert!(host.path("results/notes.txt").exists());
}
