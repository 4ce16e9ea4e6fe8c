//! Buffers on the device, and a product run and compared.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use burn_fp8_cublaslt::raw::driver::DevicePointer;
use burn_fp8_cublaslt::raw::lt::NOT_SUPPORTED;
use burn_fp8_cublaslt::*;
use cudarc::driver::{CudaContext, result};

use burn_fp8_test_support::Random;

use crate::data::{Case, Inputs, decode, extent, on_device, reference, rounding, saturate};
use crate::model::compare_bits;

/// A byte that outputs are filled with, so that what is not written shows.
pub const FILL: u8 = 0xA5;

/// Whether the device is too slow for sizes that are meant for a GPU: a simulated one, for which `cargo xtask sim` says so.
pub fn is_small() -> bool {
    std::env::var_os("BURN_FP8_TEST_SIZE").is_some_and(|size| size == "small")
}

/// A number that a slow device gets a part of.
pub fn fewer(count: usize, part: usize) -> usize {
    if is_small() { count / part } else { count }
}

/// The context of the first device, and cuBLASLt in it.
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub lt: CublasLt,
}

/// The primary context of the first device, current to the calling thread.
pub fn bind() -> Arc<CudaContext> {
    // Kept over all tests: the device would forget with its primary context what the library has loaded into it.
    static CONTEXT: OnceLock<Arc<CudaContext>> = OnceLock::new();
    let context = CONTEXT.get_or_init(|| CudaContext::new(0).expect("a CUDA device")).clone();
    context.bind_to_thread().expect("the context of the device");
    context
}

impl Gpu {
    pub fn new() -> Self {
        let context = bind();
        let lt = CublasLt::current().expect("FP8 on the first device");
        println!("{:?}, ordering by {:?}", lt.capability(), lt.ordering());
        Self { context, lt }
    }

    pub fn synchronize(&self) {
        self.context.synchronize().expect("work on the device");
    }
}

/// Device memory, freed with its owner.
pub struct Buffer {
    pub pointer: DevicePointer,
    pub bytes: usize,
}

impl Buffer {
    pub fn new(bytes: &[u8]) -> Self {
        if bytes.is_empty() {
            return Self { pointer: 0, bytes: 0 };
        }
        // SAFETY: a context is current; the memory is written before it is read.
        let pointer = unsafe { result::malloc_sync(bytes.len()) }.expect("device memory");
        // SAFETY: just allocated with this length.
        unsafe { result::memcpy_htod_sync(pointer, bytes) }.expect("a copy to the device");
        Self { pointer, bytes: bytes.len() }
    }

    pub fn filled(bytes: usize) -> Self {
        Self::new(&vec![FILL; bytes])
    }

    pub fn f32(values: &[f32]) -> Self {
        Self::new(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    /// All bytes. The context must be synchronized.
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        if self.bytes > 0 {
            // SAFETY: allocated with this length and initialized.
            unsafe { result::memcpy_dtoh_sync(&mut bytes, self.pointer) }
                .expect("a copy from the device");
        }
        bytes
    }

    pub fn read_f32(&self) -> f32 {
        f32::from_le_bytes(self.read().try_into().expect("one f32"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.pointer != 0 {
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { result::free_sync(self.pointer) };
        }
    }
}

/// Everything of a case on the device.
pub struct OnDevice {
    pub pointers: Pointers,
    pub d: Buffer,
    pub amax_d: Buffer,
    _inputs: Vec<Buffer>,
}

impl OnDevice {
    pub fn new(case: &Case, inputs: &Inputs) -> Self {
        let problem = &case.problem;
        let shape = problem.shape;
        let mut kept = Vec::new();
        let mut keep = |buffer: Buffer| {
            let pointer = buffer.pointer;
            kept.push(buffer);
            pointer
        };
        let d_elements = extent(problem, shape.m, problem.d.ld, problem.batch.d) as usize;
        let d = if case.in_place {
            Buffer::new(&inputs.c_bytes)
        } else {
            Buffer::filled(d_elements * problem.d.dtype.size() as usize)
        };
        let number = |present: bool, value: f32| Buffer::f32(&[value][..usize::from(present)]);
        let amax_d = number(problem.amax_d, -1.0);
        let pointers = Pointers {
            a: keep(Buffer::new(&inputs.a)),
            b: keep(Buffer::new(&inputs.b)),
            c: if case.in_place { d.pointer } else { keep(Buffer::new(&inputs.c_bytes)) },
            d: d.pointer,
            scale_a: keep(Buffer::new(&on_device(problem, &inputs.scale_a))),
            scale_b: keep(Buffer::new(&on_device(problem, &inputs.scale_b))),
            inverse_scale_d: keep(number(problem.scaled_d, inputs.inverse_scale_d)),
            amax_d: amax_d.pointer,
            bias: keep(Buffer::new(&inputs.bias_bytes)),
        };
        Self { pointers, d, amax_d, _inputs: kept }
    }
}

/// Runs a case and compares every output with the reference. Returns false where cuBLASLt has no algorithm and the plan names the gap.
///
/// Every other product that our rules call valid must run. INVALID_VALUE is no excuse, not even in a gap: it may as well be our mistake.
pub fn check(gpu: &Gpu, case: &Case, seed: u64) -> bool {
    match attempt(gpu, case, seed) {
        Ok(()) => true,
        Err(error @ Error::NoAlgorithm { hint: Some(_), status: 0 | NOT_SUPPORTED, .. }) => {
            println!("GAP {error}");
            false
        }
        Err(error) => panic!("{error}\n{case:?}"),
    }
}

fn attempt(gpu: &Gpu, case: &Case, seed: u64) -> Result<(), Error> {
    let inputs = Inputs::new(&case.problem, &mut Random(seed));
    let device = OnDevice::new(case, &inputs);
    // SAFETY: all buffers cover the product and outlive the synchronization below.
    let launch = unsafe { gpu.lt.run(&case.problem, &device.pointers, case.alpha, case.beta) }?;
    gpu.synchronize();
    compare(gpu, case, &inputs, &device);
    println!(
        "{} {:?} {:?} -> {}: {}",
        case.problem.shape,
        case.problem.a.format,
        case.problem.b.format,
        case.problem.d.dtype,
        launch.algorithm
    );
    Ok(())
}

/// Compares every output on the device with the reference.
pub fn compare(gpu: &Gpu, case: &Case, inputs: &Inputs, device: &OnDevice) {
    let problem = &case.problem;
    let Shape { m, n, .. } = problem.shape;
    let activation = problem.epilogue.activation;
    let expected = reference(case, inputs);
    let dtype = problem.d.dtype;
    let bytes = device.d.read();
    compare_bits(gpu.lt.capability().compute, case, inputs, &bytes);
    let got = decode(dtype, &bytes);
    let factor = f64::from(inputs.inverse_scale_d);
    let (mut error, mut energy) = (0.0, 0.0);
    let mut each = expected.iter();
    let (count, ld) = (problem.batch.count, problem.d.ld);
    let places = (0..count).flat_map(|index| (0..m).map(move |i| index * problem.batch.d + i * ld));
    for start in places.clone() {
        for at in start..start + n {
            let element = each.next().unwrap();
            let want = saturate(dtype, element.output * factor);
            let got = got[at as usize];
            let allowed = element.output_slack(activation) * factor + rounding(dtype, want);
            assert!(
                (got - want).abs() <= allowed,
                "element {at} of D is {got}, not {want} ± {allowed}\n{case:?}"
            );
            error += (got - want).powi(2);
            energy += want.powi(2);
        }
    }
    // Between the rows and between the matrices nothing is written.
    if !case.in_place {
        let written: BTreeSet<_> = places.flat_map(|start| start..start + n).collect();
        let size = dtype.size();
        let all = bytes.len() as u64 / size;
        for at in (0..all).filter(|at| !written.contains(at)) {
            let padding = &bytes[(at * size) as usize..][..size as usize];
            assert!(padding.iter().all(|byte| *byte == FILL), "padding was written\n{case:?}");
        }
    }
    let limit = match dtype {
        DataType::Fp8(burn_fp8_core::Fp8Format::E5M2) => 0.1,
        DataType::Fp8(burn_fp8_core::Fp8Format::E4M3) => 0.05,
        _ => 0.01,
    };
    let relative = (error / energy).sqrt();
    println!("relative error {relative:.2e}");
    assert!(relative < limit, "relative error {relative}\n{case:?}");

    if problem.amax_d {
        let amax = expected.iter().map(|e| e.output.abs()).fold(0.0, f64::max);
        let slack = expected.iter().map(|e| e.output_slack(activation)).fold(0.0, f64::max);
        let got = device.amax_d.read_f32();
        let close = (f64::from(got) - amax).abs() <= slack + 1e-5 * amax;
        assert!(close, "amax of D is {got}, not {amax}\n{case:?}");
    }
}
