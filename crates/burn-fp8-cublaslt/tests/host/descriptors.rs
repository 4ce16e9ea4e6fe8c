//! Descriptors built by libcublasLt itself, without a device, for every plan of the enumeration: what is read back must be the plan.
//!
//! Skipped, and said so, where the library cannot be loaded; with `BURN_FP8_REQUIRE_CUBLASLT=1` that is a failure.
#![allow(unsafe_code, reason = "reads attributes of C handles")]

use crate::common::{SCALES, combinations, with_flags};
use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::descriptor::{Descriptor, Descriptors};
use burn_fp8_cublaslt::raw::constants as c;
use burn_fp8_cublaslt::raw::lt::{Attribute, Lt};
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::skip_unless_required;

/// libcublasLt, or `None` after saying that the test is skipped.
fn cublaslt() -> Option<&'static Lt> {
    match library::cublaslt() {
        Ok(lt) => {
            println!("descriptors by cuBLASLt {}", LibraryVersion::loaded().unwrap());
            Some(lt)
        }
        Err(missing) => {
            skip_unless_required("BURN_FP8_REQUIRE_CUBLASLT", missing);
            None
        }
    }
}

/// Hopper with the library that is loaded.
fn hopper() -> Capability {
    Capability { library: LibraryVersion::loaded().unwrap(), ..crate::common::HOPPER }
}

/// What cuBLASLt calls the types; not taken from the code under test.
fn type_number(dtype: DataType) -> i32 {
    match dtype {
        DataType::F32 => 0,
        DataType::F16 => 2,
        DataType::Bf16 => 14,
        DataType::Fp8(E4M3) => 28,
        DataType::Fp8(E5M2) => 29,
    }
}

const UNSET: i32 = -1;

struct Read(Descriptors);

impl Read {
    fn desc<T: Attribute>(&self, attribute: i32) -> T {
        // SAFETY: the descriptor is alive; each call names the width of cublasLt.h.
        unsafe { self.0.desc.get(attribute) }.unwrap()
    }

    fn layout<T: Attribute>(&self, index: usize, attribute: i32) -> T {
        // SAFETY: as above.
        unsafe { self.0.layouts[index].get(attribute) }.unwrap()
    }
}

/// Compares everything that cuBLASLt knows with the problem, in terms worked out here.
fn compare(lt: &'static Lt, problem: &ScaledMatmul, plan: &Plan) {
    let mut read = Read(Descriptors::build(lt, plan).unwrap_or_else(|e| panic!("{e}: {plan:?}")));
    let Epilogue { activation, bias } = problem.epilogue;
    let Shape { m, n, k } = problem.shape;

    assert_eq!(read.desc::<i32>(c::CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), 68);
    assert_eq!(read.desc::<i32>(c::CUBLASLT_MATMUL_DESC_SCALE_TYPE), 0);
    assert_eq!(read.desc::<i32>(c::CUBLASLT_MATMUL_DESC_TRANSA), 1);
    assert_eq!(read.desc::<i32>(c::CUBLASLT_MATMUL_DESC_TRANSB), 0);
    let fast = read.desc::<i8>(c::CUBLASLT_MATMUL_DESC_FAST_ACCUM);
    assert_eq!(fast == 1, problem.accumulation == Accumulation::Fast);
    let epilogue = match (activation, bias.is_some()) {
        (Activation::None, false) => 1,
        (Activation::None, true) => 4,
        (Activation::Relu, false) => 2,
        (Activation::Relu, true) => 6,
        (Activation::Gelu, false) => 32,
        (Activation::Gelu, true) => 36,
    };
    assert_eq!(read.desc::<u32>(c::CUBLASLT_MATMUL_DESC_EPILOGUE), epilogue);
    let bias_type = bias.map_or(UNSET, type_number);
    assert_eq!(read.desc::<i32>(c::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), bias_type);

    let mode = |scales: Scales, ours_is_a: bool| match scales {
        Scales::None | Scales::PerTensor => 0,
        Scales::PerRow => 3,
        Scales::Blocks { a, b } => match if ours_is_a { a } else { b } {
            BlockScale::Row32 => 2,
            BlockScale::Row128 => 4,
            BlockScale::Square128 => 5,
        },
    };
    let modes = [c::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, c::CUBLASLT_MATMUL_DESC_B_SCALE_MODE];
    // Libraries before 12.8 do not have the attributes.
    if hopper().library >= LibraryVersion::new(12, 8) {
        assert_eq!(read.desc::<i32>(modes[0]), mode(problem.scales, false));
        assert_eq!(read.desc::<i32>(modes[1]), mode(problem.scales, true));
    }

    let (d, batch) = (problem.d, problem.batch);
    let c_ld = problem.c.map_or(d.ld, |c| c.ld);
    let expected = [
        (k, n, problem.b.ld, batch.b, Some(DataType::Fp8(problem.b.format))),
        (k, m, problem.a.ld, batch.a, Some(DataType::Fp8(problem.a.format))),
        (n, m, c_ld, batch.d, problem.c.map(|c| c.dtype)),
        (n, m, d.ld, batch.d, Some(d.dtype)),
    ];
    for (index, (rows, columns, ld, stride, dtype)) in expected.into_iter().enumerate() {
        let count = read.layout::<i32>(index, c::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
        assert_eq!(count as u64, batch.count);
        let offset = read.layout::<u64>(index, c::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
        assert_eq!(offset, if batch.count > 1 { stride } else { 0 });
        assert_eq!(read.layout::<u64>(index, c::CUBLASLT_MATRIX_LAYOUT_ROWS), rows);
        assert_eq!(read.layout::<u64>(index, c::CUBLASLT_MATRIX_LAYOUT_COLS), columns);
        assert_eq!(read.layout::<u64>(index, c::CUBLASLT_MATRIX_LAYOUT_LD), ld);
        if let Some(dtype) = dtype {
            let number = read.layout::<i32>(index, c::CUBLASLT_MATRIX_LAYOUT_TYPE);
            assert_eq!(number, type_number(dtype));
        }
    }
    let [.., c_handle, d_handle] = read.0.raw_layouts();
    assert!(c_handle != d_handle || problem.c.is_none_or(|c| c == d));

    // The heuristics see a pointer exactly where the call has one. Each address lands in its attribute, swapped for A and B.
    let pointers = Pointers {
        scale_a: 0x1000,
        scale_b: 0x2000,
        inverse_scale_d: 0x4000,
        amax_d: 0x5000,
        bias: 0x6000,
        ..Pointers::default()
    };
    let scaled = problem.scales != Scales::None;
    let attributes = [
        (c::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 0x2000, scaled),
        (c::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 0x1000, scaled),
        (c::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, 0x4000, problem.scaled_d),
        (c::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, 0x5000, problem.amax_d),
        (c::CUBLASLT_MATMUL_DESC_BIAS_POINTER, 0x6000, bias.is_some()),
    ];
    for (attribute, _, present) in attributes {
        assert_eq!(read.desc::<u64>(attribute) != 0, present, "{attribute} for the search");
    }
    read.0.set_pointers(plan, &pointers).unwrap();
    for (attribute, expected, present) in attributes {
        assert_eq!(read.desc::<u64>(attribute), if present { expected } else { 0 }, "{attribute}");
    }
}

#[test]
fn every_plan_of_the_enumeration_is_what_cublaslt_reads_back() {
    let Some(lt) = cublaslt() else { return };
    let hopper = hopper();
    let mut built = 0;
    for scales in SCALES {
        combinations(scales, |problem| {
            for (index, mut problem) in with_flags(problem).enumerate() {
                if index % 2 == 1 {
                    problem.accumulation = Accumulation::Fast;
                }
                if let Ok(plan) = plan(&problem, &hopper) {
                    compare(lt, &problem, &plan);
                    built += 1;
                }
            }
        });
    }
    println!("{built} plans built and read back");
    assert!(built > 1000);
}

#[test]
fn padded_layouts_and_alignments_are_what_cublaslt_reads_back() {
    let Some(lt) = cublaslt() else { return };
    let mut problem = ScaledMatmul::new(24, 48, 80, E5M2, E4M3, DataType::F16);
    problem.a = Operand { ld: 96, ..problem.a };
    problem.b = Operand { ld: 112, ..problem.b };
    problem.c = Some(Matrix { dtype: DataType::F16, ld: 64 });
    problem.d = Matrix { dtype: DataType::F16, ld: 56 };
    problem.alignment = Alignment { a: 16, b: 32, c: 64, d: 128, bias: 16 };
    let batch = Batch { count: 5, a: 4096, b: 0, d: 2048 };
    let batch = ScaledMatmul { c: None, batch, ..problem };
    compare(lt, &batch, &plan(&batch, &hopper()).unwrap());
    let plan = plan(&problem, &hopper()).unwrap();
    compare(lt, &problem, &plan);

    let preference = Descriptor::preference(lt, &plan, 32 << 20).unwrap();
    // SAFETY: the preference is alive; the widths are those of cublasLt.h.
    let bytes: u64 =
        unsafe { preference.get(c::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) }.unwrap();
    assert_eq!(bytes, 32 << 20);
    for (attribute, expected) in [
        (c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 32),
        (c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 16),
        (c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 64),
        (c::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 128),
    ] {
        // SAFETY: as above.
        let bytes: u32 = unsafe { preference.get(attribute) }.unwrap();
        assert_eq!(bytes, expected);
    }
}

#[test]
fn the_loaded_library_is_new_enough() {
    if cublaslt().is_some() {
        assert!(LibraryVersion::loaded().unwrap() >= OLDEST_LIBRARY);
    }
}

#[test]
fn a_handle_without_a_device_is_an_error_and_no_crash() {
    let Some(lt) = cublaslt() else { return };
    if library::driver().is_err() {
        let error = lt.create().unwrap_err();
        assert_eq!(error.call, "cublasLtCreate");
        println!("without a driver: {error}");
    }
}
