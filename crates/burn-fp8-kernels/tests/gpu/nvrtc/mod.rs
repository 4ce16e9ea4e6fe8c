//! The CUDA C++ of every kernel compiles, for Hopper and for Ada.
//!
//! Needs no GPU and no driver: NVRTC is where the dynamic loader finds it, and `CUDA_PATH` names a folder whose `include` has CUDA's
//! headers, as `.ci/fetch-cuda` makes one. Without them the sources are generated and looked at, and compiling them is skipped; that
//! fails where `BURN_FP8_REQUIRE_NVRTC` is 1.

mod runtime;
mod variants;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn_fp8_test_support::skip_unless_required;
use cudarc::nvrtc::{result, sys};
use runtime::{CompileOnly, NoDevice, launched};

const ARCHITECTURES: [&str; 2] = ["sm_90a", "sm_89"];

#[test]
fn every_kernel_compiles_for_cuda() {
    let client = <CompileOnly as cubecl::prelude::Runtime>::client(&NoDevice);
    let launches = variants::launch_all(&client);
    client.flush().expect("the server is alive");
    // Once the thread of the device has answered, it has seen all launches.
    cubecl::future::block_on(client.sync()).expect("the server is alive");

    let kernels = std::mem::take(&mut *launched());
    assert_eq!(kernels.launches, launches, "launches");
    let kernels: Vec<_> = kernels
        .kernels
        .into_iter()
        .map(|(id, kernel)| kernel.unwrap_or_else(|error| panic!("{id}: {error}")))
        .collect();
    let names: BTreeSet<_> =
        kernels.iter().map(|kernel| kernel.function().to_lowercase()).collect();
    assert_eq!(names, in_sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))));
    for kernel in &kernels {
        assert!(!kernel.source.contains("__fdividef"), "{} divides fast", kernel.name);
        assert!(!kernel.source.contains("__frcp"), "{} takes a fast reciprocal", kernel.name);
        let divides = kernel.source.contains(" / ");
        assert!(divides || !kernel.name.contains("::quantize_"), "{} does not divide", kernel.name);
    }

    let toolkit = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    // SAFETY: opens and closes NVRTC, whose initializers may run at any time.
    #[allow(unsafe_code, reason = "a C library")]
    let present = unsafe { sys::is_culib_present() };
    let (Some(toolkit), true) = (toolkit, present) else {
        let count = kernels.len();
        let why = format_args!("no NVRTC, or no CUDA_PATH, so none of {count} kernels is compiled");
        return skip_unless_required("BURN_FP8_REQUIRE_NVRTC", why);
    };
    // Sources and machine code are left there, for a look with cuobjdump or nvdisasm.
    let kept = std::env::var_os("BURN_FP8_KEEP_CUDA").map(PathBuf::from);
    let next = AtomicUsize::new(0);
    let compile = || {
        let mut compiled = 0;
        while let Some(kernel) = kernels.get(next.fetch_add(1, Relaxed)) {
            for arch in ARCHITECTURES {
                let code = compile(&kernel.source, arch, &toolkit).unwrap_or_else(|error| {
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
    assert_eq!(compiled, kernels.len() * ARCHITECTURES.len());
}

/// The names of the kernels in the sources of a folder, without underscores: those of the types that CubeCL makes of them.
fn in_sources(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in folder.read_dir().expect("the sources are there") {
        let path = entry.expect("the folder can be read").path();
        if path.is_dir() {
            names.append(&mut in_sources(&path));
            continue;
        }
        let source = std::fs::read_to_string(path).expect("sources are text");
        for kernel in source.split("#[cube(launch_unchecked").skip(1) {
            let name = kernel.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
            names.insert(name.expect("an attribute of a function").replace('_', ""));
        }
    }
    names
}

/// Machine code of `arch`, with the options of the CUDA runtime. The log where that fails.
fn compile(source: &str, arch: &str, toolkit: &Path) -> Result<Vec<u8>, String> {
    let include = toolkit.join("include");
    let options = [
        format!("--gpu-architecture={arch}"),
        "-lineinfo".into(),
        format!("--include-path={}", include.display()),
        format!("--include-path={}", include.join("cccl").display()),
    ];
    let source = CString::new(source).expect("no zeros");
    let program = result::create_program(&source, None).map_err(|error| error.to_string())?;
    // SAFETY: the program is alive until it is destroyed, once; the code is written into as many bytes as NVRTC asks for.
    #[allow(unsafe_code, reason = "a C library")]
    unsafe {
        let compiled = result::compile_program(program, &options).and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(program, &mut size).result()?;
            let mut code = vec![0u8; size];
            sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        });
        let log =
            result::get_program_log(program).map(|log| log.iter().map(|c| *c as u8).collect());
        result::destroy_program(program).map_err(|error| error.to_string())?;
        compiled.map_err(|error| {
            format!("{error}: {}", String::from_utf8_lossy(&log.unwrap_or_else(|_| vec![])))
        })
    }
}
