//! How long the host is busy with a product: small products, so that the device never is what takes time.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::backend::Backend;
use burn_fp8::{Execution, Fp8Backend, Fp8Config, Fp8Matmul};

use crate::device::random;
use crate::options::{Fused, Options, Sink, Unfused};
use crate::rows::{Row, median};

pub const GROUP: &str = "gpu-host";

/// The most that an intercepted product may take of the calling thread's time.
const BUDGET_MILLISECONDS: f64 = 0.020;
/// Products before they are waited for, when the calling thread's time is measured. CubeCL's channel to the thread that feeds the
/// device holds 32 tasks, of which a product with Fusion is about 10; when it is full the calling thread waits, and what is measured
/// is that thread's time.
const BURST: usize = 3;
/// Bursts of a sample.
const BURSTS: usize = 30;
/// Products before they are waited for, when the time until the device is done is measured.
const PRODUCTS: usize = 100;
const SIZE: usize = 128;

struct Times {
    /// Until the calling thread is free again.
    calling: f64,
    /// A product of many, until the device has done all.
    throughput: f64,
}

/// Milliseconds a product.
fn measure<B: Backend>(options: &Options) -> Result<Times> {
    let [x, w] = [random::<B>([SIZE, SIZE]), random([SIZE, SIZE])];
    // The time until the calling thread is free, and until all is done.
    let burst = |products: usize| -> Result<[f64; 2]> {
        options.gpu.wait::<B>()?;
        let start = Instant::now();
        for _ in 0..products {
            black_box(x.clone().matmul(w.clone()));
        }
        let called = start.elapsed();
        options.gpu.wait::<B>()?;
        Ok([called, start.elapsed()].map(|time| time.as_secs_f64() * 1e3 / products as f64))
    };
    // Compiles kernels and fills memory pools.
    burst(BURST)?;
    let calling = (0..BURSTS * options.samples()).map(|_| Ok(burst(BURST)?[0]));
    let mut calling = calling.collect::<Result<Vec<_>>>()?;
    burst(PRODUCTS)?;
    let throughput = (0..2 * options.samples()).map(|_| Ok(burst(PRODUCTS)?[1]));
    let mut throughput = throughput.collect::<Result<Vec<_>>>()?;
    Ok(Times { calling: median(&mut calling), throughput: median(&mut throughput) })
}

/// `target`: whether the calling thread is to keep to the budget.
fn rows<B: Fp8Matmul>(options: &Options, suffix: &str, target: bool) -> Result<Vec<Row>> {
    let native = Fp8Config::default().with_execution(Execution::Native);
    let fp8 = native.scope(|| measure::<Fp8Backend<B>>(options))?;
    let plain = measure::<B>(options)?;
    let name = format!("product {SIZE}×{SIZE}×{SIZE} bf16{suffix}");
    let row = |what: &str, milliseconds: f64, reference: &str, than: f64, target| {
        let name = format!("{name}, {what}");
        Row::timed((GROUP, 1, target), (&name, milliseconds), (reference, than))
    };
    let target = target.then_some(1.0);
    Ok(vec![
        row("calling thread", fp8.calling, "budget", BUDGET_MILLISECONDS, target),
        row("calling thread", fp8.calling, "without FP8", plain.calling, None),
        row("throughput", fp8.throughput, "without FP8", plain.throughput, None),
    ])
}

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    sink.add(rows::<Fused>(options, "", true)?)?;
    // Here the calling thread waits, in each native product, for the thread that feeds the device.
    sink.add(rows::<Unfused>(options, ", without Fusion", false)?)
}
