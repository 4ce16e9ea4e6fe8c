//! How long the host is busy with a product: small products, so that the device never is what takes time.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::{Execution, Fp8Backend, Fp8Config, Fp8Matmul};

use crate::device::random;
use crate::rows::{Row, median};
use crate::{Fused, Options, Unfused};

pub const GROUP: &str = "gpu-host";

/// The most that an intercepted product may take of the host's time.
const BUDGET_MILLISECONDS: f64 = 0.020;
/// Few enough that the queues of driver and device do not fill up.
const PRODUCTS: usize = 100;
const SIZE: usize = 128;

struct Times {
    /// Until the calling thread is free again.
    calling: f64,
    /// Until the device has done all.
    done: f64,
}

/// Milliseconds a product.
fn measure<B: Backend>(options: &Options) -> Result<Times> {
    let [x, w] = [random::<B>([SIZE, SIZE]), random([SIZE, SIZE])];
    let product = |x: &Tensor<B, 2>, w: &Tensor<B, 2>| {
        black_box(x.clone().matmul(w.clone()));
    };
    let (mut calling, mut done) = (vec![], vec![]);
    for sample in 0..=2 * options.samples() {
        options.gpu.wait::<B>()?;
        let start = Instant::now();
        (0..PRODUCTS).for_each(|_| product(&x, &w));
        let called = start.elapsed().as_secs_f64();
        options.gpu.wait::<B>()?;
        let all = start.elapsed().as_secs_f64();
        // The first sample compiles kernels.
        if sample > 0 {
            calling.push(called * 1e3 / PRODUCTS as f64);
            done.push(all * 1e3 / PRODUCTS as f64);
        }
    }
    Ok(Times { calling: median(&mut calling), done: median(&mut done) })
}

fn rows<B: Fp8Matmul>(options: &Options, suffix: &str) -> Result<Vec<Row>> {
    let native = Fp8Config::default().with_execution(Execution::Native);
    let fp8 = native.scope(|| measure::<Fp8Backend<B>>(options))?;
    let plain = measure::<B>(options)?;
    let name = format!("product {SIZE}×{SIZE}×{SIZE} bf16{suffix}");
    let row = |what: &str, milliseconds: f64, reference: &str, than: f64, target| Row {
        group: GROUP.to_owned(),
        name: format!("{name}, {what}"),
        threads: 1,
        milliseconds,
        gigabytes_per_second: None,
        teraflops_per_second: None,
        reference: reference.to_owned(),
        reference_milliseconds: than,
        ratio: than / milliseconds,
        target,
    };
    Ok(vec![
        row("calling thread", fp8.calling, "budget", BUDGET_MILLISECONDS, Some(1.0)),
        row("calling thread", fp8.calling, "without FP8", plain.calling, None),
        row("until done", fp8.done, "budget", BUDGET_MILLISECONDS, None),
        row("until done", fp8.done, "without FP8", plain.done, None),
    ])
}

pub fn run(options: &Options) -> Result<Vec<Row>> {
    let mut all = rows::<Fused>(options, "")?;
    all.extend(rows::<Unfused>(options, ", without Fusion")?);
    Ok(all)
}
