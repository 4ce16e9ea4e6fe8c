//! How long one transformer block takes: the table that libraries of FP8 layers publish.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::report::{Implementation, ProductReport};
use burn_fp8::{Capability, Fp8Matmul, Report, trace};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::json;

use crate::args::Timing;
use crate::child::Origin;
use crate::model::{Block, future};
use crate::precision::{Precision, Setup, for_compute};
use crate::run;
use crate::size::Shape;

/// What is timed: a name for the table, what it computes with, and whether its layers are FP8 layers.
const VARIANTS: [(&str, &str, Layers); 5] = [
    ("f32", "p=f32,c=f32,o=f32,m=high", Layers::Linear),
    ("mixed bf16", "p=f32,c=bf16,o=bf16,m=high", Layers::Linear),
    ("mixed bf16 + FP8, current scaling", "p=f32,c=bf16,o=bf16,m=fp8", Layers::Linear),
    ("mixed bf16 + FP8, delayed scaling", "p=f32,c=bf16,o=bf16,m=fp8_delayed", Layers::Linear),
    ("mixed bf16 + FP8 layers", "p=f32,c=bf16,o=bf16,m=fp8", Layers::Fp8),
];
/// Runs before the first that counts: caches, compiled kernels, amax histories.
const WARM_UP: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Layers {
    Linear,
    Fp8,
}

/// One variant with its times, in milliseconds.
struct Timed<B: AutodiffBackend> {
    name: &'static str,
    setup: Setup,
    block: Block<B>,
    forward: Vec<f64>,
    both: Vec<f64>,
    ran: Report,
}

/// Times one block of the size's model, writes `block.md` and `block.json`, and returns the table.
///
/// # Errors
/// Where the device cannot compute in bf16, or a file cannot be written.
pub fn timing<B>(args: &Timing) -> Result<String>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the folder {}", args.out.display()))?;
    let device = B::Device::default();
    let mut shape = args.size.shape();
    // Random numbers cost the same in every precision, and are none of its merits.
    shape.dropout = 0.0;
    shape.batch = args.batch.map_or(shape.batch, |batch| batch as usize);
    B::seed(&device, 1);
    let block = Block::<B>::new(&shape, &device);
    let input = [shape.batch, shape.context, shape.width];
    let x = Tensor::<B, 3>::random(input, Distribution::Normal(0.0, 1.0), &device);

    let mut timed = vec![];
    for (name, policy, layers) in VARIANTS {
        let precision: Precision = match policy.parse() {
            Ok(precision) => precision,
            Err(error) => bail!("{policy}: {error}"),
        };
        let setup = Setup::new(precision, None)?;
        setup.check::<B>(&device)?;
        // A copy of its own, so that no state is shared.
        let block = block.clone().fork(&device);
        let block = match layers {
            Layers::Linear => block,
            Layers::Fp8 => block.with_fp8_layers(&Fp8DotGeneralConfig::new()),
        };
        let mut variant =
            Timed { name, setup, block, forward: vec![], both: vec![], ran: Report::default() };
        // Tracing takes time of its own.
        variant.ran = trace(|| variant.time(&x, Pass::Both, &device)).1;
        timed.push(variant);
    }
    for round in 0..WARM_UP + args.rounds as usize {
        // One after the other in each round, so that what disturbs the machine disturbs all.
        for variant in &mut timed {
            let forward = variant.time(&x, Pass::Forward, &device);
            let both = variant.time(&x, Pass::Both, &device);
            if round >= WARM_UP {
                variant.forward.push(forward);
                variant.both.push(both);
            }
        }
    }
    report::<B>(args, &shape, timed)
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Both,
}

impl<B: AutodiffBackend + Fp8Matmul> Timed<B> {
    /// How many of its products were in FP8, and how many of these on tensor cores.
    fn fp8_products(&self) -> [usize; 2] {
        let native =
            |product: &&ProductReport| matches!(product.ran, Implementation::Native { .. });
        [self.ran.fp8().count(), self.ran.fp8().filter(native).count()]
    }

    /// Milliseconds of a forward pass as in training, or of one with its backward pass, casts of the weights included. What an
    /// optimizer does is not, and so not that of FP8 layers' state either.
    fn time(&self, x: &Tensor<B, 3>, pass: Pass, device: &B::Device) -> f64 {
        let future = future::<B>(x.dims()[1], device);
        let x = x.clone().detach().require_grad();
        B::sync(device).expect("the device runs what it was given");
        let start = Instant::now();
        self.setup.step(|| {
            let block = for_compute::<B, _>(&self.block);
            let y = block.forward(burn_fp8::policy::cast_to_compute(x), &future);
            if pass == Pass::Both {
                drop(y.sum().backward());
            }
        });
        B::sync(device).expect("the device runs what it was given");
        start.elapsed().as_secs_f64() * 1e3
    }
}

/// The median; NaN of nothing.
fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable_by(f64::total_cmp);
    match times.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => times[count / 2],
        count => (times[count / 2 - 1] + times[count / 2]) / 2.0,
    }
}

fn report<B: AutodiffBackend + Fp8Matmul>(
    args: &Timing,
    shape: &Shape,
    timed: Vec<Timed<B>>,
) -> Result<String>
where
    B::InnerBackend: Fp8Matmul,
{
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "one GPT block",
        "forward, ms",
        "forward + backward, ms",
        "against f32",
        "against mixed bf16",
    ]);
    let both = |index: usize| timed.get(index).map_or(f64::NAN, |variant| median(&variant.both));
    let (f32_time, bf16_time) = (both(0), both(1));
    for variant in &timed {
        let time = median(&variant.both);
        table.add_row([
            variant.name.to_owned(),
            format!("{:.2}", median(&variant.forward)),
            format!("{time:.2}"),
            format!("{:.2}×", f32_time / time),
            format!("{:.2}×", bf16_time / time),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let capability = B::fp8_capability(&B::Device::default());
    let origin = Origin::here(args.backend);
    let &Shape { batch, context, width, heads, .. } = shape;
    let emulation: String = match capability {
        Capability::FakeQuantized { .. } => {
            " FP8 is emulated here: its rows show what emulation costs, not what tensor cores win."
                .into()
        }
        _ => timed
            .iter()
            .map(|variant| (variant.name, variant.fp8_products()))
            .filter(|(_, [fp8, _])| *fp8 > 0)
            .map(|(name, [fp8, native])| {
                format!("\n\n{name}: {native} of {fp8} FP8 products on tensor cores.")
            })
            .collect(),
    };
    let text = format!(
        "{table}\n\nBatch {batch}, context {context}, width {width}, {heads} heads, no dropout; medians of {} rounds, the variants one after \
         the other in each; weights are cast in every pass. More than 1× is faster, by forward + backward. {capability}.{emulation}\n\n{origin}.\n",
        args.rounds
    );
    let rows = timed.iter().map(|variant| {
        json!({
            "name": variant.name,
            "forward_ms": median(&variant.forward),
            "forward_backward_ms": median(&variant.both),
            "fp8_products": variant.fp8_products()[0],
            "native_products": variant.fp8_products()[1],
            "all_forward_ms": variant.forward,
            "all_forward_backward_ms": variant.both,
        })
    });
    let json = json!({
        "origin": origin,
        "size": args.size.as_str(),
        "batch": batch,
        "context": context,
        "width": width,
        "heads": heads,
        "rounds": args.rounds,
        "fp8": capability.to_string(),
        "rows": rows.collect::<Vec<_>>(),
    });
    run::write_json(&args.out.join("block.json"), &json)?;
    let path = args.out.join("block.md");
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(format!("{text}\n{}\n", args.out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
