//! Hosts that have CUDA from pip alone.

use std::fs;
use std::process::Output;

use crate::host::{Host, error, missing, printed, run_to_end};

/// What NVIDIA's wheels of CUDA 12 have, each in a folder of its own.
const OF_12: [(&str, &[&str]); 5] = [
    (
        "cuda_runtime",
        &[
            "include/cuda_runtime.h",
            "include/cuda_fp16.h",
            "include/cuda_bf16.h",
            "include/cuda_fp8.h",
            "include/mma.h",
            "include/cooperative_groups.h",
        ],
    ),
    ("cuda_nvcc", &["include/crt/host_defines.h"]),
    ("cuda_cccl", &["include/cuda/barrier", "include/nv/target"]),
    ("cuda_nvrtc", &["lib/libnvrtc.so.12", "lib/libnvrtc-builtins.so.12.4"]),
    ("cublas", &["lib/libcublasLt.so.12", "include/cublasLt.h"]),
];

/// A host with a driver for CUDA 12.4 and these wheels.
fn host_of_12(without: &str) -> Host {
    let host = Host::bare();
    host.file("lib/libcuda.so.1", "");
    host.driver("NVIDIA H100, 9.0, 550.1", "12.4");
    for (wheel, files) in OF_12.into_iter().filter(|(wheel, _)| *wheel != without) {
        for file in files {
            host.file(&format!("site/nvidia/{wheel}/{file}"), file);
        }
    }
    if without != "cuda_runtime" {
        let version = "site/nvidia/cuda_runtime/include/cuda_runtime_api.h";
        host.file(version, "#define CUDART_VERSION  12040\n");
    }
    host
}

fn run(host: &Host, arguments: &[&str]) -> Output {
    run_to_end(host.command().arg("--python").arg(host.python()).args(arguments))
}

#[test]
fn headers_of_three_wheels_are_gathered_in_one_folder() {
    let host = host_of_12("");
    host.program(
        "archive/bin/burn-fp8-gpu",
        r#"[ "$1" != device ] || cat "$CUDA_PATH"/include/cuda_fp8.h "$CUDA_PATH"/include/crt/host_defines.h "$CUDA_PATH"/include/cuda/barrier"#,
    );
    let output = run(&host, &["--out", "results", "--phases", "peers"]);
    assert_eq!(output.status.code(), Some(0), "{}{}", printed(&output), error(&output));
    let read = "include/cuda_fp8.hinclude/crt/host_defines.hinclude/cuda/barrier";
    assert!(printed(&output).contains(read), "{}", printed(&output));
    let facts = fs::read_to_string(host.path("results/host.tsv")).unwrap();
    let folder = |wheel: &str| host.path("site/nvidia").join(wheel).display().to_string();
    let folders = ["cuda_cccl", "cuda_nvcc", "cuda_runtime"].map(folder).join(" + ");
    assert!(facts.contains(&format!("CUDA headers\t{folders}, CUDA 12.4\n")), "{facts}");
}

#[test]
fn the_wheel_that_is_missing_is_named() {
    for (without, header, wheel) in [
        ("cuda_runtime", "cuda_runtime.h", "'nvidia-cuda-runtime-cu12==12.4.*'"),
        ("cuda_nvcc", "lacks crt/host_defines.h;", "pip install 'nvidia-cuda-nvcc-cu12==12.4.*'"),
        ("cuda_cccl", "lacks cuda/barrier;", "pip install 'nvidia-cuda-cccl-cu12==12.4.*'"),
        ("cuda_nvrtc", "libnvrtc.so.{12}", "pip install 'nvidia-cuda-nvrtc-cu12==12.4.*'"),
        ("cublas", "libcublasLt.so.{12}", "pip install nvidia-cublas-cu12"),
    ] {
        let missing = missing(&run(&host_of_12(without), &["--check-only"]));
        assert!(missing.contains(header) && missing.contains(wheel), "{without}: {missing}");
        assert_eq!(missing.matches("\n  - ").count(), 1, "{without}: {missing}");
        assert!(!missing.contains("cublas/include"), "{missing}");
    }
}

/// Since CUDA 13 wheels share a folder, and what the compiler includes has wheels of its own.
#[test]
fn a_host_with_a_part_of_the_wheels_of_13_is_told_the_others() {
    let host = Host::bare();
    host.file("lib/libcuda.so.1", "");
    host.driver("NVIDIA H100, 9.0, 580.1", "13.0");
    let of_13 = |file: &str| host.file(&format!("site/nvidia/cu13/{file}"), "");
    for file in OF_12[0].1.iter().chain(&[
        "lib/libnvrtc.so.13",
        "lib/libnvrtc-builtins.so.13.0",
        "lib/libcublasLt.so.13",
    ]) {
        of_13(file);
    }
    let missing = missing(&run(&host, &["--check-only"]));
    assert!(missing.contains("cu13/include lacks crt/host_defines.h cuda/barrier;"), "{missing}");
    let wheels = "pip install 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'\n";
    assert!(missing.contains(wheels), "{missing}");
    of_13("include/crt/host_defines.h");
    of_13("include/cccl/cuda/barrier");
    assert_eq!(run(&host, &["--check-only"]).status.code(), Some(0));
}

/// The newest wheel of NVRTC is of a CUDA that many drivers do not know.
#[test]
fn the_newest_wheel_of_nvrtc_is_too_new_for_the_driver() {
    let host = host_of_12("cuda_nvrtc");
    for file in ["libnvrtc.so.12", "libnvrtc-builtins.so.12.9"] {
        host.file(&format!("site/nvidia/cuda_nvrtc/lib/{file}"), "");
    }
    let missing = missing(&run(&host, &["--check-only"]));
    assert!(missing.contains("is of CUDA 12.9, and the driver knows CUDA 12.4"), "{missing}");
    assert!(missing.contains("pip install 'nvidia-cuda-nvrtc-cu12==12.4.*'"), "{missing}");
}
