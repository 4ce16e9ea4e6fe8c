//! The script that starts the program, and what is found missing.

use std::fs;
use std::process::Command;

use burn_fp8_test_support::skip;

use crate::host::{Ended, Host, SCRIPT, TOOLKIT, run_to_end};

#[test]
fn another_system_is_named() {
    let host = Host::complete();
    host.program("bin/uname", r#"case $1 in -s) echo Darwin;; -m) echo arm64;; esac"#);
    let missing = host.missing();
    assert!(missing.contains("Linux on x86-64\n      this is Darwin-arm64"), "{missing}");
}

/// As the loader says it where the C library is too old.
#[test]
fn a_program_that_does_not_start_is_explained() {
    let host = Host::complete();
    let old = "echo \"/lib/libc.so.6: version \\`GLIBC_2.34' not found\" >&2; exit 1";
    host.program("archive/bin/burn-fp8-gpu-run", old);
    let missing = host.missing();
    assert!(missing.contains("version `GLIBC_2.34' not found; if that names GLIBC"), "{missing}");
}

#[test]
fn a_folder_without_programs_is_explained() {
    let host = Host::complete();
    fs::remove_dir_all(host.path("archive/bin")).unwrap();
    let Ended { status, error, .. } = host.run(&["--check-only"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("bin has no programs: build them with `cargo xtask gpu`"), "{error}");
}

#[test]
fn arguments_and_status_are_handed_on() {
    let host = Host::complete();
    let script = r#"[ "$1" != --version ] || exit 0; printf '<%s>' "$@"; exit 7"#;
    host.program("archive/bin/burn-fp8-gpu-run", script);
    let Ended { status, printed, .. } = host.run(&["--out", "a b", ""]);
    assert!(printed.ends_with("<--out><a b><>") && status == Some(7), "{printed}");
}

#[test]
fn the_script_is_short_and_shellcheck_finds_nothing() {
    assert!(fs::read_to_string(SCRIPT).unwrap().lines().count() <= 60);
    let Ok(shellcheck) = which::which("shellcheck") else {
        return skip("there is no shellcheck");
    };
    let ended = run_to_end(Command::new(shellcheck).arg(SCRIPT));
    assert_eq!(ended.status, Some(0), "{ended:?}");
}

#[test]
fn a_machine_without_a_gpu_is_told_all_that_it_lacks() {
    let missing = Host::bare().missing();
    for what in [
        "nvidia-smi",
        "docker: --gpus all",
        "NVRTC, cuBLASLt and the CUDA headers in one folder\n",
        "there is none; install the CUDA toolkit, or fetch",
        "set CUDA_PATH",
    ] {
        assert!(missing.contains(what), "{what} is not in\n{missing}");
    }
    assert_eq!(missing.matches("\n  - ").count(), 2, "{missing}");
}

#[test]
fn a_complete_host_passes_the_check() {
    let Ended { status, printed, error } = Host::complete().run(&["--check-only"]);
    assert_eq!(status, Some(0), "{error}");
    assert!(printed.contains("Device 0: NVIDIA H200, compute capability 9.0, driver 580.1\n"));
}

#[test]
fn the_device_is_the_first_with_fp8_or_the_one_that_was_chosen() {
    let host = Host::complete();
    host.devices(
        "0, GPU-aa, NVIDIA A100, 8.0, 580.1\n1, GPU-bb, NVIDIA L40, 8.9, 580.1\n2, GPU-cc, NVIDIA H100, 9.0, 580.1\n",
        "13.0",
    );
    host.gpu(r#"if [ "$1" = device ]; then echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; fi"#);
    let run = |devices: Option<&str>, arguments: &[&str]| {
        let devices = devices.map(|devices| ("CUDA_VISIBLE_DEVICES", devices));
        run_to_end(host.command().envs(devices).args(arguments))
    };
    for (chosen, device, seen) in [
        (None, "Device 1: NVIDIA L40", "GPU-bb"),
        (Some("2"), "Device 2: NVIDIA H100", "2"),
        (Some("2,1"), "Device 2: NVIDIA H100", "2,1"),
        (Some("GPU-c"), "Device 2: NVIDIA H100", "GPU-c"),
        // What a part of a device is of is not known.
        (Some("MIG-11"), "--- device", "MIG-11"),
    ] {
        let Ended { printed, error, .. } = run(chosen, &["--phases", "peers"]);
        assert!(printed.contains(device), "{chosen:?}: {printed}{error}");
        assert!(printed.contains(&format!("PCI_BUS_ID {seen}\n")), "{chosen:?}: {printed}");
    }
    for (chosen, what) in
        [("0", "here is: 0: NVIDIA A100, compute capability 8.0"), ("7", "is '7'"), ("", "is ''")]
    {
        let Ended { status, error, .. } = run(Some(chosen), &["--check-only"]);
        assert!(status == Some(2) && error.contains(what), "{chosen:?}: {error}");
    }
}

#[test]
fn a_gpu_without_fp8_and_an_old_driver_are_named() {
    let host = Host::complete();
    host.driver("NVIDIA A100, 8.0, 580.1", "13.0");
    let missing = host.missing();
    assert!(missing.contains("compute capability 8.9") && missing.contains("A100"), "{missing}");
    host.driver("NVIDIA H100, 9.0, 470.1", "11.4");
    assert!(host.missing().contains("knows CUDA 11.4 at most"));
    host.program("bin/nvidia-smi", "echo 'No devices were found'; exit 6");
    assert!(host.missing().contains("nvidia-smi says: No devices were found"));
}

#[test]
fn each_piece_of_cuda_that_is_missing_is_named() {
    for (file, what) in TOOLKIT.iter().zip([
        "cuda lacks include/cuda_runtime_api.h;",
        "cuda lacks cuda_fp8.h;",
        "cuda lacks crt/host_defines.h;",
        "cuda lacks cuda/barrier;",
        "cuda lacks libnvrtc.so.13;",
        "cuda lacks libcublasLt.so.13;",
    ]) {
        let host = Host::complete();
        let folder = host.path("root/usr/local/cuda");
        host.remove(&format!("root/usr/local/cuda/{file}"));
        let ended = run_to_end(host.command().arg("--check-only").env("CUDA_PATH", folder));
        assert_eq!(ended.status, Some(2), "{ended:?}");
        assert!(ended.error.contains(what), "{what} is not in {}", ended.error);
        assert_eq!(ended.error.matches("\n  - ").count(), 1, "{ended:?}");
    }
}

/// A driver does not load what an NVRTC makes that is newer, be it by a minor version.
#[test]
fn a_toolkit_newer_than_the_driver_is_named_or_passed_over() {
    let host = Host::complete();
    host.toolkit("root/usr/local/cuda", "13020");
    let missing = host.missing();
    assert!(missing.contains("in one folder, of CUDA 13.0 or older"), "{missing}");
    assert!(missing.contains("cuda is of CUDA 13.2, and the driver knows CUDA 13.0"), "{missing}");
    host.toolkit("root/usr/local/cuda-12.9", "12090");
    assert!(host.missing().contains("cuda-12.9 lacks libnvrtc.so.12 libcublasLt.so.12;"));

    host.toolkit("root/usr/local/cuda-13.0", "13000");
    host.gpu(r#"[ "$1" != device ] || cat "${LD_LIBRARY_PATH%%:*}"/libnvrtc.so "${LD_LIBRARY_PATH%%:*}"/libcublasLt.so "$CUDA_PATH"/include/cuda_fp8.h"#);
    let Ended { status, printed, error } = host.run(&["--phases", "peers"]);
    assert_eq!(status, Some(0), "{error}");
    // Programs ask for `libnvrtc.so` before they ask for a version.
    let loaded = ["lib64/libnvrtc.so.13", "lib64/libcublasLt.so.13", "include/cuda_fp8.h"]
        .map(|file| format!("root/usr/local/cuda-13.0/{file}\n"));
    assert!(printed.contains(&loaded.concat()), "{printed}");
    let facts = host.result("host.tsv");
    let chosen = host.path("root/usr/local/cuda-13.0");
    assert!(facts.contains(&format!("\nCUDA\t{}, CUDA 13.0\n", chosen.display())), "{facts}");
}

/// Wheels of CUDA 13 and later share a folder.
#[test]
fn cuda_may_come_from_pip() {
    let host = Host::bare();
    host.driver("NVIDIA H100, 9.0, 580.1", "13.0");
    host.toolkit("site/nvidia/cu13", "13000");
    let site = host.path("site/nvidia");
    let python = format!("case $2 in *find_spec*) echo '{}';; *) exit 1;; esac", site.display());
    host.program("venv/bin/python", &python);
    let ended = run_to_end(host.command().args(["--check-only", "--python", "venv/bin/python"]));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    assert!(ended.error.contains("venv/bin/python has no usable torch: failed: status 1"));
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
        let Ended { status, error, .. } = host.run(arguments);
        assert!(status == Some(2) && error.contains(what), "{arguments:?}: {error}");
    }
}
