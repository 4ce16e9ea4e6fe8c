//! What a model holds, in words and a table, and a block of it timed against the same weights in f32.

mod block;
mod timing;

use std::path::Path;

use anyhow::Result;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8_serve::open;
use comfy_table::presets;
use examples_common::{OnBackend, print, table};

use crate::args::Inspect;
use block::{Block, printable};

/// Layers that are printed where no list is asked for; of more, the first and the number of the others.
const SHOWN: usize = 16;

/// Prints what there is, and runs a part of it.
pub fn inspect(args: &Inspect) -> Result<()> {
    let checkpoint = open(&args.model)?;
    let shown = if args.list { usize::MAX } else { SHOWN };
    print(&describe(&args.model, &checkpoint, shown))?;
    match args.list {
        true => Ok(()),
        false => args.backend.run(env!("CARGO_PKG_NAME"), Timed { args, checkpoint: &checkpoint }),
    }
}

/// What runs on whatever backend.
struct Timed<'a> {
    args: &'a Inspect,
    checkpoint: &'a Checkpoint,
}

impl OnBackend for Timed<'_> {
    type Output = ();

    fn on<B: Fp8Matmul>(self) -> Result<()> {
        let device = B::Device::default();
        let block = Block::<B>::load(self.checkpoint, self.args, &device)?;
        print(&timing::measure(&block, self.args, &device)?)
    }
}

/// The format, the layers, and what they take against bf16.
fn describe(path: &Path, checkpoint: &Checkpoint, shown: usize) -> String {
    let mut text = format!("{}\n{}\n", path.display(), checkpoint.format());
    for warning in checkpoint.warnings() {
        text += &format!("warning: {warning}\n");
    }
    let layers = checkpoint.layers();
    let header = ["layer", "[out, in]", "scales of the weight", "activations", "bytes", "in bf16"];
    let rows = layers.iter().take(shown).map(|layer| {
        let [out, input] = layer.shape;
        [
            printable(&layer.name),
            format!("[{out}, {input}]"),
            format!("{}, {}", layer.weight, layer.scale_dtype),
            layer.activations.to_string(),
            layer.bytes.to_string(),
            in_bf16(layer.shape, layer.bias).to_string(),
        ]
    });
    let table = table(presets::NOTHING, header, rows, &[0, 1, 2, 3]);
    if !layers.is_empty() {
        text += &format!("\n{}\n", table.trim_fmt());
    }
    if layers.len() > shown {
        text += &format!("… and {} more, which --list shows\n", layers.len() - shown);
    }
    let [fp8, bf16] = layers.iter().fold([0, 0], |[fp8, bf16], layer| {
        [fp8 + layer.bytes, bf16 + in_bf16(layer.shape, layer.bias)]
    });
    let others = checkpoint.tensors();
    let plain: u64 = others.iter().map(|tensor| tensor.bytes).sum();
    text += &format!(
        "\n{} layers in FP8: {}, {:.2} of what they take in bf16; {} other tensors: {}\n",
        layers.len(),
        bytes(fp8),
        fp8 as f64 / bf16.max(1) as f64,
        others.len(),
        bytes(plain)
    );
    text
}

/// The bytes of a layer whose weight and bias are bf16.
fn in_bf16([out, input]: [usize; 2], bias: bool) -> u64 {
    2 * (out as u64 * input as u64 + if bias { out as u64 } else { 0 })
}

/// A number of bytes in the unit that suits it.
fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}
