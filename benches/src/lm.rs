//! A training step of a transformer language model: the example char-lm, in FP8 against f32; and in f32 that joins batch and rows, and that has attention as
//! one operation beside, which are parts of what FP8 gains.

use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use burn_fp8_cpu::Unit;
use char_lm::{
    Moments, Precision, Shape, Size, characters_a_step, different_characters, training_steps,
};

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
    let steps = |name: &str| {
        let precision: Precision = name.parse().expect("a precision of char-lm");
        training_steps::<Fp8Backend<Autodiff<Flex>>>(SIZE, precision, Moments::F32, |_| ())
            .expect("Flex has it")
    };
    let mut high = steps("f32");
    let Shape { layers, width, heads, context, batch, dropout, .. } = SIZE.shape();
    let sizes = [different_characters(), context, batch, layers, heads, width];
    let mut peer: Vec<_> = sizes.iter().map(usize::to_string).collect();
    peer.push(dropout.to_string());
    // Beside PyTorch: what is fastest in f32, and with products in FP8.
    let beside = ["f32-fused", "m=fp8,a=bf16"];
    let row = |name: &str| {
        let mut run = steps(name);
        let title = format!("{}, {} characters, {name}", SIZE.as_str(), characters_a_step(SIZE));
        let target = target(Unit::current()).filter(|_| name == PRECISIONS[0]);
        let (subject, reference) = (Side::new(&title, &mut run), Side::new("f32", &mut high));
        let row = options.compare((GROUP, threads, target), subject, reference);
        let peers = match beside.contains(&name) {
            true => beside_torch(options, (GROUP, threads), (&title, &mut run), ("lm", &peer)),
            false => vec![],
        };
        [vec![row], peers].concat()
    };
    PRECISIONS.into_iter().flat_map(row).collect()
}
