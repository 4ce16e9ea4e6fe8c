//! Quantization of a bf16 matrix against a copy of device memory, in bytes read and written.

use std::hint::black_box;

use anyhow::Result;
use burn::tensor::Tensor;
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::Recipe;
use burn_fp8::burn_fp8_core::{Layouts, Overflow};
use burn_fp8::engine::{Fp8Engine, Request, Scalar, ScaleRule, ScaleRuleOf, Wanted};

use crate::device::{Copy, Side, compare, primitive, random};
use crate::options::{Options, Sink, Unfused};
use crate::rows::Row;

pub const GROUP: &str = "gpu-kernels";

/// At least so much of the copy's bandwidth.
const TARGET: f64 = 0.85;
const SIZE: usize = 8192;
/// 3 × 134 MB: more than any L2 cache.
const SETS: usize = 3;

type B = Unfused;

/// How the scale is chosen, and how often the tensor is read for it.
fn rules() -> [(&'static str, ScaleRuleOf<B>, usize); 3] {
    let amax = Tensor::<B, 1>::from_floats([5.0], &Default::default());
    let amax = Scalar::Device(primitive(amax));
    let recipe = Recipe::delayed();
    [
        ("scale given", ScaleRule::Given(amax.clone(), Overflow::SaturateFinite), 1),
        ("delayed scaling, with amax", ScaleRule::Delayed(amax, recipe), 1),
        ("current scaling, with amax", ScaleRule::Current(Recipe::current()), 2),
    ]
}

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    let elements = SIZE * SIZE;
    let inputs: Vec<_> = (0..SETS).map(|_| random::<B>([SIZE, SIZE])).collect();
    let mut copy = Copy::new(&options.gpu, 2 * elements, SETS)?;
    let mut copy_milliseconds = None;
    let layouts = [
        ("quantize", Layouts::Rows, 1, "quantize_current"),
        ("quantize and transpose", Layouts::Both, 2, "quantize_transpose_current"),
        ("transpose only", Layouts::Transposed, 1, ""),
    ];
    for (rule_name, rule, reads) in rules() {
        for (name, layouts, writes, torch_name) in layouts {
            let mut quantize = |set: usize| {
                let tensor = primitive(inputs[set % SETS].clone());
                let request = Request::whole(E4M3, rule.clone(), Wanted::Lines(layouts));
                black_box(B::fp8_quantize(tensor, request));
                Ok(())
            };
            let mut copy = |set: usize| copy.run(set);
            let bytes = (2 * reads + writes) * elements;
            let name = format!("{name} {SIZE}×{SIZE} bf16, {rule_name}");
            let subject = Side::new(&name, &mut quantize).with_bytes(bytes);
            let reference = Side::new("copy of device memory", &mut copy).with_bytes(4 * elements);
            let target = (layouts != Layouts::Transposed).then_some(TARGET);
            let row =
                compare::<B>(&options.gpu, (GROUP, target), subject, reference, options.samples())?;
            if let Some(torch) = &options.torch
                && reads == 2
                && let Some((milliseconds, speed)) = torch.kernel(torch_name)
            {
                sink.add([Row {
                    reference: torch.name(&format!("compiled, {torch_name}")),
                    reference_milliseconds: milliseconds,
                    ratio: row.gigabytes_per_second.unwrap_or_default() / speed,
                    target: None,
                    ..row.clone()
                }])?;
            }
            copy_milliseconds = Some(row.reference_milliseconds);
            sink.add([row])?;
        }
    }
    if let Some((milliseconds, speed)) = options.torch.as_ref().and_then(|t| t.kernel("copy"))
        && let Some(copy) = copy_milliseconds
    {
        println!(
            "copies: {:.0} GB/s here, {speed:.0} GB/s ({milliseconds:.3} ms) by torch",
            4.0 * elements as f64 / copy / 1e6
        );
    }
    Ok(())
}
