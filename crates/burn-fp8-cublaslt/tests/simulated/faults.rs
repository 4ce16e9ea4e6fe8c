//! Each fault is a typed error that says what and why, and what was made before it is gone.

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::{Random, with_fault};

use crate::alive;
use crate::data::{Case, Inputs};
use crate::device::{Buffer, Gpu, OnDevice, bind};

/// A test in a process of its own, with the fault.
macro_rules! faults {
    ($($name:ident, $fault:literal => $check:expr;)*) => {
        $(
            #[test]
            #[ignore = "needs the simulated device: cargo xtask sim"]
            fn $name() {
                with_fault($fault, $check);
            }
        )*
    };
}

faults! {
    no_device, "no-device" => || {
        let error = Capability::probe(0).unwrap_err();
        assert!(matches!(error, Unavailable::Driver(_)), "{error:?}");
        assert!(error.to_string().contains("CUDA_ERROR_NO_DEVICE"), "{error}");
        assert_eq!(require_device(0), Err(error));
    };
    a_driver_that_is_older_than_the_library, "driver-version=12080" => || {
        let error = Capability::probe(0).unwrap_err();
        assert!(matches!(error, Unavailable::OldDriver { .. }), "{error:?}");
        assert!(error.to_string().contains("update the driver"), "{error}");
    };
    an_old_library, "cublaslt-version=120300" => || {
        let error = Capability::probe(0).unwrap_err();
        assert!(matches!(error, Unavailable::OldCublasLt { .. }), "{error:?}");
        assert!(error.to_string().contains("is too old for FP8"), "{error}");
    };
    no_handle, "no-handle" => || {
        let _context = bind();
        let before = alive();
        let error = CublasLt::current().unwrap_err();
        assert!(matches!(error, Error::CublasLt(_)), "{error:?}");
        assert!(error.to_string().contains("CUBLAS_STATUS_NOT_INITIALIZED"), "{error}");
        assert_eq!(alive(), before);
    };
    no_memory_for_the_workspace, "out-of-memory=1" => || {
        let _context = bind();
        let before = alive();
        let error = CublasLt::current().unwrap_err();
        assert!(matches!(error, Error::Driver(_)), "{error:?}");
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        assert_eq!(alive(), before);
    };
    no_algorithm, "no-algorithm" => || refused_by_heuristics(0);
    heuristics_that_call_it_invalid, "heuristics=7" => || refused_by_heuristics(7);
    heuristics_that_do_not_support_it, "heuristics=15" => || refused_by_heuristics(15);
    heuristics_that_fail, "heuristics=14" => || {
        let gpu = Gpu::new();
        for _ in 0..2 {
            let error = gpu.lt.prepare(&problem()).unwrap_err();
            assert!(matches!(error, Error::CublasLt(_)), "{error:?}");
            assert!(error.to_string().contains("CUBLAS_STATUS_INTERNAL_ERROR"), "{error}");
        }
        // It may be gone tomorrow: it is asked again.
        assert_eq!(gpu.lt.cache_statistics().0, 0);
    };
    a_product_that_is_refused_leaves_the_context_in_order, "product=13" => || {
        let gpu = Gpu::new();
        for _ in 0..3 {
            let error = multiply(&gpu).unwrap_err();
            assert!(matches!(error, Error::CublasLt(_)), "{error:?}");
            assert!(error.to_string().contains("CUBLAS_STATUS_EXECUTION_FAILED"), "{error}");
        }
        let after = Buffer::new(&[1, 2, 3]);
        gpu.synchronize();
        assert_eq!(after.read(), [1, 2, 3]);
    };
    an_illegal_address_fails_what_comes_after_and_hangs_nothing, "illegal-address=2" => || {
        let gpu = Gpu::new();
        let case = Case::new(problem());
        let device = OnDevice::new(&case, &Inputs::new(&case.problem, &mut Random(1)));
        // SAFETY: the buffers cover the product and live until the end.
        let run = || unsafe { gpu.lt.run(&case.problem, &device.pointers, 1.0, 0.0) };
        run().expect("the first product is well");
        run().expect("the second fails later");
        assert!(gpu.context.synchronize().is_err(), "who waits is told");
        let error = run().unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        // All of it is dropped now: nothing panics.
    };
}

fn problem() -> ScaledMatmul {
    ScaledMatmul::new(32, 48, 64, E4M3, E4M3, DataType::Bf16)
}

fn multiply(gpu: &Gpu) -> Result<Launch, Error> {
    let case = Case::new(problem());
    let device = OnDevice::new(&case, &Inputs::new(&case.problem, &mut Random(1)));
    // SAFETY: the buffers cover the product and live until the synchronization.
    let launch = unsafe { gpu.lt.run(&case.problem, &device.pointers, case.alpha, case.beta) };
    gpu.synchronize();
    launch
}

/// The error keeps what they answered, they are asked once, and nothing is left of it.
fn refused_by_heuristics(answer: i32) {
    let _context = bind();
    let before = alive();
    let gpu = Gpu::new();
    for _ in 0..2 {
        let error = multiply(&gpu).unwrap_err();
        assert!(
            matches!(error, Error::NoAlgorithm { status, .. } if status == answer),
            "{error:?}"
        );
    }
    assert_eq!(gpu.lt.cache_statistics(), (1, 1));
    drop(gpu);
    assert_eq!(alive(), before);
}
