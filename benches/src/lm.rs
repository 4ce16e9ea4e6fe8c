//! A training step of a transformer language model: the example char-lm, in FP8 against f32; and in f32 that joins batch and rows, and that has attention as
//! one operation beside, which are parts of what FP8 gains.

use burn::backend::{Autodiff, Flex};
use burn_fp8::Fp8Backend;
use char_lm::{Moments, Shape, Size, characters_a_step, different_characters, training_steps};

use crate::harness::{Options, Side};
use crate::partner::beside_torch;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "lm";

const SIZE: Size = Size::Medium;

/// Precisions: as result files name them, and as char-lm does.
const PRECISIONS: [(&str, &str); 12] = [
    ("fp8-current", "m=fp8,fused=off"),
    ("m=bf16,a=high", "m=bf16,a=high"),
    ("m=bf16,a=bf16", "m=bf16,a=bf16"),
    ("fp8-delayed", "m=fp8_delayed,fused=off"),
    ("fp8-layers", "layers=fp8,fused=off"),
    ("c=bf16,o=f32,m=fp8", "c=bf16,o=f32,m=fp8,fused=off"),
    ("c=bf16,o=f32,m=fp8,a=high", "c=bf16,o=f32,m=fp8"),
    BESIDE[1],
    BESIDE[2],
    ("m=fp8,a=fp8", "m=fp8,a=fp8"),
    ("f32-joined", "join=on"),
    BESIDE[0],
];

/// Those that are measured beside PyTorch, too, and without dropout: what is fastest in f32, what the type alone gives, and with attention in bf16.
const BESIDE: [(&str, &str); 3] =
    [("f32-fused", "a=high"), ("m=fp8,a=high", "m=fp8"), ("m=fp8,a=bf16", "m=fp8,a=bf16")];

/// Measures a step in each precision, beside one in f32.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| measure(threads, options))
}

fn measure(threads: usize, options: &Options) -> Vec<Row> {
    let with_dropout = in_shape(SIZE.shape(), &PRECISIONS, threads, options);
    let shape = Shape { dropout: 0.0, ..SIZE.shape() };
    let without = in_shape(shape, &BESIDE, threads, options);
    [with_dropout, without].concat()
}

fn in_shape(
    shape: Shape,
    precisions: &[(&str, &str)],
    threads: usize,
    options: &Options,
) -> Vec<Row> {
    let steps = |precision: &str| {
        let precision = precision.parse().expect("a precision of char-lm");
        training_steps::<Fp8Backend<Autodiff<Flex>>>(shape, precision, Moments::F32, |_| ())
            .expect("Flex has it")
    };
    let Shape { layers, width, heads, context, batch, dropout, .. } = shape;
    let without = if dropout > 0.0 { "" } else { ", without dropout" };
    let (mut high, high_name) = (steps("f32"), format!("f32{without}"));
    let sizes = [different_characters(), context, batch, layers, heads, width];
    let mut peer: Vec<_> = sizes.iter().map(usize::to_string).collect();
    peer.push(dropout.to_string());
    let characters = characters_a_step(SIZE);
    let row = |(name, precision): &(&str, &str)| {
        let mut run = steps(precision);
        let title = format!("{}, {characters} characters, {name}{without}", SIZE.as_str());
        let (subject, reference) = (Side::new(&title, &mut run), Side::new(&high_name, &mut high));
        let row = options.compare((GROUP, threads, None), subject, reference);
        let peers = match BESIDE.iter().any(|(beside, _)| beside == name) {
            true => beside_torch(options, (GROUP, threads), (&title, &mut run), ("lm", &peer)),
            false => vec![],
        };
        let named = |row: Row| Row { reference: format!("{}{without}", row.reference), ..row };
        [vec![row], peers.into_iter().map(named).collect()].concat()
    };
    precisions.iter().flat_map(row).collect()
}
