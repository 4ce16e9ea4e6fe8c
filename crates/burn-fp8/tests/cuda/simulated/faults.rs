//! Under [`Execution::Auto`] a fault of ours is a fallback that the report names, and the result is right. Under [`Execution::Native`] it
//! is a panic on the calling thread that names it. Nothing hangs, nothing is emulated in silence.
//!
//! What CubeCL makes of faults of its own stands below, as seen: a panic or an error where a tensor is read. Without NVRTC it is neither: its
//! thread panics at each kernel, and what is read is memory that nothing has written. So we refuse the device.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use burn_cubecl::cubecl::cuda::CudaDevice;

use burn_fp8_test_support::{with_fault, with_variable};

use super::{Fused, Unfused, config, device, expected, product};
use crate::common::*;

/// Tests in processes of their own, with the fault: without Fusion and with it.
macro_rules! faults {
    ($($name:ident, $fault:expr => $check:ident($($argument:expr),*);)*) => {
        mod unfused { $(faults! { test $name, $fault, $check, super::Unfused $(, $argument)* })* }
        mod fused { $(faults! { test $name, $fault, $check, super::Fused $(, $argument)* })* }
    };
    (test $name:ident, $fault:expr, $check:ident, $backend:ty $(, $argument:expr)*) => {
        #[test]
        #[ignore = "needs the simulated device: cargo xtask sim"]
        fn $name() {
            super::with($fault, || super::$check::<$backend>($($argument),*));
        }
    };
}

faults! {
    without_a_handle, "no-handle" => falls_back("CUBLAS_STATUS_NOT_INITIALIZED");
    without_an_algorithm, "no-algorithm" => falls_back("its heuristics named none");
    with_heuristics_that_call_it_invalid, "heuristics=7" => falls_back("CUBLAS_STATUS_INVALID_VALUE");
    with_heuristics_that_do_not_support_it, "heuristics=15" => falls_back("CUBLAS_STATUS_NOT_SUPPORTED");
    with_heuristics_that_fail, "heuristics=14" => falls_back("CUBLAS_STATUS_INTERNAL_ERROR");
    with_a_product_that_is_refused, "product=13" => falls_back("CUBLAS_STATUS_EXECUTION_FAILED");
    with_a_driver_that_is_older_than_the_library, "driver-version=12080" => is_emulated("update the driver");
    with_an_old_library, "cublaslt-version=120300" => is_emulated("is too old for FP8");
    without_cublaslt, "without libcublasLt" => is_emulated("no cuBLASLt");
    without_a_device, "no-device" => has_no_device();
    without_nvrtc, "without libnvrtc" => is_unusable("no NVRTC");
    without_headers, "without headers" => is_unusable("the headers of CUDA");
    where_kernels_do_not_compile, "compiler-fails" => fails_when_it_is_read("refused on demand");
    where_kernels_are_too_new_for_the_driver, "ptx-too-new" => fails_when_it_is_read("UNSUPPORTED_PTX_VERSION");
    // CubeCL says so, or its thread panics with it and the reader has "CallError".
    with_an_illegal_address, "illegal-address=1" => fails_on_the_device();
    // CubeCL's pool is the first allocation, cuBLASLt's workspace the second.
    without_memory, "out-of-memory=1" => has_no_memory();
    without_memory_for_the_workspace, "out-of-memory=2" => is_emulated_for("CUDA_ERROR_OUT_OF_MEMORY");
}

/// Runs a check in a process of its own: with a fault of the simulation, or without one of its libraries.
fn with(fault: &str, check: impl FnOnce()) {
    match fault.strip_prefix("without ") {
        Some("headers") => {
            let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("without-headers");
            fs::create_dir_all(&empty).expect("a folder for tests");
            with_variable("CUDA_PATH", empty.to_str().expect("UTF-8"), check);
        }
        Some(library) => {
            let folder = libraries_but(library);
            with_variable("LD_LIBRARY_PATH", folder.to_str().expect("UTF-8"), check);
        }
        None => with_fault(fault, check),
    }
}

/// A folder with the simulation's libraries, except for one.
fn libraries_but(library: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("without-{library}"));
    fs::create_dir_all(&folder).expect("a folder for tests");
    let libraries = std::env::var_os("SIM_LIBRARIES").expect("cargo xtask sim sets it");
    for entry in fs::read_dir(libraries).expect("the simulation is built") {
        let entry = entry.expect("a library");
        let link = folder.join(entry.file_name());
        if !entry.file_name().to_string_lossy().starts_with(library) && !link.exists() {
            symlink(entry.path(), link).expect("a link to a library");
        }
    }
    folder
}

/// The device multiplies in FP8, this product it does not: the report says why, or the panic does.
fn falls_back<B: Fp8Matmul<Device = CudaDevice>>(why: &str) {
    is_emulated_for::<B>(why);
    let native = || product::<B>(&config(Execution::Native), &device(0));
    panics(native, ["Execution::Native", why]);
    // The device is well: what comes afterwards is right.
    let (values, _) = product::<B>(&config(Execution::FakeQuantized), &device(0));
    assert_eq!(values, expected());
}

/// Under `Auto` the product is emulated, again and again, and its report says why.
fn is_emulated_for<B: Fp8Matmul<Device = CudaDevice>>(why: &str) {
    assert!(Fp8Backend::<B>::capability(&device(0)).is_native());
    for _ in 0..2 {
        let (values, report) = product::<B>(&config(Execution::Auto), &device(0));
        assert_eq!(values, expected(), "{report}");
        let ran = &report.products[0].ran;
        assert!(matches!(ran, Implementation::Fallback(_)), "{report}");
        says(ran, [why]);
    }
}

/// The device does not multiply in FP8.
fn is_emulated<B: Fp8Matmul<Device = CudaDevice>>(why: &str) {
    let capability = Fp8Backend::<B>::capability(&device(0));
    assert!(matches!(capability, Capability::FakeQuantized { .. }), "{capability}");
    says(&capability, [why]);
    let (values, report) = product::<B>(&config(Execution::Auto), &device(0));
    assert_eq!(values, expected(), "{report}");
    assert_eq!(report.products[0].ran, Implementation::FakeQuantized, "{report}");
    let native = || product::<B>(&config(Execution::Native), &device(0));
    panics(native, ["Execution::Native", why]);
}

/// Nothing is computed: whoever asks for a product, or reads a tensor, is told why, whatever the execution.
fn is_unusable<B: Fp8Matmul<Device = CudaDevice>>(why: &str) {
    let device = device(0);
    let capability = Fp8Backend::<B>::capability(&device);
    assert!(matches!(capability, Capability::Unusable { .. }), "{capability}");
    for execution in [Execution::Auto, Execution::FakeQuantized, Execution::Native] {
        refused(config(execution).check::<B>(&device), ["cannot be used on this device", why]);
        panics(
            || product::<B>(&config(execution), &device),
            ["cannot be used on this device", why],
        );
    }
    let floats = || Tensor::<Fp8Backend<B>, 1>::from_floats([1.0, 2.0], &device);
    panics(|| values(floats() * 2.0), ["cannot be used on this device", why]);
    let int = Tensor::<Fp8Backend<B>, 1, Int>::from_ints([1, 2], &device) * 2;
    refused(int.try_into_data(), ["cannot be used on this device", why]);
    refused(floats().greater_elem(1.5).try_into_data(), ["cannot be used on this device", why]);
    let zeros = || Tensor::<B, 2>::zeros([16, 16], &device);
    panics(|| Fp8Tensor::quantize(zeros(), Fp8Format::E4M3), [why]);
}

/// The capability says so without a panic; CubeCL panics once a tensor is made.
fn has_no_device<B: Fp8Matmul<Device = CudaDevice>>() {
    let capability = Fp8Backend::<B>::capability(&device(0));
    says(&capability, ["CUDA_ERROR_NO_DEVICE"]);
    println!("as seen: {}", panic_of(|| product::<B>(&config(Execution::Auto), &device(0))));
}

/// No result comes of it, and who reads it is told why.
fn fails_when_it_is_read<B: Fp8Matmul<Device = CudaDevice>>(why: &str) {
    let message = panic_of(|| product::<B>(&config(Execution::Auto), &device(0)));
    println!("as seen: {message}");
    says(message, [why]);
}

/// No result comes of it.
fn fails_on_the_device<B: Fp8Matmul<Device = CudaDevice>>() {
    let message = panic_of(|| product::<B>(&config(Execution::Auto), &device(0)));
    println!("as seen: {message}");
    assert!(message.contains("ILLEGAL_ADDRESS") || message.contains("CallError"), "{message}");
}

/// CubeCL's thread panics and says how much it could not allocate; the reader has no result.
fn has_no_memory<B: Fp8Matmul<Device = CudaDevice>>() {
    let message = panic_of(|| product::<B>(&config(Execution::Auto), &device(0)));
    println!("as seen: {message}");
    assert!(message.contains("CallError") || message.contains("Error while reading"), "{message}");
}
