//! What is found missing.

use std::os::unix::fs::symlink;
use std::process::Output;

use crate::host::{Host, error, printed, remove, run_to_end};

fn run_seeing(host: &Host, devices: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = host.command();
    if let Some(devices) = devices {
        command.env("CUDA_VISIBLE_DEVICES", devices);
    }
    run_to_end(command.args(["--python", "/no/such/python"]).args(arguments))
}

#[test]
fn a_machine_without_a_gpu_is_told_all_that_it_lacks() {
    let missing = Host::bare().missing();
    for what in [
        "libcuda.so.1",
        "nvidia-smi",
        "libnvrtc.so.{13,12}",
        "libcublasLt.so.{13,12}",
        "CUDA headers",
        "pip install nvidia-cublas",
        "without: no folder has cuda_runtime.h ",
        "pip install nvidia-cuda-runtime nvidia-cuda-crt",
    ] {
        assert!(missing.contains(what), "{what} is not in\n{missing}");
    }
    assert_eq!(missing.matches("\n  - ").count(), 5, "{missing}");
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
fn programs_that_cannot_be_loaded_are_named() {
    let host = Host::complete();
    host.program("bin/ldd", r#"echo "$1: version 'GLIBC_2.38' not found (required by $1)""#);
    let missing = host.missing();
    assert!(missing.contains("a newer C library"), "{missing}");
    assert!(missing.contains("archive/bin/burn-fp8-cublaslt-tests: version"), "{missing}");
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
        let output = run_seeing(&host, chosen, &["--out", "results", "--phases", "peers"]);
        let text = printed(&output);
        assert!(text.contains(device), "{chosen:?}: {text}{}", error(&output));
        assert!(text.contains(&format!("PCI_BUS_ID {seen}\n")), "{chosen:?}: {text}");
    }
    for (chosen, what) in [("0", "here is: 0, GPU-aa"), ("7", "is '7'"), ("", "is ''")] {
        let output = run_seeing(&host, Some(chosen), &["--check-only"]);
        assert_eq!(output.status.code(), Some(2), "{chosen:?}");
        assert!(error(&output).contains(what), "{chosen:?}: {}", error(&output));
    }
}

/// NVRTC of one CUDA may not compile the headers of another.
#[test]
fn headers_of_another_cuda_are_warned_of() {
    let host = Host::complete();
    let header = "root/usr/local/cuda/include/cuda_runtime_api.h";
    host.file(header, "#define CUDART_VERSION  12080\n");
    let output = host.run(&["--check-only"]);
    assert_eq!(output.status.code(), Some(0));
    let text = error(&output);
    assert!(text.contains("NVRTC is of CUDA 13, the headers in "), "{text}");
    assert!(text.contains("cuda are of CUDA 12.8"), "{text}");
    host.file(header, "#define CUDART_VERSION  13000\n");
    assert!(!error(&host.run(&["--check-only"])).contains("NVRTC is of"));
}

#[test]
fn each_missing_piece_is_named_alone() {
    let cuda = "root/usr/local/cuda/include";
    for (file, what) in [
        ("lib/libcuda.so.1".into(), "libcuda.so.1"),
        ("lib/libnvrtc.so.13".into(), "libnvrtc.so"),
        ("lib/libcublasLt.so.13".into(), "libcublasLt.so"),
        (format!("{cuda}/cuda_fp8.h"), "include lacks cuda_fp8.h;"),
        (format!("{cuda}/cccl/cuda/barrier"), "include lacks cuda/barrier;"),
        ("bin/nvidia-smi".into(), "nvidia-smi"),
    ] {
        let host = Host::complete();
        remove(&host.path(&file));
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
    let host = Host::complete();
    host.driver("NVIDIA H100, 9.0, 550.1", "12.4");
    let missing = host.missing();
    assert!(missing.contains("libnvrtc.so.{12}"), "{missing}");
    assert!(missing.contains("pip install 'nvidia-cuda-nvrtc-cu12==12.4.*'"), "{missing}");
    for library in ["libnvrtc.so.12", "libcublasLt.so.12"] {
        host.file(&format!("lib/{library}"), "");
    }
    assert_eq!(host.run(&["--check-only"]).status.code(), Some(0));
}

/// A driver does not load the PTX of an NVRTC that is newer, be it by a minor version.
#[test]
fn an_nvrtc_that_is_newer_than_the_driver_is_named_or_passed_over() {
    let host = Host::complete();
    remove(&host.path("lib/libnvrtc.so.13"));
    host.file("lib/libnvrtc.so.13", "");
    host.file("lib/libnvrtc-builtins.so.13.2", "");
    let missing = host.missing();
    assert!(missing.contains("libnvrtc.so of CUDA 13.0 or older"), "{missing}");
    assert!(missing.contains("libnvrtc.so.13 is of CUDA 13.2"), "{missing}");
    assert!(missing.contains("pip install 'nvidia-cuda-nvrtc==13.0.*'"), "{missing}");

    let fitting = host.path("root/usr/local/cuda/lib64");
    host.file("root/usr/local/cuda/lib64/libnvrtc.so.13.0.88", "");
    symlink("libnvrtc.so.13.0.88", fitting.join("libnvrtc.so.13")).unwrap();
    host.program(
        "archive/bin/burn-fp8-gpu",
        r#"if [ "$1" = device ]; then echo "$LD_LIBRARY_PATH"; fi"#,
    );
    let output = host.run(&["--out", "results", "--phases", "peers"]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let facts = std::fs::read_to_string(host.path("results/host.tsv")).unwrap();
    let chosen = std::fs::canonicalize(fitting.join("libnvrtc.so.13")).unwrap();
    assert!(facts.contains(&format!("NVRTC\t{}, CUDA 13.0\n", chosen.display())), "{facts}");
}

/// Programs ask for `libnvrtc.so` before they ask for a version.
#[test]
fn programs_load_the_library_that_was_chosen() {
    let host = Host::complete();
    host.program(
        "archive/bin/burn-fp8-gpu",
        r#"if [ "$1" = device ]; then cat "${LD_LIBRARY_PATH%%:*}/libnvrtc.so" "${LD_LIBRARY_PATH%%:*}/libcublasLt.so"; fi"#,
    );
    host.file("lib/libnvrtc.so.13.0.88", "the NVRTC\n");
    host.file("lib/libcublasLt.so.13", "the cuBLASLt\n");
    let output = host.run(&["--out", "results", "--phases", "peers"]);
    assert!(printed(&output).contains("the NVRTC\nthe cuBLASLt\n"), "{}", printed(&output));
}

/// Where neither a folder of CUDA nor the search path has it.
#[test]
fn the_loader_is_asked_for_libraries() {
    let host = Host::complete();
    let moved = host.path("elsewhere/libcublasLt.so.13");
    remove(&host.path("lib/libcublasLt.so.13"));
    host.file("elsewhere/libcublasLt.so.13", "");
    host.program(
        "root/sbin/ldconfig",
        &format!("echo '\tlibcublasLt.so.13 (libc6,x86-64) => {}'", moved.display()),
    );
    assert_eq!(host.run(&["--check-only"]).status.code(), Some(0));
}

#[test]
fn a_wrong_command_line_is_explained() {
    let host = Host::complete();
    for (arguments, what) in [
        (&["--quik"][..], "unexpected argument '--quik'"),
        (&["--seconds", "ten"], "invalid value 'ten' for '--seconds <N>'"),
        (&["--validate-only", "--bench-only"], "cannot be used with"),
        (&["--phases", "nothing"], "no phase is called nothing: --list lists them; see --help"),
        (&["--phases", "tests,foo"], "no phase is called foo"),
        (&["--phases", "burn-fp8:foo"], "no phase is called burn-fp8:foo"),
    ] {
        let output = host.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error(&output).contains(what), "{}", error(&output));
    }
}
