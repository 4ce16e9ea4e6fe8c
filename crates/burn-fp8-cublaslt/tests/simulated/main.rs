//! What only a simulated device shows: faults on demand, what is left behind, and which products NVIDIA's documentation refuses.
//!
//! `cargo xtask sim` runs it; nothing of it needs, or has run on, a GPU.
#![allow(unsafe_code, reason = "passes device pointers, and asks the simulation for its counts")]

#[allow(dead_code, reason = "shared with the tests that need no device")]
#[path = "../host/common.rs"]
mod common;
#[allow(dead_code, reason = "shared with the tests that a GPU runs")]
#[path = "../gpu/data.rs"]
mod data;
#[allow(dead_code, reason = "shared with the tests that a GPU runs")]
#[path = "../gpu/device.rs"]
mod device;
mod faults;
mod golden;
mod grid;
#[allow(dead_code, reason = "shared with the tests that a GPU runs")]
#[path = "../gpu/model.rs"]
mod model;

use core::ffi::{c_char, c_long};
use std::ffi::CString;

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cublaslt::*;

use burn_fp8_test_support::Random;
use data::{Case, Inputs};
use device::{Gpu, OnDevice};

const KINDS: [&str; 6] =
    ["handles", "descriptors", "streams", "events", "allocations", "references to contexts"];

/// How many of each kind are alive.
pub fn alive() -> [c_long; 6] {
    type Count = unsafe extern "C" fn(*const c_char) -> c_long;
    // SAFETY: the driver is loaded, and the simulated one has this function with this signature.
    let count = unsafe { cudarc::driver::sys::culib().get::<Count>(b"sim_count\0") }
        .expect("the simulated driver");
    KINDS.map(|kind| {
        let kind = CString::new(kind).expect("no zero inside");
        // SAFETY: a C string, which the function only reads.
        unsafe { count(kind.as_ptr()) }
    })
}

/// Whatever a `CublasLt` has made is gone with it: handles, descriptors, streams, events, memory, its reference to the context.
#[test]
#[ignore = "needs the simulated device: cargo xtask sim"]
fn nothing_is_left_of_a_library_that_has_multiplied() {
    // The context of the tests is kept, so it is there before.
    drop(Gpu::new());
    let before = alive();
    {
        let gpu = Gpu::new();
        let case = Case::new(ScaledMatmul::new(64, 48, 80, E4M3, E4M3, DataType::Bf16));
        let inputs = Inputs::new(&case.problem, &mut Random(3));
        let device = OnDevice::new(&case, &inputs);
        // SAFETY: the buffers cover the product and live until the synchronization.
        unsafe { gpu.lt.run(&case.problem, &device.pointers, case.alpha, case.beta) }.unwrap();
        let during = alive();
        for (kind, (before, during)) in KINDS.iter().zip(before.iter().zip(during)) {
            assert!(during > *before, "{kind}: there are some meanwhile");
        }
        gpu.synchronize();
    }
    assert_eq!(alive(), before, "{KINDS:?}");
}
