//! A training step of a transformer language model: the example char-lm, in FP8 against f32; and in f32 that joins batch and rows, and that has attention as
//! one operation beside, which are parts of what FP8 gains.

use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use burn_fp8_cpu::Unit;
use char_lm::{
    Moments, Part, Precision, Shape, Size, characters_a_step, different_characters, training_parts,
    training_steps,
};
use comfy_table::{CellAlignment, Table};

use crate::harness::{Options, Side};
use crate::partner::beside_torch;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "lm";

const SIZE: Size = Size::Medium;

/// Precisions by the names that char-lm gives them.
const PRECISIONS: [&str; 11] = [
    "fp8-current",
    "m=bf16,a=high",
    "m=bf16,a=bf16",
    "fp8-delayed",
    "fp8-layers",
    "c=bf16,o=f32,m=fp8",
    "m=fp8,a=high",
    "m=fp8,a=bf16",
    "m=fp8,a=fp8",
    "f32-joined",
    "f32-fused",
];

/// Those that are measured beside PyTorch, too, and without dropout: what is fastest in f32, and with products in FP8.
const BESIDE: [&str; 2] = ["f32-fused", "m=fp8,a=bf16"];

/// The one whose parts are measured by themselves.
const IN_PARTS: &str = BESIDE[1];

/// What current scaling is to reach.
fn target(unit: Unit) -> Option<f64> {
    match unit {
        Unit::AmxBf16 => Some(1.5),
        Unit::Avx512Bf16 => Some(1.1),
        Unit::Portable => None,
    }
}

/// Measures a step in each precision, beside one in f32.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| measure(threads, options))
}

fn measure(threads: usize, options: &Options) -> Vec<Row> {
    let with_dropout = in_shape(SIZE.shape(), &PRECISIONS, threads, options);
    let shape = Shape { dropout: 0.0, ..SIZE.shape() };
    let without = in_shape(shape, &BESIDE, threads, options);
    [with_dropout, in_parts(threads, options), without].concat()
}

fn in_shape(shape: Shape, precisions: &[&str], threads: usize, options: &Options) -> Vec<Row> {
    let steps = |name: &str| {
        training_steps::<Fp8Backend<Autodiff<Flex>>>(shape, parse(name), Moments::F32, |_| ())
            .expect("Flex has it")
    };
    let Shape { layers, width, heads, context, batch, dropout, .. } = shape;
    let (usual, without) = (dropout > 0.0, if dropout > 0.0 { "" } else { ", without dropout" });
    let (mut high, high_name) = (steps("f32"), format!("f32{without}"));
    let sizes = [different_characters(), context, batch, layers, heads, width];
    let mut peer: Vec<_> = sizes.iter().map(usize::to_string).collect();
    peer.push(dropout.to_string());
    let row = |name: &&str| {
        let mut run = steps(name);
        let title = format!("{}{without}", title(name));
        let target = target(Unit::current()).filter(|_| usual && *name == PRECISIONS[0]);
        let (subject, reference) = (Side::new(&title, &mut run), Side::new(&high_name, &mut high));
        let row = options.compare((GROUP, threads, target), subject, reference);
        let peers = match BESIDE.contains(name) {
            true => beside_torch(options, (GROUP, threads), (&title, &mut run), ("lm", &peer)),
            false => vec![],
        };
        let named = |row: Row| Row { reference: format!("{}{without}", row.reference), ..row };
        [vec![row], peers.into_iter().map(named).collect()].concat()
    };
    precisions.iter().flat_map(row).collect()
}

fn parse(name: &str) -> Precision {
    name.parse().expect("a precision of char-lm")
}

fn title(name: &str) -> String {
    format!("{}, {} characters, {name}", SIZE.as_str(), characters_a_step(SIZE))
}

/// The parts of a step, each beside the same part in f32.
fn in_parts(threads: usize, options: &Options) -> Vec<Row> {
    let parts = |name: &str| {
        training_parts::<Fp8Backend<Autodiff<Flex>>>(SIZE.shape(), parse(name))
            .expect("Flex has it")
    };
    let row = |(mut part, mut high): (Part, Part)| {
        let titles = [title(IN_PARTS), "f32".into()].map(|name| of_part(&name, part.name));
        let subject = Side::new(&titles[0], &mut part.run).prepared(&mut part.before);
        let reference = Side::new(&titles[1], &mut high.run).prepared(&mut high.before);
        options.compare((GROUP, threads, None), subject, reference)
    };
    parts(IN_PARTS).into_iter().zip(parts("f32")).map(row).collect()
}

fn of_part(step: &str, part: &str) -> String {
    format!("{step}: {part}")
}

/// Whether it is of a part of a step.
pub fn is_part(row: &Row) -> bool {
    row.reference.starts_with(&of_part("f32", ""))
}

/// Where the time of a step goes: its parts as shares of it, and what they leave; none where they were not measured.
pub fn shares(rows: &[Row], preset: &str) -> Option<Table> {
    let mut table = Table::new();
    table.load_preset(preset).set_header([
        "step",
        "threads",
        "ms",
        "products",
        "attention",
        "optimizer",
        "the rest",
    ]);
    let whole = title(IN_PARTS);
    for step in rows.iter().filter(|row| row.name == whole && row.reference == "f32") {
        let part = |name: &&str| {
            let title = of_part(&whole, name);
            rows.iter().find(|row| row.name == title && row.threads == step.threads)
        };
        let parts: Option<Vec<_>> =
            ["products", "attention", "optimizer"].iter().map(part).collect();
        let parts = parts?;
        let own = |row: &Row| row.milliseconds;
        let high = |row: &Row| row.reference_milliseconds;
        for (name, time) in [(&step.name, &own as &dyn Fn(&Row) -> f64), (&step.reference, &high)] {
            let times = parts.iter().map(|row| time(row));
            let rest = time(step) - times.clone().sum::<f64>();
            let all = time(step);
            let share = |time: f64| format!("{time:.0} ms, {:.0}%", 100.0 * time / all);
            let cells = [name.clone(), step.threads.to_string(), format!("{:.0}", time(step))];
            table.add_row(cells.into_iter().chain(times.chain([rest]).map(share)));
        }
    }
    table.column_iter_mut().skip(1).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
    (!table.is_empty()).then_some(table)
}
