//! Tokens a second, against the same weights in f32.

use std::time::{Duration, Instant};

use anyhow::Result;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::report::ProductReport;
use burn_fp8::{Fp8Matmul, trace};
use comfy_table::presets;

use super::block::Block;
use crate::args::Inspect;

/// A table of tokens a second, and what the activations' quantization changes.
pub fn measure<B: Fp8Matmul>(
    block: &Block<B>,
    args: &Inspect,
    device: &B::Device,
) -> Result<String> {
    B::seed(device, 1);
    // The same layers, dequantized.
    let plain: Vec<_> = block.layers.iter().map(|layer| (layer.weight(), layer.bias())).collect();
    let plain = |x: Tensor<B, 2>| {
        block.with(x, |layer, x| {
            let (weight, bias) = &plain[layer];
            let y = x.matmul(weight.clone());
            match *bias {
                Some(bias) => y + bias.clone().unsqueeze(),
                None => y,
            }
        })
    };
    let budget = Duration::from_millis(args.milliseconds.into());
    let mut rows = vec![];
    let mut ran = String::new();
    for tokens in args.batches() {
        let shape = [tokens, block.d_input()];
        let x = Tensor::<B, 2>::random(shape, Distribution::Normal(0.0, 1.0), device);
        let (y, report) = trace(|| block.forward(x.clone()));
        if let Some(ProductReport { ran: first, .. }) = report.products.first() {
            ran = first.to_string();
        }
        let expected = plain(x.clone());
        let norm = |y: Tensor<B, 2>| y.powf_scalar(2.0).sum().sqrt().into_scalar();
        let norm = |y| burn::tensor::ElementConversion::elem::<f64>(norm(y));
        let difference = norm(y - expected.clone()) / norm(expected);
        // Turn by turn, so that both see the same neighbours on a shared machine.
        let [fp8, f32] =
            times(budget, [&|| wait(block.forward(x.clone())), &|| wait(plain(x.clone()))]);
        let per_second = |time: f64| tokens as f64 / time;
        rows.push([
            tokens.to_string(),
            format!("{:.0}", per_second(fp8)),
            format!("{:.0}", per_second(f32)),
            format!("{:.2}", f32 / fp8),
            format!("{difference:.1e}"),
        ]);
    }
    let header = ["tokens at once", "tokens/s", "in f32", "ratio", "difference"];
    let table = examples_common::table(presets::NOTHING, header, rows, &[]);
    let held = block.bytes();
    let weights: usize =
        block.layers.iter().map(|layer| layer.dims().iter().product::<usize>()).sum();
    Ok(format!(
        "\n{} on {}: {held} bytes, {:.2} of f32; {ran}\n\n{}\n\nRatios above 1 are faster than f32. The difference is that of the outputs, norm by norm: what quantizing activations costs.\n",
        block.name,
        B::name(device),
        held as f64 / (4 * weights) as f64,
        table.trim_fmt(),
    ))
}

/// Waits for a result.
fn wait<B: Fp8Matmul>(y: Tensor<B, 2>) {
    drop(y.into_data());
}

/// The median time of each, in seconds, taken in turns until the time is up for both.
fn times(budget: Duration, runs: [&dyn Fn(); 2]) -> [f64; 2] {
    let mut taken = [vec![], vec![]];
    let start = Instant::now();
    while taken[0].len() < 3 || start.elapsed() < 2 * budget {
        for (run, taken) in runs.iter().zip(&mut taken) {
            let start = Instant::now();
            run();
            taken.push(start.elapsed().as_secs_f64());
        }
    }
    taken.map(|mut taken| {
        taken.sort_by(f64::total_cmp);
        taken[taken.len() / 2]
    })
}
