//! What runs, and how a run ends.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::host::{Ended, Host, TESTS, run_to_end};

#[test]
fn every_phase_runs_and_is_reported() {
    let host = Host::complete();
    let Ended { status, printed, error } = host.run(&[]);
    assert_eq!(status, Some(0), "{printed}{error}");
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
        "gpu-gemm",
        "gpu-kernels",
        "gpu-linear",
        "gpu-host",
        "gpu-break-even",
    ] {
        assert_eq!(host.status(name), "ok");
    }
    for name in ["accuracy-products", "accuracy", "peers"] {
        assert_eq!(host.status(name), "skipped: no torch");
    }
    let log = host.result("burn-fp8-codes.log");
    assert!(log.starts_with(host.path("archive/golden").to_str().unwrap()), "{log}");
    assert!(
        log.trim_end().ends_with("--test-threads=1 codes::unfused::of_joined_dimensions"),
        "{log}"
    );
    assert!(host.result("gpu-break-even.log").ends_with(" --seconds 480\n"));
    let facts = host.result("host.tsv");
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
    let summary =
        "14 passed, 0 failed, 6 skipped\n  sanitizer-memcheck: skipped: no compute-sanitizer\n";
    assert!(printed.contains(summary), "{printed}");
}

#[test]
fn torch_is_compared_with() {
    let host = Host::complete();
    let python =
        r#"case $1 in -c) echo 2.9.1;; *gpu_peers.py) echo '{}' >"$2";; *) echo "$*";; esac"#;
    host.program("venv/bin/python", python);
    let python = ["--python", "venv/bin/python"];
    let ended =
        host.run(&[&python[..], &["--phases", "accuracy,peers,gpu-gemm", "--quick"]].concat());
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert_eq!(host.result("accuracy-products.log"), "accuracy accuracy --quick\n");
    assert!(host.result("accuracy.log").ends_with("gpu_accuracy.py accuracy accuracy.json\n"));
    assert!(host.result("gpu-gemm.log").ends_with(" --quick --torch torch.json\n"));
    assert!(host.result("host.tsv").contains("\ntorch\t2.9.1\n"));
}

#[test]
fn a_phase_that_fails_stops_no_other_but_the_run_fails() {
    let host = Host::complete();
    let known = "couldn't find resource for that handle: Memory page 0 doesn't exist";
    let fails = "echo 'test codes::a ... FAILED'; exit 101";
    let script = format!("case \"$*\" in *codes*) {fails};; *) echo \"{known}\"; exit 3;; esac");
    host.tests("burn-fp8", TESTS, &script);
    let Ended { status, printed, .. } = host.run(&["--validate-only"]);
    assert_eq!(status, Some(1));
    assert!(printed.contains("    test codes::a ... FAILED"), "{printed}");
    let summary = "7 passed, 2 failed, 5 skipped\n  burn-fp8:codes: failed: status 101\n";
    assert!(printed.contains(summary), "{printed}");
    assert_eq!(host.status("burn-fp8:codes"), "failed: status 101");
    // A failure that is known upstream is reported as such.
    let status = host.status("burn-fp8:products");
    assert!(status.starts_with("failed: status 3 (upstream, CubeCL 0.10"), "{status}");
    assert!(host.phases().iter().all(|[name, _]| !name.starts_with("gpu-")));
}

/// The examples end well where they emulate: one is asked for tensor cores, of the others what they printed is counted.
#[test]
fn an_example_that_is_emulated_is_a_failure() {
    let host = Host::complete();
    let run = || host.run(&["--phases", "examples"]);
    host.fused_matmul(8);
    assert_eq!(run().status, Some(0));

    host.fused_matmul(4);
    host.digits(
        r#"[ "$config" = '{"execution": "native"}' ] || exit 0; echo 'error: native'; exit 2"#,
    );
    let Ended { status, printed, .. } = run();
    assert_eq!(status, Some(1), "{printed}");
    let expected = [
        ("digits", "failed: status 2"),
        ("fused_matmul", "failed: 4 times on tensor cores instead of 5 or more"),
        ("char-lm", "ok"),
    ];
    for (name, status) in expected {
        assert_eq!(host.status(name), status);
    }
    assert!(printed.contains("2 passed, 2 failed, 0 skipped\n"), "{printed}");
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
        host.remove(&format!("archive/bin/{program}"));
        let Ended { status, printed, .. } = host.run(&["--validate-only"]);
        assert_eq!(status, Some(1), "{program}");
        let reason = format!("skipped: there is no bin/{program}");
        assert!(printed.contains(" 1 failed, 5 skipped\n"), "{printed}");
        assert_eq!(host.status(phase), reason);
    }
    let host = Host::complete();
    host.tests("burn-fp8", "", "");
    assert_eq!(host.run(&["--phases", "burn-fp8:codes"]).status, Some(1));
    assert_eq!(host.status("burn-fp8"), "skipped: the program lists no tests");
}

/// One that watches runs the tests; one that may not is no failure.
#[test]
fn a_sanitizer_runs_or_is_skipped() {
    let host = Host::complete();
    let watching = r#"while [ "${1#-}" != "$1" ]; do case $1 in --tool) echo "tool $2"; shift 2;; --error-exitcode) shift 2;; esac; done
exec "$@""#;
    host.tests("burn-fp8", TESTS, "echo $*");
    host.program("bin/compute-sanitizer", watching);
    let run = || host.run(&["--phases", "sanitizer"]);
    assert_eq!(run().status, Some(0));
    let log = host.result("sanitizer-memcheck.log");
    assert_eq!(
        log,
        format!("tool memcheck\n--ignored --exact --show-output --test-threads=1 {TESTS}\n")
    );
    for tool in ["memcheck", "racecheck", "initcheck"] {
        assert_eq!(host.status(&format!("sanitizer-{tool}")), "ok");
    }

    // A test that was renamed would be run by nobody.
    host.tests("burn-fp8", &TESTS.replace("are_deterministic", "other"), "");
    assert_eq!(run().status, Some(1));
    let unknown = "skipped: there is no test products::unfused::are_deterministic";
    assert_eq!(host.status("sanitizer-memcheck"), unknown);

    host.tests("burn-fp8", TESTS, "");
    host.program("bin/compute-sanitizer", "echo '========= Error: Unable to attach'; exit 255");
    let Ended { status, printed, .. } = run();
    assert_eq!(status, Some(0), "{printed}");
    let skipped =
        "1 passed, 0 failed, 3 skipped\n  sanitizer-memcheck: skipped: compute-sanitizer cannot";
    assert!(printed.contains(skipped), "{printed}");
}

#[test]
fn nothing_runs_where_the_device_is_not_native() {
    let host = Host::complete();
    host.gpu(r#"[ "$1" != device ] || { echo 'fake-quantized: some reason'; exit 1; }"#);
    let Ended { status, printed, error } = host.run(&[]);
    assert_eq!(status, Some(1));
    assert!(printed.contains("some reason"));
    assert!(error.contains("does not run natively on this device; see "));
    assert_eq!(host.phases(), [["device".to_owned(), "failed: status 1".to_owned()]]);
}

#[test]
fn what_does_not_fit_in_the_time_is_left_out_and_said_so() {
    let host = Host::complete();
    assert_eq!(host.run(&["--seconds", "5", "--phases", "tests"]).status, Some(1));
    assert_eq!(host.status("burn-fp8:codes"), "skipped: no time left");

    // 14 s of 28 are too few for tests, but not for benchmarks.
    assert_eq!(host.run(&["--seconds", "28"]).status, Some(1));
    assert_eq!(host.status("burn-fp8:codes"), "skipped: no time left");
    assert_eq!(host.status("gpu-host"), "ok");
    assert_eq!(host.run(&["--seconds", "28", "--phases", "burn-fp8:codes"]).status, Some(0));
}

#[test]
fn phases_are_chosen_by_name_and_by_group_and_listed() {
    let host = Host::complete();
    let ended = host.run(&["--phases", "burn-fp8:products,gpu-host"]);
    assert_eq!(ended.status, Some(0), "{ended:?}");
    let names = host.phases().into_iter().map(|[name, _]| name);
    assert_eq!(names.collect::<Vec<_>>(), ["device", "burn-fp8:products", "gpu-host"]);

    let Ended { status, printed, .. } = Host::bare().run(&["--list"]);
    assert!(status == Some(0) && printed.contains("burn-fp8:codes (group tests)\n"), "{printed}");
}

/// What a phase has started ends with it, and the run goes on.
#[test]
fn a_phase_ends_when_its_time_is_up() {
    let host = Host::complete();
    host.digits("(sleep 18; echo on >alive) & wait");
    let begun = Instant::now();
    let ended = host.run(&["--seconds", "16", "--phases", "examples"]);
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_eq!(ended.status, Some(1));
    assert_eq!(host.status("digits"), "timed out");
    assert_eq!(host.status("fused_matmul"), "skipped: no time left");
    std::thread::sleep(Duration::from_secs(19).saturating_sub(begun.elapsed()));
    assert!(!host.path("results/alive").exists());
}

/// Whoever interrupts a run gets a report of what ran before.
#[test]
fn an_interrupted_run_ends_its_phase_and_reports() {
    let host = Host::complete();
    host.digits("echo here >begun; sleep 30 & wait; echo on >alive");
    let mut command = host.command();
    command.args(["--phases", "examples"]);
    let begun = Instant::now();
    let ended = std::thread::scope(|scope| {
        // The script becomes the program, whose number it writes.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "echo $$ >pid; exec \"$0\" \"$@\""]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(host.path(""));
        shell.env_clear();
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
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
    assert_eq!(ended.status, Some(1));
    assert_eq!(host.status("digits"), "interrupted");
    assert_eq!(host.status("char-lm"), "skipped: interrupted");
    assert!(host.path("results/results.json").exists());
    assert!(!host.path("results/alive").exists());
}

/// What an earlier run left would be reported as this one's; what is of none stays.
#[test]
fn results_of_an_earlier_run_are_removed() {
    let host = Host::complete();
    host.gpu("exit 0");
    let of_a_run = ["rows-gpu-gemm.json", "torch.json", "accuracy/products.bin", "results.json"];
    for file in of_a_run.into_iter().chain(["notes.txt"]) {
        host.file(&format!("results/{file}"), "old");
    }
    assert_eq!(host.run(&["--phases", "peers"]).status, Some(0));
    for file in of_a_run {
        assert!(!host.path("results").join(file).exists(), "{file}");
    }
    assert!(host.path("results/notes.txt").exists());
}
