//! Products on a GPU against f64 sums of decoded codes, and bit for bit against the sums that its tensor cores are said to have.
//!
//! `cargo test -p burn-fp8-cublaslt --release --test gpu -- --ignored --nocapture --test-threads=1`
#![allow(unsafe_code, reason = "passes device pointers")]

mod data;
mod device;
mod model;
mod ordering;
mod sums;

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::Random;
use data::{Case, Inputs};
use device::{Gpu, OnDevice, check, compare, is_small};
use model::compare_bits;

const PAIRS: [(Fp8Format, Fp8Format); 3] = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)];
const OUTPUTS: [DataType; 5] =
    [DataType::Bf16, DataType::F16, DataType::F32, DataType::Fp8(E4M3), DataType::Fp8(E5M2)];

/// Calls `visit` with every pair of formats and every output that the table allows, 48×80×96.
fn each_type(mut visit: impl FnMut(ScaledMatmul)) {
    for (a, b) in PAIRS {
        for d in OUTPUTS {
            if d != DataType::Fp8(E5M2) || a != b {
                visit(ScaledMatmul::new(48, 80, 96, a, b, d));
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn every_format_and_output_is_right_with_and_without_fast_accumulation() {
    let gpu = Gpu::new();
    each_type(|problem| {
        for (accumulation, scales) in [
            (Accumulation::Precise, Scales::PerTensor),
            (Accumulation::Fast, Scales::PerTensor),
            (Accumulation::Fast, Scales::None),
        ] {
            let large = if is_small() { (64, 48, 256) } else { (256, 192, 1024) };
            for (m, n, k) in [(48, 80, 96), (16, 16, 16), large] {
                let problem = ScaledMatmul {
                    accumulation,
                    scales,
                    ..ScaledMatmul::new(
                        m,
                        n,
                        k,
                        problem.a.format,
                        problem.b.format,
                        problem.d.dtype,
                    )
                };
                assert!(check(&gpu, &Case::new(problem), 1));
            }
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn padded_rows_and_any_m_are_right_and_padding_stays_untouched() {
    let gpu = Gpu::new();
    each_type(|problem| {
        for m in [1, 7, 37, 130] {
            let mut problem = problem;
            problem.shape.m = m;
            problem.a.ld = 112;
            problem.b.ld = 128;
            problem.d.ld = 96;
            problem.alignment = Alignment::all(16);
            assert!(check(&gpu, &Case::new(problem), m));
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn batches_are_right_also_with_a_shared_operand_and_operands_between_each_other() {
    let gpu = Gpu::new();
    each_type(|problem| {
        let (Shape { m, n, k }, d) = (problem.shape, problem.d.ld);
        let one = Batch { count: 3, a: m * k, b: n * k, d: m * d };
        let shared = Batch { a: one.a + 256, b: 0, d: one.d + 256, ..one };
        for batch in [one, shared] {
            assert!(check(&gpu, &Case::new(ScaledMatmul { batch, ..problem }), 3));
        }
        // As transposed codes of a batch lie: the rows of a matrix as far apart as all matrices are wide.
        let mut problem = ScaledMatmul { batch: Batch { a: k, ..one }, ..problem };
        problem.a.ld = 3 * k;
        assert!(check(&gpu, &Case::new(problem), 4));
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn outputs_in_fp8_are_scaled_and_their_amax_is_right() {
    let gpu = Gpu::new();
    each_type(|problem| {
        if problem.d.dtype.is_fp8() {
            for (scaled_d, amax_d) in [(true, false), (false, true), (true, true)] {
                let problem = ScaledMatmul { scaled_d, amax_d, ..problem };
                assert!(check(&gpu, &Case::new(problem), 5));
            }
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn c_is_added_times_beta_beside_d_and_in_place() {
    let gpu = Gpu::new();
    each_type(|mut problem| {
        let types: &[DataType] = match problem.d.dtype {
            DataType::Fp8(_) => &[DataType::Bf16, DataType::F16],
            ref other => std::slice::from_ref(other),
        };
        for dtype in types {
            problem.c = Some(Matrix { dtype: *dtype, ld: 88 });
            assert!(check(&gpu, &Case::new(problem), 6));
        }
        if !problem.d.dtype.is_fp8() {
            problem.c = Some(problem.d);
            assert!(check(&gpu, &Case { in_place: true, ..Case::new(problem) }, 7));
        }
    });
}

/// The types of bias that go with an output.
fn bias_types(d: DataType) -> &'static [DataType] {
    match d {
        DataType::F16 => &[DataType::F16],
        DataType::Bf16 | DataType::F32 => &[DataType::Bf16],
        DataType::Fp8(_) => &[DataType::Bf16, DataType::F16],
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn bias_and_activations_are_right() {
    let gpu = Gpu::new();
    let (mut ran, mut gaps) = (0, 0);
    each_type(|mut problem| {
        for activation in [Activation::None, Activation::Relu, Activation::Gelu] {
            let biases = bias_types(problem.d.dtype).iter().copied().map(Some);
            for bias in biases.chain([None]) {
                problem.epilogue = Epilogue { activation, bias };
                if check(&gpu, &Case::new(problem), 20) { ran += 1 } else { gaps += 1 }
            }
        }
    });
    println!("{ran} ran, {gaps} known gaps");
    assert!(ran > 40);
}

/// Blocks of MXFP8.
const MX: Scales = Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row32 };

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn scales_per_row_and_per_block_are_right_where_the_device_has_them() {
    let gpu = Gpu::new();
    let blocks = |a, b| Scales::Blocks { a, b };
    let modes = [
        Scales::PerRow,
        blocks(BlockScale::Row128, BlockScale::Row128),
        blocks(BlockScale::Row128, BlockScale::Square128),
        blocks(BlockScale::Square128, BlockScale::Row128),
        MX,
    ];
    let Capability { compute, library, .. } = gpu.lt.capability();
    let of_hopper = compute == ComputeCapability::SM_90 && library >= LibraryVersion::new(12, 9);
    let (mut ran, mut gaps) = (0, 0);
    for scales in modes {
        let there = if scales == MX { compute >= ComputeCapability::SM_100 } else { of_hopper };
        for (m, n, k) in [(64, 80, 96), (256, 256, 384), (132, 144, 1152)] {
            for (a, b) in PAIRS {
                for d in [DataType::Bf16, DataType::F16, DataType::F32] {
                    let problem = ScaledMatmul { scales, ..ScaledMatmul::new(m, n, k, a, b, d) };
                    if !there {
                        let error =
                            plan(&problem, &gpu.lt.capability()).expect_err("another device's");
                        assert!(matches!(error.rule, Rule::ScaleDevice | Rule::ScaleLibrary));
                    } else if check(&gpu, &Case::new(problem), 9) {
                        ran += 1;
                    } else {
                        gaps += 1;
                    }
                }
            }
        }
    }
    println!("{ran} ran, {gaps} known gaps");
}

/// NVIDIA's documentation asks for rows of 16 bytes only. Where this fails, `Rule::NMultiple` has to be narrower.
#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn n_that_fills_16_bytes_of_d_but_is_no_multiple_of_16_is_right() {
    let gpu = Gpu::new();
    for (n, d) in
        [(8, DataType::Bf16), (24, DataType::F16), (4, DataType::F32), (20, DataType::F32)]
    {
        let case = Case::new(ScaledMatmul::new(32, n, 64, E4M3, E4M3, d));
        assert!(check(&gpu, &case, 10));
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn the_heuristics_are_asked_once_and_their_choice_is_kept() {
    let gpu = Gpu::new();
    let size = if is_small() { 64 } else { 512 };
    let case = Case::new(ScaledMatmul::new(size, size, size, E4M3, E4M3, DataType::Bf16));
    let problem = case.problem;
    let by_heuristics = gpu.lt.prepare(&problem).unwrap();
    assert_eq!(gpu.lt.prepare(&problem).unwrap(), by_heuristics);
    assert_eq!(gpu.lt.cache_statistics(), (1, 1));

    let inputs = Inputs::new(&problem, &mut Random(11));
    let device = OnDevice::new(&case, &inputs);
    println!("{by_heuristics}");
    // SAFETY: the buffers cover the product and live until the end.
    let launch = unsafe { gpu.lt.run(&problem, &device.pointers, case.alpha, case.beta) }.unwrap();
    assert_eq!(launch.algorithm, by_heuristics);
    gpu.synchronize();
    compare(&gpu, &case, &inputs, &device);

    let start = std::time::Instant::now();
    let calls = if is_small() { 10 } else { 1000 };
    for _ in 0..calls {
        // SAFETY: as above.
        unsafe { gpu.lt.run(&problem, &device.pointers, case.alpha, case.beta) }.unwrap();
    }
    println!("{:?} on the host for each call", start.elapsed() / calls);
    gpu.synchronize();
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn without_a_workspace_products_run_or_name_what_they_need() {
    let gpu = Gpu::new();
    let without = CublasLt::with_workspace(0).unwrap();
    let problem = ScaledMatmul::new(64, 64, 65536, E4M3, E4M3, DataType::F32);
    match without.prepare(&problem) {
        Ok(info) => assert_eq!(info.workspace, 0),
        Err(Error::Workspace { available, needed, .. }) => assert!(available == 0 && needed > 0),
        Err(error) => panic!("{error}"),
    }
    assert!(gpu.lt.prepare(&problem).unwrap().workspace <= WORKSPACE_BYTES);
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn errors_are_typed_and_a_broken_rule_is_found_once() {
    let gpu = Gpu::new();
    let bad = ScaledMatmul::new(32, 32, 24, E4M3, E4M3, DataType::Bf16);
    for _ in 0..2 {
        assert!(matches!(
            gpu.lt.prepare(&bad),
            Err(Error::Plan(PlanError { rule: Rule::KMultiple, .. }))
        ));
    }
    assert_eq!(gpu.lt.cache_statistics(), (1, 1));
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            assert_eq!(CublasLt::current().err(), Some(ContextError::NoneCurrent.into()));
            gpu.lt.prepare(&bad).unwrap_err()
        });
        assert_eq!(elsewhere.join().unwrap(), ContextError::NoneCurrent.into());
    });
    assert!(matches!(
        Capability::probe(4096),
        Err(Unavailable::NoSuchDevice { ordinal: 4096, .. })
    ));
    assert_eq!(Capability::probe(0), Ok(gpu.lt.capability()));
}

/// D with a scale each, in f32, where all codes are `code` and K is 4096. Every element must be the same.
fn product_of_scales(gpu: &Gpu, code: u8, scales: [f32; 2]) -> f64 {
    let problem = ScaledMatmul::new(16, 16, 4096, E4M3, E4M3, DataType::F32);
    let case = Case { alpha: 1.0, ..Case::new(problem) };
    let mut inputs = Inputs::new(&problem, &mut Random(12));
    inputs.a.fill(code);
    inputs.b.fill(code);
    [inputs.scale_a, inputs.scale_b] = scales.map(|scale| vec![scale]);
    let device = OnDevice::new(&case, &inputs);
    // SAFETY: the buffers cover the product and live until the synchronization.
    unsafe { gpu.lt.run(&problem, &device.pointers, 1.0, 0.0) }.unwrap();
    gpu.synchronize();
    let bytes = device.d.read();
    compare_bits(gpu.lt.capability().compute, &case, &inputs, &bytes);
    let got = data::decode(DataType::F32, &bytes);
    assert!(got.iter().all(|other| other.to_bits() == got[0].to_bits()), "{got:?}");
    println!("codes {code:#x}, scales {scales:?}: {:e}", got[0]);
    got[0]
}

/// 448, the largest number of E4M3.
const LARGEST: u8 = 0x7E;

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn scales_whose_product_is_normal_are_exact_however_small_or_large_each_is() {
    let gpu = Gpu::new();
    let sum = 448.0 * 448.0 * 4096.0;
    let [small, large] = [2f32.powi(-100), 2f32.powi(90)];
    for scales in [[small, large], [large, small]] {
        let got = product_of_scales(&gpu, LARGEST, scales);
        let exact = sum * 2f64.powi(-10);
        assert!((got - exact).abs() <= 2f64.powi(-8) * exact, "{got:e}, exactly {exact:e}");
        assert_eq!(product_of_scales(&gpu, 0, scales), 0.0);
    }
}

/// What cuBLASLt does where the product of both scales is no normal f32: its documentation does not say in which order it
/// multiplies, so that the result may be exact, underflow or overflow. With one of them put off it must be exact.
#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn scales_whose_product_is_not_normal_are_exact_one_after_the_other() {
    let gpu = Gpu::new();
    let sum = 448.0 * 448.0 * 4096.0;
    for [first, second] in [[2f32.powi(-76), 2f32.powi(-78)], [2f32.powi(90), 2f32.powi(40)]] {
        let exact = sum * f64::from(first) * f64::from(second);
        let at_once = product_of_scales(&gpu, LARGEST, [first, second]);
        let lost = if first < 1.0 { 0.0 } else { f64::INFINITY };
        let close = |got: f64| (got - exact).abs() <= 2f64.powi(-8) * exact;
        assert!(close(at_once) || at_once == lost, "{at_once:e}, exactly {exact:e}");
        let later = product_of_scales(&gpu, LARGEST, [first, 1.0]) * f64::from(second);
        assert!(close(later), "{later:e}, exactly {exact:e}");
    }
}
