//! How long one transformer block takes: the table that libraries of FP8 layers publish.

use std::time::Instant;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::report::{Implementation, ProductReport};
use burn_fp8::{Capability, Fp8Matmul, Report, trace};
use burn_fp8_train::policy::{cast_module_to_compute, cast_to_compute};
use comfy_table::presets;
use examples_common::{Origin, table, write, write_json};
use serde::{Deserialize, Serialize};
use statrs::statistics::{Data, OrderStatistics};

use crate::args::Timing;
use crate::model::{Block, future};
use crate::precision::{Precision, Setup};
use crate::run::{self, PROGRAM};
use crate::size::Size;

/// What is timed: a name for the table, what it computes with, and whether its layers are FP8 layers.
const VARIANTS: [(&str, &str, bool); 7] = [
    ("f32", "p=f32,c=f32,o=f32,m=high", false),
    ("mixed bf16", "p=f32,c=bf16,o=bf16,m=high", false),
    ("mixed bf16 + FP8, current scaling", "p=f32,c=bf16,o=bf16,m=fp8", false),
    ("mixed bf16 + FP8, delayed scaling", "p=f32,c=bf16,o=bf16,m=fp8_delayed", false),
    ("mixed bf16 + FP8 layers", "p=f32,c=bf16,o=bf16,m=fp8", true),
    ("f32, products and attention in bf16", "p=f32,c=f32,o=f32,m=bf16,a=bf16", false),
    ("f32, products in FP8, attention in bf16", "p=f32,c=f32,o=f32,m=fp8,a=bf16", false),
];
/// Runs before the first that counts: caches, compiled kernels, amax histories.
const WARM_UP: usize = 3;

/// A block to be timed, and what was timed of it.
struct Variant<B: AutodiffBackend> {
    setup: Setup,
    block: Block<B>,
    row: Row,
}

/// What was timed of one variant.
#[derive(Default, Serialize, Deserialize)]
struct Row {
    name: String,
    /// Medians, in milliseconds.
    forward_ms: f64,
    forward_backward_ms: f64,
    /// Of its products, those in FP8; and of these, those on tensor cores or a matrix unit. None in a file from before they were counted.
    fp8_products: Option<usize>,
    native_products: Option<usize>,
    /// Each round.
    all_forward_ms: Vec<f64>,
    all_forward_backward_ms: Vec<f64>,
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
    run::make_folder(&args.out)?;
    let device = B::Device::default();
    let mut shape = args.size.shape();
    // Random numbers cost the same in every precision, and are none of its merits.
    shape.dropout = 0.0;
    shape.batch = args.batch.map_or(shape.batch, |batch| batch as usize);
    B::seed(&device, 1);
    let block = Block::<B>::new(&shape, &device);
    let input = [shape.batch, shape.context, shape.width];
    let x = Tensor::<B, 3>::random(input, Distribution::Normal(0.0, 1.0), &device);

    let variant = |(name, policy, fp8_layers): (&str, &str, bool)| {
        let precision = policy.parse::<Precision>().map_err(anyhow::Error::msg)?;
        let setup = Setup::new(precision, None)?;
        setup.check::<B>(&device)?;
        // A copy of its own, so that no state is shared.
        let mut block = block.clone().fork(&device);
        if fp8_layers {
            block = block.with_fp8_layers(&Fp8DotGeneralConfig::new());
        }
        let row = Row { name: name.into(), ..Row::default() };
        let mut variant = Variant { setup, block, row };
        // Tracing takes time of its own.
        variant.count(&trace(|| variant.time(&x, Pass::Both, &device)).1);
        anyhow::Ok(variant)
    };
    let mut variants = VARIANTS.into_iter().map(variant).collect::<Result<Vec<_>>>()?;
    for round in 0..WARM_UP + args.rounds as usize {
        // One after the other in each round, so that what disturbs the machine disturbs all.
        for variant in &mut variants {
            let forward = variant.time(&x, Pass::Forward, &device);
            let both = variant.time(&x, Pass::Both, &device);
            if round >= WARM_UP {
                variant.row.all_forward_ms.push(forward);
                variant.row.all_forward_backward_ms.push(both);
            }
        }
    }
    let median = |times: &[f64]| Data::new(times.to_vec()).median();
    let rows = variants.into_iter().map(|Variant { row, .. }| Row {
        forward_ms: median(&row.all_forward_ms),
        forward_backward_ms: median(&row.all_forward_backward_ms),
        ..row
    });
    let capability = B::fp8_capability(&device, None);
    let times = Times {
        origin: Origin::here(PROGRAM, &["--out"]).with_backend(args.backend),
        size: args.size,
        batch: shape.batch,
        context: shape.context,
        width: shape.width,
        heads: shape.heads,
        rounds: args.rounds as usize,
        is_emulated: matches!(capability, Capability::FakeQuantized { .. }),
        fp8: capability.to_string(),
        rows: rows.collect(),
    };
    let text = times.markdown();
    write_json(&args.out.join("block.json"), &times)?;
    write(&args.out.join("block.md"), &text)?;
    Ok(format!("{text}\n{}\n", args.out.display()))
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Forward,
    Both,
}

impl<B: AutodiffBackend + Fp8Matmul> Variant<B> {
    /// Counts its products in FP8, and those of them on tensor cores or a matrix unit.
    fn count(&mut self, ran: &Report) {
        let native = |product: &&ProductReport| {
            matches!(product.ran, Implementation::Native { .. } | Implementation::MatrixUnit(_))
        };
        self.row.fp8_products = Some(ran.fp8().count());
        self.row.native_products = Some(ran.fp8().filter(native).count());
    }

    /// Milliseconds of a forward pass as in training, or of one with its backward pass, casts of the weights included. What an
    /// optimizer does is not, and so not that of FP8 layers' state either.
    fn time(&self, x: &Tensor<B, 3>, pass: Pass, device: &B::Device) -> f64 {
        let future = future::<B>(x.dims()[1], device);
        let x = x.clone().detach().require_grad();
        B::sync(device).expect("the device runs what it was given");
        let start = Instant::now();
        self.setup.step(|| {
            let block = cast_module_to_compute(&self.block);
            let y = block.forward(cast_to_compute(x), &future);
            if pass == Pass::Both {
                drop(y.sum().backward());
            }
        });
        B::sync(device).expect("the device runs what it was given");
        start.elapsed().as_secs_f64() * 1e3
    }
}

/// All variants, with what they were timed on: `block.json`.
#[derive(Serialize, Deserialize)]
struct Times {
    origin: Origin,
    size: Size,
    batch: usize,
    context: usize,
    width: usize,
    heads: usize,
    rounds: usize,
    /// What the device can do, in words, and whether that is to emulate FP8.
    fp8: String,
    is_emulated: bool,
    /// In f32, in mixed bf16, and then the others.
    rows: Vec<Row>,
}

impl Times {
    /// The table with what it needs to be read, as Markdown.
    fn markdown(&self) -> String {
        let Self { origin, batch, context, width, heads, rounds, fp8, .. } = self;
        let header = [
            "one GPT block",
            "forward, ms",
            "forward + backward, ms",
            "against f32",
            "against mixed bf16",
        ];
        let both =
            |index| self.rows.get(index).map_or(f64::NAN, |row: &Row| row.forward_backward_ms);
        let (f32_time, bf16_time) = (both(0), both(1));
        let rows = self.rows.iter().map(|row| {
            [
                row.name.clone(),
                format!("{:.2}", row.forward_ms),
                format!("{:.2}", row.forward_backward_ms),
                format!("{:.2}×", f32_time / row.forward_backward_ms),
                format!("{:.2}×", bf16_time / row.forward_backward_ms),
            ]
        });
        let table = table(presets::ASCII_MARKDOWN, header, rows, &[0]);
        format!(
            "{table}\n\nBatch {batch}, context {context}, width {width}, {heads} heads, no dropout; medians of {rounds} rounds, the variants one after \
             the other in each; weights are cast in every pass. More than 1× is faster, by forward + backward. {fp8}.{}\n\n{origin}.\n",
            self.ran()
        )
    }

    /// What ran natively.
    fn ran(&self) -> String {
        if self.is_emulated {
            return " FP8 is emulated here: its rows show what emulation costs, not what tensor cores win.".into();
        }
        let counted = self.rows.iter().filter_map(|row| {
            Some((&row.name, row.fp8_products.filter(|count| *count > 0)?, row.native_products?))
        });
        let lines = counted.map(|(name, fp8, native)| {
            format!("\n\n{name}: {native} of {fp8} FP8 products on tensor cores or a matrix unit.")
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use examples_common::testing::Results;

    use super::*;

    #[test]
    fn what_is_committed_is_told_from_the_committed_numbers() {
        let results = Results::of(env!("CARGO_MANIFEST_DIR"));
        for folder in ["", "unit/"] {
            let times: Times = results.json(&format!("{folder}block.json"));
            results.check(&format!("{folder}block.md"), &times.markdown());
        }
    }
}
