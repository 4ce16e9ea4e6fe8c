//! Where FP8 begins to pay: its speed over that of bf16, over M, K and N, for a forward product and for a training step.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use burn::backend::Autodiff;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_fp8::{Execution, Fp8Backend, Fp8Config};

use crate::device::{Side, compare, primitive, random};
use crate::linear::Layer;
use crate::options::{Fused, Options, Sink};
use crate::rows::Row;

pub const GROUP: &str = "gpu-break-even";

const SIZES: [usize; 5] = [1024, 2048, 4096, 8192, 16384];
const QUICK_SIZES: [usize; 3] = [1024, 4096, 16384];
/// A shape is measured a few times only: there are 125 of them.
const SAMPLES: usize = 3;

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    let start = Instant::now();
    let is_over = || start.elapsed() > options.time;
    let shapes = shapes(if options.quick { &QUICK_SIZES[..] } else { &SIZES[..] });
    for (measured, &shape) in shapes.iter().enumerate() {
        if is_over() {
            let (all, seconds) = (shapes.len(), options.time.as_secs());
            println!("{measured} of {all} shapes measured in {seconds} s; --seconds allows more");
            break;
        }
        measure(options, sink, shape, &is_over)?;
    }
    Ok(())
}

/// All M, K, N; the cubes first, then by size, so that a run that is cut short has seen the whole range.
fn shapes(sizes: &[usize]) -> Vec<[usize; 3]> {
    let all =
        |size: usize| sizes.iter().flat_map(move |&k| sizes.iter().map(move |&n| [size, k, n]));
    let mut shapes: Vec<_> = sizes.iter().flat_map(|&m| all(m)).collect();
    shapes.sort_by_key(|&[m, k, n]| ((m, m) != (k, n), m * k * n));
    shapes
}

fn measure(
    options: &Options,
    sink: &mut Sink,
    shape @ [m, k, n]: [usize; 3],
    is_over: &dyn Fn() -> bool,
) -> Result<()> {
    let native = Fp8Config::default().with_execution(Execution::Native);
    let flops = 2.0 * m as f64 * k as f64 * n as f64;
    {
        let sets = options.gpu.sets(2 * (m * k + k * n))?.min(4);
        let inputs: Vec<_> = (0..sets).map(|_| [random::<Fused>([m, k]), random([k, n])]).collect();
        let mut bf16 = |set: usize| {
            let [x, w] = inputs[set % sets].clone();
            black_box(x.matmul(w));
            Ok(())
        };
        // The same tensors, seen through the decorator.
        let decorated = |tensor: Tensor<Fused, 2>| {
            let tensor = TensorPrimitive::Float(primitive(tensor));
            Tensor::<Fp8Backend<Fused>, 2>::from_primitive(tensor)
        };
        let fp8_inputs: Vec<_> = inputs.iter().cloned().map(|pair| pair.map(decorated)).collect();
        let mut fp8 = |set: usize| {
            let [x, w] = fp8_inputs[set % sets].clone();
            black_box(native.scope(|| x.matmul(w)));
            Ok(())
        };
        let name = format!("{m}×{k}×{n} forward");
        sink.add([pair(options, name, flops, &mut fp8, &mut bf16)?])?;
    }
    if !is_over() {
        let layer = Layer::<Fused>::random(shape);
        let mut bf16 = |_| {
            layer.step::<Autodiff<Fused>>();
            Ok(())
        };
        let mut fp8 = |_| {
            native.scope(|| layer.step::<Fp8Backend<Autodiff<Fused>>>());
            Ok(())
        };
        let name = format!("{m}×{k}×{n} forward and backward");
        sink.add([pair(options, name, 3.0 * flops, &mut fp8, &mut bf16)?])?;
    }
    Ok(())
}

fn pair(
    options: &Options,
    name: String,
    flops: f64,
    fp8: &mut dyn FnMut(usize) -> Result<()>,
    bf16: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Row> {
    let subject = Side::new(&name, fp8).with_flops(flops);
    let reference = Side::new("the same in bf16", bf16);
    compare::<Fused>(&options.gpu, (GROUP, None), subject, reference, SAMPLES)
}

#[cfg(test)]
mod tests {
    use super::{SIZES, shapes};

    #[test]
    fn every_shape_comes_once_and_cubes_first() {
        let shapes = shapes(&SIZES);
        assert_eq!(shapes.len(), 125);
        assert_eq!(shapes[..5], SIZES.map(|size| [size; 3]));
        assert_eq!(shapes.iter().collect::<std::collections::BTreeSet<_>>().len(), 125);
    }
}
