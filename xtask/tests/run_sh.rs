//! The script that runs on a GPU host, on hosts that are made up: what it finds missing, what it runs, and how it ends.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/gpu/run.sh");

const HEADERS: [&str; 8] = [
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda_fp8.h",
    "mma.h",
    "crt/host_defines.h",
    "cooperative_groups.h",
    "cccl/cuda/barrier",
];

/// A real one would be found whatever a test makes up.
fn has_nvidia_driver() -> bool {
    Path::new("/dev/nvidiactl").exists() || Path::new("/usr/local/cuda").exists()
}

/// A host with everything, as far as the script can see, and an unpacked archive with programs that do nothing.
struct Host {
    folder: TempDir,
}

impl Host {
    fn complete() -> Self {
        let host = Self { folder: tempfile::tempdir().unwrap() };
        for library in ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"] {
            host.file(&format!("lib/{library}"), "");
        }
        for header in HEADERS {
            host.file(&format!("cuda/include/{header}"), "");
        }
        host.driver("NVIDIA H200, 9.0, 580.1", "13.0");
        fs::create_dir_all(host.path("archive")).unwrap();
        fs::copy(SCRIPT, host.path("archive/run.sh")).unwrap();
        host.file("archive/MANIFEST", "revision\tabc\n");
        host.program(
            "archive/bin/burn-fp8-tests",
            r#"if [ "$1" = --list ]; then printf 'codes::fused::a: test\ncodes::unfused::a: test\nproducts::fused::b: test\n'; exit; fi
echo "$BURN_FP8_GOLDEN $*""#,
        );
        host.program(
            "archive/bin/burn-fp8-gpu",
            r#"if [ "$1" = report ]; then echo '{}' >"$2/results.json"; else echo "$*"; fi"#,
        );
        host.program("archive/bin/digits", r#"echo "$*""#);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, script: &str) {
        self.file(name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.path(name), Permissions::from_mode(0o755)).unwrap();
    }

    /// An nvidia-smi that knows this device and this version of CUDA.
    fn driver(&self, device: &str, cuda: &str) {
        self.program(
            "bin/nvidia-smi",
            &format!(
                "if [ $# = 0 ]; then echo '| Driver Version: 580.1  CUDA Version: {cuda} |'; else echo '0, {device}'; fi"
            ),
        );
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let search = std::env::var("PATH").unwrap();
        Command::new(self.path("archive/run.sh"))
            .args(arguments)
            .args(["--python", "/no/such/python"])
            .current_dir(self.folder.path())
            .env("PATH", format!("{}:{search}", self.path("bin").display()))
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .env("CUDA_PATH", self.path("cuda"))
            .env_remove("CUDA_VISIBLE_DEVICES")
            .output()
            .unwrap()
    }

    /// What the script finds missing.
    #[track_caller]
    fn missing(&self) -> String {
        let output = self.run(&["--check-only"]);
        let text = error(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        text.split_once("Missing:").expect("a list").1.to_owned()
    }

    /// Phases with their status, as the last run left them.
    fn phases(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.path("results/phases.tsv")).unwrap();
        let columns = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            (columns.next().unwrap(), columns.next().unwrap())
        };
        text.lines().map(columns).collect()
    }
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_machine_without_a_gpu_is_told_all_that_it_lacks() {
    if has_nvidia_driver() {
        return;
    }
    let output = Command::new(SCRIPT)
        .env_remove("CUDA_PATH")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
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
    assert!(printed(&output).contains("device 0 of 0, NVIDIA H200, 9.0, 580.1"));
}

#[test]
fn each_missing_piece_is_named_alone() {
    if has_nvidia_driver() {
        return;
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
        return;
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
        "digits",
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
    assert!(error(&output).contains("1 of 3 phases failed"), "{}", error(&output));
    let phases = host.phases();
    assert!(phases.contains(&("burn-fp8:codes".into(), "failed: status 101".into())));
    assert!(phases.contains(&("burn-fp8:products".into(), "ok".into())));
    assert!(phases.iter().all(|(name, _)| !name.starts_with("gpu-")), "{phases:?}");
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
        (&["--out", "results", "--phases", "nothing"], "no phase is called nothing"),
    ] {
        let output = host.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error(&output).contains(what), "{}", error(&output));
    }
}

#[test]
fn shellcheck_finds_nothing() {
    match Command::new("shellcheck").arg(SCRIPT).output() {
        Ok(output) => assert!(output.status.success(), "{}", printed(&output)),
        Err(error) => println!("not checked: cannot start shellcheck: {error}"),
    }
}
