//! The script that runs on a GPU host, on hosts that are made up: what it finds missing, what it runs, and how it ends.
#![cfg(target_os = "linux")]

mod host;

use std::fs;
use std::process::Command;

use burn_fp8_test_support::skip;
use host::{Host, SCRIPT, error, has_nvidia_driver, printed, run_to_end};

#[test]
fn a_machine_without_a_gpu_is_told_all_that_it_lacks() {
    if has_nvidia_driver() {
        return skip("this machine has an NVIDIA driver, which the made-up hosts cannot hide");
    }
    let mut command = Command::new(SCRIPT);
    command.env_remove("CUDA_PATH").env_remove("LD_LIBRARY_PATH");
    let output = run_to_end(&mut command).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = error(&output);
    for what in [
        "libcuda.so.1",
        "nvidia-smi",
        "libnvrtc.so.{13,12}",
        "libcublasLt.so.{13,12}",
        "CUDA headers",
        "pip install nvidia-cublas",
    ] {
        assert!(text.contains(what), "{what} is not in\n{text}");
    }
}

#[test]
fn a_complete_host_passes_the_check() {
    let output = Host::complete().run(&["--check-only"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    assert!(
        printed(&output).contains("Device 0: NVIDIA H200, compute capability 9.0, driver 580.1\n")
    );
}

#[test]
fn the_device_is_the_first_with_fp8_or_the_one_that_was_chosen() {
    let host = Host::complete();
    host.devices(
        "0, GPU-aa, NVIDIA A100, 8.0, 580.1\n1, GPU-bb, NVIDIA L40, 8.9, 580.1\n2, GPU-cc, NVIDIA H100, 9.0, 580.1\n",
    );
    host.program(
        "archive/bin/burn-fp8-gpu",
        r#"if [ "$1" = device ]; then echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; fi"#,
    );
    for (chosen, device, seen) in [
        (None, "Device 1: NVIDIA L40", "GPU-bb"),
        (Some("2"), "Device 2: NVIDIA H100", "2"),
        (Some("2,1"), "Device 2: NVIDIA H100", "2,1"),
        (Some("GPU-c"), "Device 2: NVIDIA H100", "GPU-c"),
    ] {
        let output = host.run_seeing(chosen, &["--out", "results", "--phases", "peers"]);
        let text = printed(&output);
        assert!(text.contains(device), "{chosen:?}: {text}{}", error(&output));
        assert!(text.contains(&format!("PCI_BUS_ID {seen}\n")), "{chosen:?}: {text}");
    }
    for (chosen, what) in [("0", "here is: 0, GPU-aa"), ("7", "is '7'"), ("", "is ''")] {
        let output = host.run_seeing(Some(chosen), &["--check-only"]);
        assert_eq!(output.status.code(), Some(2), "{chosen:?}");
        assert!(error(&output).contains(what), "{chosen:?}: {}", error(&output));
    }
}

/// NVRTC of one CUDA may not compile the headers of another.
#[test]
fn headers_of_another_cuda_are_warned_of() {
    let host = Host::complete();
    host.file("cuda/include/cuda_runtime_api.h", "#define CUDART_VERSION  12080\n");
    let output = host.run(&["--check-only"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(error(&output).contains("NVRTC is of CUDA 13"), "{}", error(&output));
    host.file("cuda/include/cuda_runtime_api.h", "#define CUDART_VERSION  13000\n");
    assert!(!error(&host.run(&["--check-only"])).contains("NVRTC is of"));
}

#[test]
fn each_missing_piece_is_named_alone() {
    if has_nvidia_driver() {
        return skip("this machine has an NVIDIA driver, which the made-up hosts cannot hide");
    }
    for (file, what) in [
        ("lib/libcuda.so.1", "libcuda.so.1"),
        ("lib/libnvrtc.so.13", "libnvrtc.so"),
        ("lib/libcublasLt.so.13", "libcublasLt.so"),
        ("cuda/include/cuda_fp8.h", "include lacks cuda_fp8.h;"),
        ("cuda/include/cccl/cuda/barrier", "include lacks cuda/barrier;"),
        ("bin/nvidia-smi", "nvidia-smi"),
    ] {
        let host = Host::complete();
        fs::remove_file(host.path(file)).unwrap();
        let missing = host.missing();
        assert!(missing.contains(what), "{what} is not in {missing}");
        assert_eq!(missing.matches("\n  - ").count(), 1, "{missing}");
    }
}

#[test]
fn a_gpu_without_fp8_and_an_old_driver_are_named() {
    let host = Host::complete();
    host.driver("NVIDIA A100, 8.0, 580.1", "13.0");
    let missing = host.missing();
    assert!(missing.contains("compute capability 8.9") && missing.contains("A100"), "{missing}");

    let host = Host::complete();
    host.driver("NVIDIA H100, 9.0, 470.1", "11.4");
    assert!(host.missing().contains("knows CUDA 11.4 at most"));

    let host = Host::complete();
    host.program("bin/nvidia-smi", "echo 'No devices were found'; exit 6");
    assert!(host.missing().contains("nvidia-smi says: No devices were found"));
}

/// Libraries of CUDA 13 are no use to a driver that knows 12.
#[test]
fn libraries_fit_the_driver() {
    if has_nvidia_driver() {
        return skip("this machine has an NVIDIA driver, which the made-up hosts cannot hide");
    }
    let host = Host::complete();
    host.driver("NVIDIA H100, 9.0, 550.1", "12.4");
    assert!(host.missing().contains("libnvrtc.so.{12}"));
    for library in ["libnvrtc.so.12", "libcublasLt.so.12"] {
        host.file(&format!("lib/{library}"), "");
    }
    assert_eq!(host.run(&["--check-only"]).status.code(), Some(0));
}

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
        printed(&output).contains("14 passed, 0 failed, 3 skipped: skipped sanitizer (no compute-"),
        "{}",
        printed(&output)
    );
    let archive = host.path("results/results.tar.gz");
    let listed = printed(&run_to_end(Command::new("tar").arg("tzf").arg(archive)).unwrap());
    assert!(listed.contains("./results.json\n") && listed.contains("./host.tsv\n"), "{listed}");
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
    let summary = "8 passed, 1 failed, 2 skipped: failed burn-fp8:codes (failed: status 101); ";
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
        ("digits", "digits"),
        ("fused_matmul", "fused_matmul"),
    ] {
        let host = Host::complete();
        fs::remove_file(host.path("archive/bin").join(program)).unwrap();
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
    fs::remove_file(host.path("archive/bin/burn-fp8-tests")).unwrap();
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
    assert_eq!(host.phases(), [("device".into(), "failed".into())]);
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

#[test]
fn a_wrong_command_line_is_explained() {
    let host = Host::complete();
    for (arguments, what) in [
        (&["--quik"][..], "unknown option --quik"),
        (&["--seconds", "ten"], "--seconds takes a whole number, not ten"),
        (&["--validate-only", "--bench-only"], "exclude each other"),
        (&["--phases", "nothing"], "no phase is called nothing"),
        (&["--phases", "tests,foo"], "no phase is called foo"),
        (&["--phases", "burn-fp8:foo"], "no phase is called burn-fp8:foo"),
    ] {
        let output = host.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error(&output).contains(what), "{}", error(&output));
    }
}

#[test]
fn shellcheck_finds_nothing() {
    match run_to_end(Command::new("shellcheck").arg(SCRIPT)) {
        Ok(output) => assert!(output.status.success(), "{}", printed(&output)),
        Err(error) => skip(format_args!("cannot start shellcheck: {error}")),
    }
}
