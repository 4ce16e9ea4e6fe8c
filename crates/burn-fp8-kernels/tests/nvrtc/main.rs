//! The CUDA C++ of every kernel compiles, for Hopper and for Ada.
//!
//! Needs no GPU and no driver: `CUDA_PATH` names a folder with `include` and `lib`, as `.ci/fetch-cuda` makes one. Without it the
//! sources are generated and looked at, and compiling them is skipped; that fails where `BURN_FP8_REQUIRE_NVRTC` is 1.

mod blocks;
mod compiler;
mod runtime;
mod variants;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn_fp8_test_support::skip_unless_required;
use compiler::Nvrtc;
use runtime::{CompileOnly, NoDevice, launched};

const ARCHITECTURES: [&str; 2] = ["sm_90a", "sm_89"];

#[test]
fn every_kernel_compiles_for_cuda() {
    let client = <CompileOnly as cubecl::prelude::Runtime>::client(&NoDevice);
    let expected = variants::launch_all(&client);
    client.flush().expect("the server is alive");
    // Once the thread of the device has answered, it has seen all launches.
    cubecl::future::block_on(client.sync()).expect("the server is alive");

    let kernels = std::mem::take(&mut *launched());
    assert_eq!(kernels.launches, expected.launches, "launches");
    assert_eq!(kernels.kernels.len(), expected.kernels, "different kernels");
    let kernels: Vec<_> = kernels
        .kernels
        .into_iter()
        .map(|(id, kernel)| kernel.unwrap_or_else(|error| panic!("{id}: {error}")))
        .collect();
    let mut divisions = 0;
    for kernel in &kernels {
        assert!(!kernel.source.contains("__fdividef"), "{} divides fast", kernel.name);
        assert!(!kernel.source.contains("__frcp"), "{} takes a fast reciprocal", kernel.name);
        if kernel.name.contains("::quantize_") {
            assert!(kernel.source.contains(" / "), "{} does not divide", kernel.name);
            divisions += 1;
        }
    }
    assert_eq!(divisions, expected.dividing, "kernels that divide");

    let nvrtc = match std::env::var_os("CUDA_PATH").map(PathBuf::from) {
        Some(toolkit) => Nvrtc::open(&toolkit).expect("CUDA_PATH names a toolkit with NVRTC"),
        None => {
            let count = kernels.len();
            let why =
                format_args!("CUDA_PATH is not set, so NVRTC compiles none of {count} kernels");
            return skip_unless_required("BURN_FP8_REQUIRE_NVRTC", why);
        }
    };
    // Sources and machine code are left there, for a look with cuobjdump or nvdisasm.
    let kept = std::env::var_os("BURN_FP8_KEEP_CUDA").map(PathBuf::from);
    let next = AtomicUsize::new(0);
    let compile = || {
        let mut compiled = 0;
        while let Some(kernel) = kernels.get(next.fetch_add(1, Relaxed)) {
            for arch in ARCHITECTURES {
                let code = nvrtc.compile(&kernel.source, arch).unwrap_or_else(|error| {
                    panic!("{} for {arch}: {error}\n{}", kernel.name, kernel.source)
                });
                assert!(!code.is_empty(), "{} for {arch}: no code", kernel.name);
                if let Some(folder) = &kept {
                    let keep = |extension: &str, bytes: &[u8]| {
                        let path = folder.join(format!("{}.{extension}", kernel.file_name()));
                        std::fs::write(path, bytes).expect("BURN_FP8_KEEP_CUDA can be written");
                    };
                    let source = format!("// {}\n{}", kernel.id, kernel.source);
                    keep("cu", source.as_bytes());
                    keep(&format!("{arch}.cubin"), &code);
                }
                compiled += 1;
            }
        }
        compiled
    };
    let compiled: usize = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(compile)).collect();
        threads.into_iter().map(|thread| thread.join().expect("every kernel compiles")).sum()
    });
    println!("{} kernels compile for {}", kernels.len(), ARCHITECTURES.join(" and "));
    assert_eq!(compiled, expected.kernels * ARCHITECTURES.len());
}
