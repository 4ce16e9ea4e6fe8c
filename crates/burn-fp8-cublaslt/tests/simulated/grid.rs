//! The rules of `plan` against those of the simulated cuBLASLt, which were written from NVIDIA's documentation alone: both refuse the same
//! products, but for rules that have another source or that heuristics are not told enough for.

use std::collections::BTreeMap;

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::*;

use crate::common::{SCALES, TYPES, combinations, with_flags};
use crate::device::Gpu;

/// What cuBLASLt's heuristics cannot refuse, or may not by the documentation: each with the reason.
fn is_ours_alone(rule: Rule) -> bool {
    match rule {
        // That the documentation asks for this was not found again when the simulation's rules were written.
        Rule::ScaleBlockShape => true,
        // cublasLt.h says only that dimensions "usually" fit in 32 bits.
        Rule::DimensionRange | Rule::Extent => true,
        // The documentation says nothing of outputs that overlap, and we ask for less of a batch than it allows.
        Rule::StrideRange | Rule::PlainBatch => true,
        // An alignment of 48 or 512 bytes is a mistake of the caller, not of cuBLASLt.
        Rule::Alignment => true,
        _ => false,
    }
}

/// Each type with each other, on one shape, with every mode of scales.
fn each_type(visit: &mut impl FnMut(ScaledMatmul)) {
    for scales in SCALES {
        combinations(scales, |problem| {
            if problem.epilogue.activation == Activation::None {
                with_flags(problem).for_each(&mut *visit);
            }
        });
    }
}

/// Each size and leading dimension that may be too small or no multiple.
fn each_shape(visit: &mut impl FnMut(ScaledMatmul)) {
    let sizes = [0, 1, 2, 4, 8, 12, 16, 24, 40, 48, 130];
    for d in TYPES {
        for (m, n, k) in sizes
            .into_iter()
            .flat_map(|m| sizes.into_iter().flat_map(move |n| sizes.map(|k| (m, n, k))))
        {
            let base = ScaledMatmul::new(m, n, k, E4M3, E5M2, d);
            visit(base);
            visit(ScaledMatmul { scales: Scales::PerRow, ..base });
            let scales = Scales::Blocks { a: BlockScale::Row128, b: BlockScale::Square128 };
            visit(ScaledMatmul { scales, ..base });
            let scales = Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row32 };
            visit(ScaledMatmul { scales, ..base });
        }
        let base = ScaledMatmul::new(48, 32, 64, E4M3, E4M3, d);
        for change in [-16, -1, 0, 1, 2, 4, 8, 16] {
            let add = |ld: u64| ld.checked_add_signed(change).expect("larger than 16");
            let mut each = [base; 4];
            each[0].a.ld = add(base.a.ld);
            each[1].b.ld = add(base.b.ld);
            each[2].d.ld = add(base.d.ld);
            each[3].c = Some(Matrix { ld: add(base.d.ld), ..base.d });
            each.into_iter().for_each(&mut *visit);
        }
        for stride in [0, 8, 16, 48 * 32, 48 * 64, 48 * 64 + 8] {
            let one = Batch { count: 3, a: 48 * 64, b: 32 * 64, d: 48 * 32 };
            visit(ScaledMatmul { batch: Batch { a: stride, ..one }, ..base });
            visit(ScaledMatmul { batch: Batch { b: stride, ..one }, ..base });
            visit(ScaledMatmul { batch: Batch { d: stride, ..one }, ..base });
            let scales = Scales::PerRow;
            visit(ScaledMatmul { batch: one, scales, ..base });
        }
        for bytes in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
            visit(ScaledMatmul { alignment: Alignment::all(bytes), ..base });
        }
    }
}

#[test]
#[ignore = "needs the simulated device: cargo xtask sim"]
fn the_plan_and_the_documentation_refuse_the_same_products() {
    let gpu = Gpu::new();
    let capability = gpu.lt.capability();
    let (mut count, mut refused, mut wrong) = (0, BTreeMap::<String, u32>::new(), vec![]);
    let mut visit = |problem: ScaledMatmul| {
        count += 1;
        let planned = plan(&problem, &capability);
        let answer = gpu.lt.ask(&plan_unchecked(&problem)).expect("an answer");
        if let Err(error) = &planned {
            *refused.entry(format!("{:?}", error.rule)).or_default() += 1;
        }
        match (&planned, answer) {
            (Ok(_), Ok(1..)) | (Err(_), Err(_)) => {}
            (Err(error), Ok(_)) if is_ours_alone(error.rule) => {}
            (planned, answer) => wrong.push(format!("{planned:?}, {answer:?}: {problem:?}")),
        }
    };
    each_type(&mut visit);
    each_shape(&mut visit);
    println!("{count} products on {:?}; refused: {refused:?}", capability.compute);
    let first: Vec<_> = wrong.iter().take(10).collect();
    assert!(wrong.is_empty(), "{} differ: {first:#?}", wrong.len());
    assert!(count > 10_000 && refused.len() >= 12, "the grid reaches the rules");
}
