//! Without the libraries there are typed errors that say how to get them, and no panics.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn_fp8_cublaslt::*;
use burn_fp8_test_support::{says, skip};

#[test]
fn a_missing_driver_is_named() {
    match Capability::probe(0) {
        Err(error @ Unavailable::NoDriver { .. }) => {
            says(
                &error,
                ["no NVIDIA driver", "libcuda.so", "install the driver", "LD_LIBRARY_PATH"],
            );
            // The same from everywhere, and again.
            assert_eq!(Capability::probe(0), Err(error.clone()));
            assert_eq!(require_device(0), Err(error.clone()));
            assert_eq!(CublasLt::current().err(), Some(Error::Unavailable(error)));
        }
        other => skip(format_args!("this machine has a driver: {other:?}")),
    }
}

/// Whether this is a process whose loader finds CUDA's libraries in `folder` alone, or where the system has them. If not, runs `test`
/// of this program in such a process.
fn finds_libraries_in(folder: &Path, test: &str) -> bool {
    const CHILD: &str = "BURN_FP8_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact", "--nocapture"]).env(CHILD, "1").env("LD_LIBRARY_PATH", folder);
    let output = child.output().unwrap();
    let says = String::from_utf8_lossy(&output.stdout);
    println!("{says}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && says.contains("1 passed"));
    false
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_missing_cublaslt_is_named() {
    if !finds_libraries_in(&folder("no-libraries"), "missing::a_missing_cublaslt_is_named") {
        return;
    }
    match LibraryVersion::loaded() {
        Err(error @ Unavailable::NoCublasLt { .. }) => {
            let install = "pip install nvidia-cublas";
            says(&error, ["no cuBLASLt", "libcublasLt.so", install, "LD_LIBRARY_PATH"]);
            assert_eq!(library::cublaslt().err(), Some(error));
        }
        other => {
            skip(format_args!("the system has cuBLASLt outside of LD_LIBRARY_PATH: {other:?}"))
        }
    }
}

/// Libraries of the right names that are others: copies of one that every process has open.
#[cfg(target_os = "linux")]
#[test]
fn a_library_without_the_functions_is_named() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let other = maps.split_whitespace().find(|path| path.contains("/libgcc_s.so"));
    let Some(other) = other else {
        skip("this process has not opened libgcc_s");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-libraries");
    fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcublasLt.so"] {
        fs::copy(other, folder.join(name)).unwrap();
    }
    if !finds_libraries_in(&folder, "missing::a_library_without_the_functions_is_named") {
        return;
    }
    let missing = |library, function| Unavailable::MissingFunction { library, function };
    let cublaslt = missing("libcublasLt", "cublasLtGetProperty");
    assert_eq!(LibraryVersion::loaded(), Err(cublaslt.clone()));
    assert_eq!(
        cublaslt.to_string(),
        "libcublasLt lacks the function cublasLtGetProperty: it is older than CUDA 12 or damaged; update it"
    );
    assert_eq!(require_device(0), Err(missing("libcuda", "cuInit")));
}

#[test]
fn devices_that_will_not_do_are_named() {
    let compute = ComputeCapability { major: 8, minor: 6 };
    let old = Unavailable::NoFp8 { name: "NVIDIA RTX A6000".to_owned(), compute };
    assert_eq!(
        old.to_string(),
        "NVIDIA RTX A6000 (sm_86) has no FP8 tensor cores: they need sm_89 or newer (Ada, Hopper, Blackwell)"
    );
    let none = Unavailable::NoSuchDevice { ordinal: 3, count: 1 };
    assert!(none.to_string().contains("no CUDA device 3: the driver shows 1"));
    let library = Unavailable::OldCublasLt {
        library: LibraryVersion { major: 12, minor: 3, patch: 4 },
        oldest: OLDEST_LIBRARY,
        compute: ComputeCapability::SM_90,
    };
    assert!(library.to_string().contains("cuBLASLt 12.3.4 is too old for FP8 on sm_90: 12.4.0"));
    let driver = DriverVersion { major: 12, minor: 4 };
    let newer = LibraryVersion { major: 13, minor: 1, patch: 0 };
    assert_eq!(
        Unavailable::OldDriver { library: newer, driver }.to_string(),
        "cuBLASLt 13.1.0 needs a driver for CUDA 13.0 and the driver supports 12.4; update the driver, or install cuBLASLt 12"
    );
    assert_eq!(DriverVersion::from_number(12040), DriverVersion { major: 12, minor: 4 });
}

#[test]
fn calls_that_do_not_fit_their_product_are_refused() {
    use burn_fp8_core::Fp8Format::E4M3;
    let problem = ScaledMatmul::new(32, 64, 128, E4M3, E4M3, DataType::Bf16);
    let without = Pointers { a: 0x100, b: 0x200, d: 0x300, ..Pointers::default() };
    let good = Pointers { scale_a: 4, scale_b: 8, ..without };
    assert_eq!(good.check(&problem, 0.0), Ok(()));
    let unscaled = ScaledMatmul { scales: Scales::None, ..problem };
    assert_eq!(without.check(&unscaled, 0.0), Ok(()));
    let refused =
        |problem: &ScaledMatmul, pointers: Pointers, beta: f32, argument: &str, says: &str| {
            let error = pointers.check(problem, beta).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{argument} of the FP8 product 32×64×128: ")),
                "{error}"
            );
            assert!(error.contains(says), "{error}");
        };
    refused(&problem, Pointers { a: 0, ..good }, 0.0, "a", "null");
    refused(&problem, Pointers { d: 0x310, ..good }, 0.0, "d", "0x310 is not a multiple of 256");
    refused(&problem, Pointers { scale_b: 2, ..good }, 0.0, "scale_b", "multiple of 4");
    refused(&problem, Pointers { scale_b: 0, ..good }, 0.0, "scale_b", "null");
    refused(&unscaled, Pointers { scale_b: 4, ..without }, 0.0, "scale_b", "has none");
    refused(&problem, Pointers { bias: 0x100, ..good }, 0.0, "bias", "has none");
    refused(&problem, good, 1.0, "beta", "no C");
    refused(&problem, good, f32::NAN, "beta", "no C");
    let blocks = ScaledMatmul { scales: crate::common::SCALES[2], ..problem };
    refused(&blocks, good, 0.0, "scale_a", "multiple of 16");
    let with_c = ScaledMatmul { c: Some(problem.d), ..problem };
    assert_eq!(Pointers { c: 0x300, ..good }.check(&with_c, 1.0), Ok(()));
    let c = Matrix { ld: 72, ..problem.d };
    let padded = ScaledMatmul { c: Some(c), ..problem };
    refused(&padded, Pointers { c: 0x300, ..good }, 1.0, "c", "it is D");
    let lower = ScaledMatmul { alignment: Alignment { d: 16, ..Alignment::MAX }, ..problem };
    assert_eq!(Pointers { d: 0x310, ..good }.check(&lower, 0.0), Ok(()));
}

#[test]
fn the_alignment_of_an_address_is_its_largest_power_of_two_up_to_256() {
    for (address, alignment) in
        [(0x100, 256), (0x1000, 256), (0x110, 16), (0x1F0, 16), (1, 1), (0x180, 128), (0, 256)]
    {
        assert_eq!(Alignment::of(address), alignment, "{address:#x}");
    }
}
