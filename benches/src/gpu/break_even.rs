//! Where FP8 begins to pay: its speed over that of bf16, over M, K and N, for a forward product and for a training step.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::backend::Autodiff;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_fp8::{Execution, Fp8Backend, Fp8Config};
use examples_common::charts;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use crate::device::{Side, compare, primitive, random};
use crate::linear::Layer;
use crate::options::{Fused, Options, Sink};
use crate::rows::Row;

pub const GROUP: &str = "gpu-break-even";

const SIZES: [usize; 5] = [1024, 2048, 4096, 8192, 16384];
const QUICK_SIZES: [usize; 3] = [1024, 4096, 16384];
/// A shape is measured a few times only: there are 125 of them.
const SAMPLES: usize = 3;

/// A line of the table.
#[derive(Serialize)]
struct Shape {
    m: usize,
    k: usize,
    n: usize,
    /// Milliseconds of a forward product, with both operands quantized.
    fp8_forward_ms: f64,
    bf16_forward_ms: f64,
    forward_ratio: f64,
    /// Milliseconds of forward and backward, with current scaling; none where there was no time for it.
    fp8_training_ms: Option<f64>,
    bf16_training_ms: Option<f64>,
    training_ratio: Option<f64>,
}

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    let sizes = if options.quick { &QUICK_SIZES[..] } else { &SIZES[..] };
    let start = Instant::now();
    let is_over = || start.elapsed() > options.time;
    let mut table = vec![];
    let shapes = shapes(sizes);
    fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    for &shape in &shapes {
        if is_over() {
            println!(
                "{} of {} shapes measured in {} s; --seconds allows more",
                table.len(),
                shapes.len(),
                options.time.as_secs()
            );
            break;
        }
        let line = measure(options, sink, shape, &is_over)?;
        let training = line.training_ratio.map_or("no time".into(), |ratio| format!("{ratio:.2}"));
        println!(
            "{}×{}×{}: forward {:.2}, training {training}",
            line.m, line.k, line.n, line.forward_ratio
        );
        table.push(line);
        // After each: there may be no other.
        write_csv(&options.out.join("break_even.csv"), &table)?;
    }
    for (name, title, ratio) in [
        ("forward", "Forward product", (|shape| Some(shape.forward_ratio)) as Ratio),
        ("training", "Forward and backward", |shape| shape.training_ratio),
    ] {
        let path = options.out.join(format!("break_even_{name}.svg"));
        let title = format!("{title}: speed of FP8 over bf16, current scaling");
        let svg = draw(&title, sizes, &table, ratio)?;
        fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// What a picture shows of a shape.
type Ratio = fn(&Shape) -> Option<f64>;

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
) -> Result<Shape> {
    let native = Fp8Config::default().with_execution(Execution::Native);
    let flops = 2.0 * m as f64 * k as f64 * n as f64;
    let forward = {
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
        pair(options, format!("{m}×{k}×{n} forward"), flops, &mut fp8, &mut bf16)?
    };
    sink.add([forward.clone()])?;
    let training = if is_over() {
        None
    } else {
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
        let training = pair(options, name, 3.0 * flops, &mut fp8, &mut bf16)?;
        sink.add([training.clone()])?;
        Some(training)
    };
    Ok(Shape {
        m,
        k,
        n,
        fp8_forward_ms: forward.milliseconds,
        bf16_forward_ms: forward.reference_milliseconds,
        forward_ratio: forward.ratio,
        fp8_training_ms: training.as_ref().map(|row| row.milliseconds),
        bf16_training_ms: training.as_ref().map(|row| row.reference_milliseconds),
        training_ratio: training.as_ref().map(|row| row.ratio),
    })
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

fn write_csv(path: &Path, table: &[Shape]) -> Result<()> {
    let mut writer =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    for line in table {
        writer.serialize(line)?;
    }
    writer.flush().with_context(|| format!("cannot write {}", path.display()))
}

const CELL: i32 = 62;
const MARGIN: i32 = 70;

/// A panel for each N, with M down and K across; what was not measured stays empty.
fn draw(title: &str, sizes: &[usize], table: &[Shape], ratio: Ratio) -> Result<String> {
    let count = sizes.len() as i32;
    let panel = MARGIN + count * CELL;
    let size = ((count * panel + MARGIN / 2) as u32, (panel + MARGIN) as u32);
    charts::svg("the break-even table", size, |area| {
        let centred = Pos::new(HPos::Center, VPos::Center);
        let text = |points| charts::text(points).pos(centred);
        area.draw_text(title, &text(18), (size.0 as i32 / 2, 18))?;
        for (column, &n) in sizes.iter().enumerate() {
            let (left, top) = (MARGIN + column as i32 * panel, MARGIN);
            let middle = count * CELL / 2;
            area.draw_text(&format!("N = {n}, K across"), &text(13), (left + middle, top - 26))?;
            for (i, &k) in sizes.iter().enumerate() {
                let x = left + i as i32 * CELL + CELL / 2;
                area.draw_text(&k.to_string(), &text(11), (x, top - 9))?;
            }
            for (j, &m) in sizes.iter().enumerate() {
                let y = top + j as i32 * CELL + CELL / 2;
                let label = if column == 0 { format!("M = {m}") } else { m.to_string() };
                area.draw_text(&label, &text(11), (left - 32, y))?;
                for (i, &k) in sizes.iter().enumerate() {
                    let corner = (left + i as i32 * CELL, top + j as i32 * CELL);
                    let shape = table.iter().find(|s| [s.m, s.k, s.n] == [m, k, n]);
                    let Some(ratio) = shape.and_then(ratio) else { continue };
                    let opposite = (corner.0 + CELL - 2, corner.1 + CELL - 2);
                    area.draw(&Rectangle::new([corner, opposite], colour(ratio).filled()))?;
                    let centre = (corner.0 + CELL / 2 - 1, corner.1 + CELL / 2 - 1);
                    area.draw_text(&format!("{ratio:.2}"), &text(14), centre)?;
                }
            }
        }
        Ok(())
    })
}

/// From vermilion at half the speed over white at the same to blue at twice: told apart by colour-blind readers too.
fn colour(ratio: f64) -> RGBColor {
    let (end, share) = match ratio.log2().clamp(-1.0, 1.0) {
        faster if faster >= 0.0 => ((86.0, 180.0, 233.0), faster),
        slower => ((230.0, 120.0, 60.0), -slower),
    };
    let mix = |end: f64| (255.0 + (end - 255.0) * share) as u8;
    RGBColor(mix(end.0), mix(end.1), mix(end.2))
}

#[cfg(test)]
mod tests {
    use super::{SIZES, Shape, draw, shapes, write_csv};

    fn line([m, k, n]: [usize; 3], ratio: f64) -> Shape {
        Shape {
            m,
            k,
            n,
            fp8_forward_ms: 1.0,
            bf16_forward_ms: ratio,
            forward_ratio: ratio,
            fp8_training_ms: Some(3.0),
            bf16_training_ms: Some(3.0 * ratio),
            training_ratio: Some(ratio),
        }
    }

    #[test]
    fn every_shape_comes_once_and_cubes_first() {
        let shapes = shapes(&SIZES);
        assert_eq!(shapes.len(), 125);
        assert_eq!(shapes[..5], SIZES.map(|size| [size; 3]));
        assert_eq!(shapes.iter().collect::<std::collections::BTreeSet<_>>().len(), 125);
    }

    #[test]
    fn the_table_is_drawn_with_the_shapes_measured() {
        let cut_short = Shape { training_ratio: None, ..line([4096; 3], 1.25) };
        let table = [line([1024, 2048, 4096], 0.75), line([16384; 3], 1.5), cut_short];
        let svg = draw("title", &SIZES, &table, |shape| shape.training_ratio).unwrap();
        assert!(!svg.contains("1.25"));
        assert!(svg.contains("0.75") && svg.contains("1.50") && svg.contains("N = 16384"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        write_csv(&path, &table).unwrap();
        let csv = std::fs::read_to_string(path).unwrap();
        assert!(csv.starts_with("m,k,n,fp8_forward_ms,"), "{csv}");
        assert!(csv.contains("1024,2048,4096,1.0,0.75,0.75,3.0,2.25,0.75"), "{csv}");
    }
}
