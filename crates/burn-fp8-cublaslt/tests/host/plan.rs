//! The planner against an independent table, over every combination.

use crate::common::{HOPPER, SCALES, TYPES, capability, combinations, with_flags};
use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::DataType::{Bf16, F16, F32, Fp8};
use burn_fp8_cublaslt::*;

/// The rows of NVIDIA's table as `(mixed formats, C, D, bias)`: the first column says whether one operand is E5M2.
const TABLE: [(bool, DataType, DataType, DataType); 12] = [
    (false, Bf16, Bf16, Bf16),
    (false, Bf16, Fp8(E4M3), Bf16),
    (false, F16, F16, F16),
    (false, F16, Fp8(E4M3), F16),
    (false, F32, F32, Bf16),
    (true, Bf16, Bf16, Bf16),
    (true, Bf16, Fp8(E4M3), Bf16),
    (true, Bf16, Fp8(E5M2), Bf16),
    (true, F16, F16, F16),
    (true, F16, Fp8(E4M3), F16),
    (true, F16, Fp8(E5M2), F16),
    (true, F32, F32, Bf16),
];

/// Every rule that a product breaks, found by tables and arithmetic that share nothing with the planner.
fn broken(p: &ScaledMatmul, capability: &Capability) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |broken: bool, rule: Rule| {
        if broken {
            rules.push(rule);
        }
    };
    let cc = capability.compute.major * 10 + capability.compute.minor;
    let library = capability.library.major * 100 + capability.library.minor;
    add(cc < 89, Rule::Device);
    add(library < if cc >= 100 { 1208 } else { 1204 }, Rule::Library);

    let Shape { m, n, k } = p.shape;
    let Batch { count, .. } = p.batch;
    add([m, n, k, count].contains(&0), Rule::DimensionZero);
    add([m, n, k, count].iter().any(|d| *d >= 1 << 31), Rule::DimensionRange);
    let several = matches!(p.scales, Scales::PerRow | Scales::Blocks { .. });
    let more = p.epilogue.bias.is_some() || p.epilogue.activation != Activation::None;
    let more = more || p.c.is_some() || p.scaled_d || p.amax_d;
    add(count > 1 && (several || more), Rule::PlainBatch);
    add(k % 16 != 0, Rule::KMultiple);

    // Types: rows of the table that fit, narrowed by one column after the other.
    let formats = [p.a.format, p.b.format];
    add(formats == [E5M2, E5M2], Rule::OperandFormats);
    let rows: Vec<_> = TABLE
        .into_iter()
        .filter(|row| row.0 == (formats[0] != formats[1]) && row.2 == p.d.dtype)
        .collect();
    let mut c_type = None;
    if formats != [E5M2, E5M2] {
        add(rows.is_empty(), Rule::OutputType);
        if !rows.is_empty() {
            // A missing C is what the bias needs, BF16 if there is none.
            let given = p.c.map(|c| c.dtype);
            let needed = p.epilogue.bias;
            let fits = |row: &&(bool, DataType, DataType, DataType)| match given {
                Some(c) => row.1 == c,
                None => Some(row.1) == needed,
            };
            let row = rows.iter().find(fits).or(if given.is_none() { rows.first() } else { None });
            add(row.is_none(), Rule::CType);
            if let Some(row) = row {
                c_type = Some(row.1);
                add(p.epilogue.bias.is_some_and(|bias| bias != row.3), Rule::BiasType);
            }
        }
    }

    // Scales.
    let fp8_out = matches!(p.d.dtype, Fp8(_));
    add(p.scaled_d && !fp8_out, Rule::ScaleD);
    add(p.amax_d && !fp8_out, Rule::AmaxD);
    let of_32 = match p.scales {
        Scales::Blocks { a, b } => {
            u8::from(a == BlockScale::Row32) + u8::from(b == BlockScale::Row32)
        }
        _ => 0,
    };
    if !matches!(p.scales, Scales::None | Scales::PerTensor) {
        add(cc != 90 && of_32 == 0 || cc < 100 && of_32 == 2, Rule::ScaleDevice);
        add(library < 1209 && of_32 == 0, Rule::ScaleLibrary);
        add(of_32 == 1, Rule::ScaleBlocks);
        add(fp8_out, Rule::ScaleOutput);
    }
    if let Scales::Blocks { a, b } = p.scales {
        add(a == BlockScale::Square128 && b == BlockScale::Square128, Rule::ScaleBlocks);
        add(m % 4 + n % 4 != 0 && of_32 == 0, Rule::ScaleBlockShape);
    }

    // Memory.
    let bytes = |dtype: DataType| match dtype {
        Bf16 | F16 => 2u128,
        F32 => 4,
        Fp8(_) => 1,
    };
    let n_bytes = |dtype| u128::from(n) * bytes(dtype);
    add(n_bytes(p.d.dtype) % 16 != 0, Rule::NMultiple);
    add(c_type.is_some_and(|c| n_bytes(c) % 16 != 0), Rule::NMultiple);
    let mut matrices = vec![
        (Fp8(p.a.format), m, k, p.a.ld, p.batch.a),
        (Fp8(p.b.format), n, k, p.b.ld, p.batch.b),
        (p.d.dtype, m, n, p.d.ld, p.batch.d),
    ];
    matrices.extend(p.c.map(|c| (c.dtype, m, n, c.ld, p.batch.d)));
    for (dtype, rows, columns, ld, stride) in matrices {
        let stride = if count > 1 { u128::from(stride) } else { 0 };
        add(stride * bytes(dtype) % 16 != 0, Rule::StrideMultiple);
        add(ld < columns, Rule::LdRange);
        add(u128::from(ld) * bytes(dtype) % 16 != 0, Rule::LdMultiple);
        let others = u128::from(count.saturating_sub(1)).saturating_mul(stride);
        let elements = (u128::from(rows) * u128::from(ld)).saturating_add(others);
        add(elements.saturating_mul(bytes(dtype)) >= 1 << 63, Rule::Extent);
    }
    let reach =
        (u128::from(m.saturating_sub(1)) * u128::from(p.d.ld)).saturating_add(u128::from(n));
    add(count > 1 && u128::from(p.batch.d) < reach, Rule::StrideRange);
    let mut alignments = vec![p.alignment.a, p.alignment.b, p.alignment.d];
    alignments.extend(p.c.map(|_| p.alignment.c));
    alignments.extend(p.epilogue.bias.map(|_| p.alignment.bias));
    add(alignments.iter().any(|bytes| ![16, 32, 64, 128, 256].contains(bytes)), Rule::Alignment);

    rules
}

/// The planner accepts exactly what breaks no rule, and names one of the rules that are broken. Returns whether it accepted.
fn agrees(problem: &ScaledMatmul, capability: &Capability) -> bool {
    let expected = broken(problem, capability);
    match plan(problem, capability) {
        Ok(_) => {
            assert!(expected.is_empty(), "accepted {problem:?} on {capability:?}: {expected:?}");
            true
        }
        Err(error) => {
            assert!(
                expected.contains(&error.rule),
                "{error} for {problem:?} on {capability:?}: {expected:?}"
            );
            false
        }
    }
}

/// Devices and libraries on both sides of every boundary.
const CAPABILITIES: [Capability; 11] = [
    capability(7, 5, (13, 0)),
    capability(8, 6, (12, 9)),
    capability(8, 9, (12, 3)),
    capability(8, 9, (12, 4)),
    capability(8, 9, (13, 10)),
    capability(9, 0, (12, 3)),
    capability(9, 0, (12, 8)),
    capability(9, 0, (12, 9)),
    capability(10, 0, (12, 7)),
    capability(10, 3, (12, 8)),
    capability(12, 0, (13, 0)),
];

#[test]
fn every_combination_of_types_and_epilogues_is_decided_as_the_table_says() {
    let (mut accepted, mut refused) = (0, 0);
    combinations(Scales::PerTensor, |problem| {
        for problem in with_flags(problem) {
            if agrees(&problem, &HOPPER) { accepted += 1 } else { refused += 1 }
        }
    });
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 500 && refused > 1000);
}

#[test]
fn every_scale_mode_is_decided_as_the_table_says_on_every_device_and_library() {
    let mut accepted = 0;
    for scales in SCALES {
        for capability in CAPABILITIES {
            for d in TYPES {
                for (a, b) in [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)] {
                    for (m, n) in [(32, 64), (31, 64), (30, 64), (64, 80), (1, 16)] {
                        let problem =
                            ScaledMatmul { scales, ..ScaledMatmul::new(m, n, 256, a, b, d) };
                        let c = Matrix { dtype: DataType::Bf16, ..problem.d };
                        let with_c = ScaledMatmul { c: Some(c), ..problem };
                        for problem in with_flags(problem).chain(with_flags(with_c)) {
                            accepted += u32::from(agrees(&problem, &capability));
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 1000);
}

#[test]
fn every_edge_of_shapes_and_layouts_is_decided_as_the_rules_say() {
    const BIG: u64 = i32::MAX as u64;
    let sizes = [0, 1, 4, 8, 15, 16, 17, 24, 4096, BIG - 15, BIG, BIG + 1, u64::MAX];
    let mut accepted = 0;
    for m in sizes {
        for n in sizes {
            for k in sizes {
                for d in TYPES {
                    let problem = ScaledMatmul::new(m, n, k, E4M3, E5M2, d);
                    accepted += u32::from(agrees(&problem, &HOPPER));
                }
            }
        }
    }
    assert!(accepted > 100);

    for ld in [0, 63, 64, 65, 72, 80, 1 << 58, i64::MAX as u64, u64::MAX] {
        for d in TYPES {
            let base = ScaledMatmul::new(32, 64, 64, E4M3, E5M2, d);
            let c = Matrix { dtype: if d.is_fp8() { DataType::Bf16 } else { d }, ld };
            for problem in [
                ScaledMatmul { a: Operand { ld, ..base.a }, ..base },
                ScaledMatmul { b: Operand { ld, ..base.b }, ..base },
                ScaledMatmul { c: Some(c), ..base },
                ScaledMatmul { d: Matrix { ld, ..base.d }, ..base },
            ] {
                agrees(&problem, &HOPPER);
            }
        }
    }

    let mut accepted = 0;
    let strides = [0, 8, 16, 2047, 2048, 2049, 4096, 1 << 62, u64::MAX];
    for count in [0, 1, 2, BIG, BIG + 1] {
        for (stride, d) in strides.into_iter().flat_map(|stride| TYPES.map(|d| (stride, d))) {
            let base = ScaledMatmul::new(32, 64, 64, E4M3, E5M2, d);
            let one = Batch { count, a: 2048, b: 4096, d: 2048 };
            for batch in
                [Batch { a: stride, ..one }, Batch { b: stride, ..one }, Batch { d: stride, ..one }]
            {
                accepted += u32::from(agrees(&ScaledMatmul { batch, ..base }, &HOPPER));
            }
        }
    }
    assert!(accepted > 100);
}

#[test]
fn every_alignment_is_decided_as_the_rules_say() {
    for bytes in [0, 1, 2, 4, 8, 15, 16, 17, 24, 32, 48, 64, 128, 255, 256, 257, 512, u32::MAX] {
        for field in 0..5 {
            let mut alignment = Alignment::MAX;
            let fields = [
                &mut alignment.a,
                &mut alignment.b,
                &mut alignment.c,
                &mut alignment.d,
                &mut alignment.bias,
            ];
            *fields.into_iter().nth(field).unwrap() = bytes;
            let plain = ScaledMatmul {
                alignment,
                ..ScaledMatmul::new(16, 128, 16, E4M3, E4M3, DataType::Bf16)
            };
            let bias = Some(DataType::Bf16);
            let epilogue = Epilogue { activation: Activation::Relu, bias };
            agrees(&plain, &HOPPER);
            agrees(&ScaledMatmul { c: Some(plain.d), epilogue, ..plain }, &HOPPER);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_products_are_decided_as_the_rules_say(
        [m, n, k] in proptest::array::uniform3(0u64..300),
        pad in proptest::array::uniform4(0u64..40),
        types in (0usize..2, 0usize..2, 0usize..5, 0usize..6, 0usize..6),
        modes in (0usize..12, 0usize..3, 0u32..4, 0usize..11),
        alignment in 0u32..10,
        batch in (0u64..4, proptest::array::uniform3(0u64..80)),
    ) {
        let mut problem = ScaledMatmul::new(
            m, n, k, crate::common::FORMATS[types.0], crate::common::FORMATS[types.1], TYPES[types.2],
        );
        // Half of the cases keep what is valid more often.
        if pad[0] % 2 == 0 {
            problem.a.ld += pad[0];
            problem.b.ld += pad[1];
            problem.d.ld += pad[2];
        }
        problem.c = crate::common::options(&TYPES)[types.3]
            .map(|dtype| Matrix { dtype, ld: n + pad[3] });
        problem.epilogue = Epilogue {
            activation: crate::common::ACTIVATIONS[modes.1],
            bias: crate::common::options(&TYPES)[types.4],
        };
        problem.scales = SCALES[modes.0];
        problem.alignment = Alignment::all(1 << alignment);
        let (count, [a, b, d]) = batch;
        let d = m * problem.d.ld + 8 * d;
        problem.batch = Batch { count: count.max(1), a: 8 * a, b: 8 * b, d };
        let problem = with_flags(problem).nth(modes.2 as usize).unwrap();
        agrees(&problem, &CAPABILITIES[modes.3]);
    }
}
