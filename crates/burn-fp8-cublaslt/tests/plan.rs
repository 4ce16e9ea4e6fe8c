//! The planner against an independent table, over every combination.

mod common;
#[path = "common/oracle.rs"]
mod oracle;

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::*;
use common::{HOPPER, SCALES, TYPES, capability, combinations, with_flags};
use oracle::broken;

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
    for batch in [1, 3] {
        combinations(Scales::PerTensor, batch, |problem| {
            for problem in with_flags(problem) {
                if agrees(&problem, &HOPPER) { accepted += 1 } else { refused += 1 }
            }
        });
    }
    println!("{accepted} accepted, {refused} refused");
    assert!(accepted > 1000 && refused > 1000);
}

#[test]
fn every_scale_mode_is_decided_as_the_table_says_on_every_device_and_library() {
    let mut accepted = 0;
    for scales in SCALES {
        for capability in CAPABILITIES {
            for d in TYPES {
                for (a, b) in [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)] {
                    for batch in [1, 2] {
                        for (m, n) in [(32, 64), (31, 64), (30, 64), (64, 80), (1, 16)] {
                            let problem =
                                ScaledMatmul { scales, ..ScaledMatmul::new(m, n, 256, a, b, d) };
                            let problem = problem.batched(batch);
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
                    for batch in [0, 1, 2, BIG, BIG + 1] {
                        let problem = ScaledMatmul::new(m, n, k, E4M3, E5M2, d).batched(batch);
                        accepted += u32::from(agrees(&problem, &HOPPER));
                    }
                }
            }
        }
    }
    assert!(accepted > 100);

    let lds = [0, 63, 64, 65, 72, 80, i64::MAX as u64, u64::MAX];
    let strides = [0, 8, 16, 2047, 2048, 2049, 4096, 1 << 62, u64::MAX];
    for ld in lds {
        for stride in strides {
            for batch in [1, 2] {
                for d in TYPES {
                    let base = ScaledMatmul::new(32, 64, 64, E4M3, E5M2, d).batched(batch);
                    let c_type = if d.is_fp8() { DataType::Bf16 } else { d };
                    let c = Matrix { dtype: c_type, ld, batch_stride: stride };
                    let aux = |kind| Some(Aux { kind, ld, batch_stride: stride });
                    let epilogue =
                        |activation, kind| Epilogue { activation, bias: None, aux: aux(kind) };
                    let input = AuxKind::GeluInput { dtype: d, scaled: false, amax: false };
                    let operand =
                        |operand: Operand| Operand { ld, batch_stride: stride, ..operand };
                    for problem in [
                        ScaledMatmul { a: operand(base.a), ..base },
                        ScaledMatmul { b: operand(base.b), ..base },
                        ScaledMatmul { c: Some(c), ..base },
                        ScaledMatmul { d: Matrix { ld, batch_stride: stride, ..base.d }, ..base },
                        ScaledMatmul {
                            epilogue: epilogue(Activation::Relu, AuxKind::ReluMask),
                            ..base
                        },
                        ScaledMatmul { epilogue: epilogue(Activation::Gelu, input), ..base },
                    ] {
                        agrees(&problem, &HOPPER);
                    }
                }
            }
        }
    }
}

#[test]
fn every_alignment_is_decided_as_the_rules_say() {
    for bytes in [0, 1, 2, 4, 8, 15, 16, 17, 24, 32, 48, 64, 128, 255, 256, 257, 512, u32::MAX] {
        for field in 0..6 {
            let mut alignment = Alignment::MAX;
            let fields = [
                &mut alignment.a,
                &mut alignment.b,
                &mut alignment.c,
                &mut alignment.d,
                &mut alignment.bias,
                &mut alignment.aux,
            ];
            *fields.into_iter().nth(field).unwrap() = bytes;
            let plain = ScaledMatmul {
                alignment,
                ..ScaledMatmul::new(16, 128, 16, E4M3, E4M3, DataType::Bf16)
            };
            let bias = Some(Bias { dtype: DataType::Bf16, batch_stride: 0 });
            let aux = Some(Aux { kind: AuxKind::ReluMask, ld: 128, batch_stride: 0 });
            let epilogue = Epilogue { activation: Activation::Relu, bias, aux };
            agrees(&plain, &HOPPER);
            agrees(&ScaledMatmul { c: Some(plain.d), epilogue, ..plain }, &HOPPER);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    #[test]
    fn random_products_are_decided_as_the_rules_say(
        shape in proptest::array::uniform4(0u64..300),
        pad in proptest::array::uniform4(0u64..40),
        strides in proptest::array::uniform4(0u64..100_000),
        types in (0usize..2, 0usize..2, 0usize..5, 0usize..6, 0usize..6),
        modes in (0usize..12, 0usize..3, 0usize..17, 0u32..4, 0usize..11),
        alignment in 0u32..10,
    ) {
        let [m, n, k, batch] = shape;
        let batch = batch % 4;
        let mut problem = ScaledMatmul::new(
            m, n, k, common::FORMATS[types.0], common::FORMATS[types.1], TYPES[types.2],
        ).batched(batch);
        // Half of the cases keep what is valid more often.
        if pad[0] % 2 == 0 {
            problem.a.ld += pad[0];
            problem.b.ld += pad[1];
            problem.d.ld += pad[2];
            problem.d.batch_stride = strides[2];
            problem.a.batch_stride = strides[0];
            problem.b.batch_stride = strides[1];
        }
        problem.c = common::options(&TYPES)[types.3]
            .map(|dtype| Matrix { dtype, ld: n + pad[3], batch_stride: strides[3] });
        problem.epilogue = Epilogue {
            activation: common::ACTIVATIONS[modes.1],
            bias: common::options(&TYPES)[types.4].map(|dtype| Bias { dtype, batch_stride: n }),
            aux: common::auxes(m, n)[modes.2],
        };
        problem.scales = SCALES[modes.0];
        problem.alignment = Alignment::all(1 << alignment);
        let problem = with_flags(problem).nth(modes.3 as usize).unwrap();
        agrees(&problem, &CAPABILITIES[modes.4]);
    }
}
