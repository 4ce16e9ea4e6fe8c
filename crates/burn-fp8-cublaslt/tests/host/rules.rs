//! Every rule can be broken alone, and its message says what is wrong, by which value, and what to do.

use crate::common::{HOPPER, capability};
use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_cublaslt::*;

/// A product with `change` applied must break `rule`; its message must hold every part of `says`.
fn breaks(rule: Rule, says: &[&str], change: impl FnOnce(&mut ScaledMatmul)) {
    breaks_on(HOPPER, rule, says, change);
}

fn breaks_on(
    capability: Capability,
    rule: Rule,
    says: &[&str],
    change: impl FnOnce(&mut ScaledMatmul),
) {
    let mut problem = ScaledMatmul::new(32, 128, 64, E4M3, E4M3, DataType::Bf16);
    assert!(plan(&problem, &HOPPER).is_ok());
    change(&mut problem);
    let error = plan(&problem, &capability).expect_err("the rule was to be broken");
    assert_eq!(error.rule, rule, "{error}");
    let message = error.to_string();
    for part in says.iter().copied().chain([error.remedy, error.found.as_str()]) {
        assert!(!part.is_empty() && message.contains(part), "\"{message}\" lacks \"{part}\"");
    }
}

const BLOCKS: Scales = Scales::Blocks { a: BlockScale::Row128, b: BlockScale::Row128 };

#[test]
fn devices_and_libraries() {
    breaks_on(capability(8, 6, (13, 0)), Rule::Device, &["8.9", "sm_86"], |_| {});
    breaks_on(capability(9, 0, (12, 3)), Rule::Library, &["12.3.0", "12.4.0"], |_| {});
    breaks_on(capability(10, 0, (12, 6)), Rule::Library, &["12.6.0", "12.8.0", "sm_100"], |_| {});
}

#[test]
fn dimensions() {
    breaks(Rule::DimensionZero, &["M is 0"], |p| p.shape.m = 0);
    breaks(Rule::DimensionRange, &["N is 2147483648"], |p| p.shape.n = 1 << 31);
    breaks(Rule::Extent, &["A spans"], |p| p.a.ld = 1 << 60);
    breaks(Rule::KMultiple, &["K is 24", "pad"], |p| p.shape.k = 24);
    breaks(Rule::NMultiple, &["N is 12", "BF16"], |p| p.shape.n = 12);
}

#[test]
fn types() {
    breaks(Rule::OperandFormats, &["E5M2"], |p| {
        p.a.format = E5M2;
        p.b.format = E5M2;
    });
    breaks(Rule::OutputType, &["E5M2"], |p| p.d.dtype = DataType::Fp8(E5M2));
    breaks(Rule::CType, &["C is F16", "D is BF16"], |p| {
        p.c = Some(Matrix { dtype: DataType::F16, ..p.d });
    });
    breaks(Rule::BiasType, &["F32", "needs BF16"], |p| {
        p.epilogue.bias = Some(DataType::F32);
    });
}

#[test]
fn scales() {
    let ada = capability(8, 9, (13, 0));
    let blackwell = capability(10, 0, (13, 0));
    let per_row = |p: &mut ScaledMatmul| p.scales = Scales::PerRow;
    breaks_on(ada, Rule::ScaleDevice, &["per row", "sm_89"], per_row);
    breaks_on(blackwell, Rule::ScaleDevice, &["per block", "sm_100"], |p| p.scales = BLOCKS);
    breaks_on(capability(9, 0, (12, 8)), Rule::ScaleLibrary, &["12.8.0", "12.9"], per_row);
    breaks(Rule::ScaleOutput, &["E4M3"], |p| {
        p.scales = Scales::PerRow;
        p.d.dtype = DataType::Fp8(E4M3);
    });
    breaks(Rule::ScaleBlocks, &["128×128"], |p| {
        p.scales = Scales::Blocks { a: BlockScale::Square128, b: BlockScale::Square128 };
    });
    breaks(Rule::ScaleBlocks, &["one of 128"], |p| {
        p.scales = Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row128 };
    });
    let mx = |p: &mut ScaledMatmul| {
        p.scales = Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row32 };
    };
    breaks(Rule::ScaleDevice, &["per block of 32", "sm_90", "10.0 or newer"], mx);
    breaks_on(blackwell, Rule::ScaleOutput, &["E4M3"], |p| {
        mx(p);
        p.d.dtype = DataType::Fp8(E4M3);
    });
    breaks(Rule::ScaleBlockShape, &["M is 30"], |p| {
        p.scales = BLOCKS;
        p.shape.m = 30;
    });
    breaks(Rule::ScaleD, &["D is BF16"], |p| p.scaled_d = true);
    breaks(Rule::AmaxD, &["D is BF16"], |p| p.amax_d = true);
}

#[test]
fn batches() {
    let batch = Batch { count: 3, a: 2048, b: 8192, d: 4096 };
    let of = |p: &mut ScaledMatmul| p.batch = batch;
    let mut problem = ScaledMatmul::new(32, 128, 64, E4M3, E4M3, DataType::Bf16);
    of(&mut problem);
    assert!(plan(&problem, &HOPPER).is_ok());
    breaks(Rule::DimensionZero, &["the batch is 0"], |p| p.batch = Batch { count: 0, ..batch });
    breaks(Rule::StrideMultiple, &["A is 2056"], |p| p.batch = Batch { a: 2056, ..batch });
    breaks(Rule::StrideRange, &["4095", "4096"], |p| p.batch = Batch { d: 4095, ..batch });
    breaks(Rule::Extent, &["B spans"], |p| p.batch = Batch { b: 1 << 62, ..batch });
    for more in [
        |p: &mut ScaledMatmul| p.scales = Scales::PerRow,
        |p: &mut ScaledMatmul| p.c = Some(p.d),
        |p: &mut ScaledMatmul| p.epilogue.activation = Activation::Relu,
        |p: &mut ScaledMatmul| p.epilogue.bias = Some(DataType::Bf16),
        |p: &mut ScaledMatmul| {
            p.d.dtype = DataType::Fp8(E4M3);
            p.amax_d = true;
        },
    ] {
        breaks(Rule::PlainBatch, &["3 products"], |p| {
            of(p);
            more(p);
        });
    }
}

#[test]
fn memory() {
    breaks(Rule::LdRange, &["A is 48", "64"], |p| p.a.ld = 48);
    breaks(Rule::LdMultiple, &["B is 72"], |p| p.b.ld = 72);
    breaks(Rule::LdMultiple, &["D is 132"], |p| p.d.ld = 132);
    breaks(Rule::Alignment, &["the bias", "8 bytes"], |p| {
        p.epilogue.bias = Some(DataType::Bf16);
        p.alignment.bias = 8;
    });
}

#[test]
fn the_plan_swaps_the_operands_and_their_scales() {
    let mut problem = ScaledMatmul::new(32, 128, 64, E5M2, E4M3, DataType::F32);
    problem.a.ld = 80;
    problem.scales = Scales::Blocks { a: BlockScale::Square128, b: BlockScale::Row128 };
    problem.alignment.a = 16;
    problem.alignment.b = 32;
    let plan = plan(&problem, &HOPPER).unwrap();
    let layout = |dtype, rows, columns, ld| {
        let (count, stride) = (1, 0);
        plan::LayoutPlan { dtype, rows, columns, ld, count, stride }
    };
    // cuBLASLt's A is our B, transposed: K×N, column-major with our leading dimension.
    assert_eq!(plan.layouts[0], layout(DataType::Fp8(E4M3), 64, 128, 64));
    assert_eq!(plan.layouts[1], layout(DataType::Fp8(E5M2), 64, 32, 80));
    assert_eq!(plan.layouts[2], layout(DataType::F32, 128, 32, 128));
    assert_eq!(plan.layouts[3], layout(DataType::F32, 128, 32, 128));
    // VEC128_32F and BLK128x128_32F.
    assert_eq!(plan.scale_modes, [4, 5]);
    assert_eq!(plan.alignments, [32, 16, 256, 256]);
}

#[test]
fn known_gaps_are_named_and_nothing_else() {
    let mut problem = ScaledMatmul::new(32, 128, 64, E4M3, E4M3, DataType::Bf16);
    problem.epilogue.activation = Activation::Gelu;
    assert_eq!(plan(&problem, &HOPPER).unwrap().gap, None);
    problem.d.dtype = DataType::F32;
    assert!(plan(&problem, &HOPPER).unwrap().gap.unwrap().contains("F32"));
    let scales = Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row32 };
    let blackwell = capability(10, 0, (13, 0));
    for (d, has_gap) in [(DataType::Bf16, false), (DataType::F32, true)] {
        let mx = ScaledMatmul { scales, ..ScaledMatmul::new(32, 128, 64, E4M3, E4M3, d) };
        assert_eq!(plan(&mx, &blackwell).unwrap().gap.is_some(), has_gap);
    }

    let gap = |[m, n, k]: [u64; 3], scales, [a, b]: [Fp8Format; 2], d| {
        let problem = ScaledMatmul { scales, ..ScaledMatmul::new(m, n, k, a, b, d) };
        plan(&problem, &HOPPER).unwrap().gap
    };
    let (whole, other) = ([256, 384, 512], [256, 384, 528]);
    for d in [DataType::Bf16, DataType::F16, DataType::F32] {
        assert_eq!(gap(other, Scales::None, [E4M3, E5M2], d), None);
        assert_eq!(gap(other, Scales::PerTensor, [E5M2, E4M3], d), None);
        assert_eq!(gap(other, Scales::PerRow, [E4M3; 2], d), None);
        assert!(gap(whole, Scales::PerRow, [E5M2, E4M3], d).is_some());
        assert_eq!(gap(whole, BLOCKS, [E4M3; 2], d).is_none(), d != DataType::F16);
        assert!(gap(other, BLOCKS, [E4M3; 2], d).is_some());
        assert!(gap(whole, BLOCKS, [E4M3, E5M2], d).is_some());
    }
    assert_eq!(gap(other, Scales::PerRow, [E4M3, E5M2], DataType::Bf16), None);
}
