//! The product of codes alone, without quantization, against Burn's bf16 product and `torch._scaled_mm`.

use std::hint::black_box;

use anyhow::Result;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::burn_fp8_core::Layouts;
use burn_fp8::engine::{
    Epilogue, Fp8Engine, Operand, OperandOf, Otherwise, Request, Run, ScaleRule, Target, Wanted,
};
use burn_fp8::{Fp8Format, Recipe};

use crate::device::{Side, compare_all, primitive, random};
use crate::options::{Options, Sink, Unfused};
use crate::rows::Row;

pub const GROUP: &str = "gpu-gemm";

/// At least so much of the speed of `torch._scaled_mm`, for square products.
const TARGET: f64 = 0.97;

/// M, K, N: those of gpu_peers.py.
const SHAPES: [[usize; 3]; 5] = [
    [4096, 4096, 4096],
    [8192, 8192, 8192],
    [16384, 16384, 16384],
    [16384, 4096, 14336],
    [16384, 14336, 4096],
];
const QUICK: usize = 2;

/// What is multiplied, how, and what gpu_peers.py calls it.
const KINDS: [(Fp8Format, bool, &str, &str); 3] = [
    (E4M3, true, "E4M3×E4M3, fast accumulation", "fp8_fast"),
    (E4M3, false, "E4M3×E4M3", "fp8"),
    (E5M2, false, "E5M2×E4M3", "fp8_e5m2"),
];

/// A matrix in codes, laid out for a product.
fn operand<B: Fp8Engine>(
    matrix: Tensor<B, 2>,
    format: Fp8Format,
    layouts: Layouts,
) -> OperandOf<B> {
    let rule = ScaleRule::Current(Recipe::current());
    let request = Request::whole(format, rule, Wanted::Lines(layouts));
    Operand::Matrix(B::fp8_quantize(primitive(matrix), request))
}

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    let shapes = if options.quick { &SHAPES[..QUICK] } else { &SHAPES[..] };
    for &shape in shapes {
        sink.add(measure(options, shape)?)?;
    }
    Ok(())
}

fn measure(options: &Options, shape @ [m, k, n]: [usize; 3]) -> Result<Vec<Row>> {
    type B = Unfused;
    let flops = 2.0 * m as f64 * k as f64 * n as f64;
    let sets = options.gpu.sets(m * k + k * n)?;
    let high: Vec<_> = (0..sets).map(|_| [random::<B>([m, k]), random([n, k])]).collect();
    let mut bf16 = |set: usize| {
        let [a, b] = &high[set % sets];
        black_box(a.clone().matmul(b.clone().transpose()));
        Ok(())
    };
    // Each matrix once in each format.
    let lhs = |format| -> Vec<_> {
        high.iter().map(|[a, _]| operand(a.clone(), format, Layouts::Rows)).collect()
    };
    let (e4m3, e5m2) = (lhs(E4M3), lhs(E5M2));
    let transposed = |[_, b]: &[Tensor<B, 2>; 2]| b.clone().transpose();
    let rhs: Vec<_> =
        high.iter().map(|pair| operand(transposed(pair), E4M3, Layouts::Transposed)).collect();
    let mut products: Vec<_> = KINDS
        .iter()
        .map(|&(format, fast_accumulation, name, _)| {
            let lhs = if format == E4M3 { &e4m3 } else { &e5m2 };
            let run = Run {
                target: Target::TensorCores,
                fast_accumulation,
                otherwise: Otherwise::Refuse,
                ..Run::emulated()
            };
            let rhs = &rhs;
            let call = move |set: usize| {
                let (a, b) = (lhs[set % sets].clone(), rhs[set % sets].clone());
                black_box(B::fp8_multiply(a, b, Epilogue::float(FloatDType::BF16), run.clone()));
                Ok(())
            };
            (format!("{m}×{k}×{n} {name}"), call)
        })
        .collect();
    let subjects =
        products.iter_mut().map(|(name, call)| Side::new(name, call).with_flops(flops)).collect();
    let reference = Side::new("Burn's bf16 product", &mut bf16);
    let measured =
        compare_all::<B>(&options.gpu, (GROUP, None), subjects, reference, options.samples())?;
    let mut rows = vec![];
    for (row, (_, _, _, torch_name)) in measured.into_iter().zip(KINDS) {
        if let Some(torch) = &options.torch
            && let Some(milliseconds) = torch.gemm(shape, torch_name)
        {
            let target = (m == k && k == n).then_some(TARGET);
            let reference = torch.name(&format!("_scaled_mm, {torch_name}"));
            rows.push(row.beside(&reference, milliseconds, target));
        }
        rows.push(row);
    }
    Ok(rows)
}
