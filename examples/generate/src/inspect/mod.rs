//! What a model holds, in words and a table.

use std::path::Path;

use burn_fp8::checkpoint::Checkpoint;
use comfy_table::presets;
use examples_common::table;

/// Layers that are printed; of more, the first and the number of the others.
const SHOWN: usize = 16;

/// The format, the layers, and what they take against bf16.
pub fn describe(path: &Path, checkpoint: &Checkpoint) -> String {
    let mut text = format!("{}\n{}\n", path.display(), checkpoint.format());
    for warning in checkpoint.warnings() {
        text += &format!("warning: {warning}\n");
    }
    let layers = checkpoint.layers();
    let header = ["layer", "[out, in]", "scales of the weight", "activations", "bytes", "in bf16"];
    let rows = layers.iter().take(SHOWN).map(|layer| {
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
    text += &format!("\n{}\n", table.trim_fmt());
    if layers.len() > SHOWN {
        text += &format!("… and {} more\n", layers.len() - SHOWN);
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

/// A name of the file as a terminal may see it.
pub fn printable(name: &str) -> String {
    name.escape_debug().to_string()
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
