//! The rules of NVIDIA's documentation, one after the other: device, dimensions, types, scales, memory.

use burn_fp8_core::Fp8Format::{E4M3, E5M2};

use super::error::{PlanError, Rule, ensure};
use crate::capability::{Capability, oldest_library};
use crate::problem::{Batch, BlockScale, DataType, Epilogue, ScaledMatmul, Scales};
use crate::version::{ComputeCapability, LibraryVersion};

/// What pointers, rows and strides are multiples of, in bytes ("Tensor Core Usage" of the cuBLAS documentation).
const ALIGNMENT: u64 = 16;

/// The first cuBLASLt with scales per row and per block of 128.
const SCALE_VECTORS: LibraryVersion = LibraryVersion::new(12, 9);

pub(super) fn check(problem: &ScaledMatmul, capability: &Capability) -> Result<(), PlanError> {
    device(capability)?;
    dimensions(problem)?;
    types(problem)?;
    scales(problem, capability)?;
    batch(problem)?;
    memory(problem)
}

fn device(capability: &Capability) -> Result<(), PlanError> {
    let Capability { compute, library, .. } = *capability;
    let remedy = "use Ada, Hopper or Blackwell, or emulate FP8";
    ensure(compute >= ComputeCapability::SM_89, Rule::Device, remedy, || {
        format!("the device is {compute}")
    })?;
    let oldest = oldest_library(compute);
    ensure(library >= oldest, Rule::Library, "install a newer CUDA toolkit", || {
        format!("cuBLASLt is {library} where {compute} needs {oldest}")
    })
}

fn dimensions(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let shape = problem.shape;
    let count = problem.batch.count;
    for (name, value) in [("M", shape.m), ("N", shape.n), ("K", shape.k), ("the batch", count)] {
        let remedy = "skip the product: its result is empty, or zero where K is 0";
        ensure(value != 0, Rule::DimensionZero, remedy, || format!("{name} is 0"))?;
        let fits = value <= i32::MAX as u64;
        ensure(fits, Rule::DimensionRange, "split the product", || format!("{name} is {value}"))?;
    }
    let is_multiple = shape.k.is_multiple_of(ALIGNMENT);
    ensure(is_multiple, Rule::KMultiple, "pad A and B with zeros along K", || {
        format!("K is {}", shape.k)
    })
}

/// Which element types go together: the table of FP8 kernels in the section "cublasLtMatmul()" of the cuBLAS documentation.
///
/// | A × B                      | C    | D                | bias |
/// |----------------------------|------|------------------|------|
/// | E4M3 × E4M3                | BF16 | BF16, E4M3       | BF16 |
/// |                            | F16  | F16, E4M3        | F16  |
/// |                            | F32  | F32              | BF16 |
/// | E4M3 × E5M2, E5M2 × E4M3   | BF16 | BF16, E4M3, E5M2 | BF16 |
/// |                            | F16  | F16, E4M3, E5M2  | F16  |
/// |                            | F32  | F32              | BF16 |
fn types(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let (formats, d) = ([problem.a.format, problem.b.format], problem.d.dtype);
    let remedy = "quantize one of them to E4M3";
    ensure(formats != [E5M2; 2], Rule::OperandFormats, remedy, || "A and B are both E5M2".into())?;
    let fits = d != DataType::Fp8(E5M2) || formats != [E4M3; 2];
    ensure(fits, Rule::OutputType, "store D as E4M3, BF16, F16 or F32", || {
        "D is E5M2 and A and B are E4M3".into()
    })?;
    let c = type_of_c(problem);
    let fits = if d.is_fp8() { matches!(c, DataType::Bf16 | DataType::F16) } else { c == d };
    ensure(fits, Rule::CType, "convert C, or choose another type of D", || {
        format!("C is {c} and D is {d}")
    })?;
    let Some(bias) = problem.epilogue.bias else { return Ok(()) };
    let wanted = if c == DataType::F32 { DataType::Bf16 } else { c };
    ensure(bias == wanted, Rule::BiasType, "convert the bias", || {
        format!("the bias is {bias} and D is {d} with C in {c}, which needs {wanted}")
    })
}

/// The type of C. Where there is none cuBLASLt is told D's, or, for D in FP8, what the bias needs.
pub(super) fn type_of_c(problem: &ScaledMatmul) -> DataType {
    let d = problem.d.dtype;
    match (problem.c, problem.epilogue.bias) {
        (Some(c), _) => c.dtype,
        (None, _) if !d.is_fp8() => d,
        (None, Some(DataType::F16)) => DataType::F16,
        _ => DataType::Bf16,
    }
}

/// Which scales a device, a library and an output allow.
///
/// From "Scaling Mode Support Overview" of the cuBLAS documentation: per tensor on 8.9 and newer; outer vectors (here: per row),
/// 128-element and 128×128 blocks on 9.0 alone; blocks of 32 with scales in UE8M0 (MXFP8) on 10.0 and newer.
fn scales(problem: &ScaledMatmul, capability: &Capability) -> Result<(), PlanError> {
    let (d, shape) = (problem.d.dtype, problem.shape);
    let is_fp8 = d.is_fp8();
    let remedy = "put the factor into alpha or a scale";
    ensure(!problem.scaled_d || is_fp8, Rule::ScaleD, remedy, || format!("D is {d}"))?;
    let remedy = "compute the amax in a kernel";
    ensure(!problem.amax_d || is_fp8, Rule::AmaxD, remedy, || format!("D is {d}"))?;
    let blocks = match problem.scales {
        Scales::None | Scales::PerTensor => return Ok(()),
        Scales::PerRow => None,
        Scales::Blocks { a, b } => Some([a, b]),
    };
    let of_32 = |block: BlockScale| block == BlockScale::Row32;
    let alike = blocks.is_none_or(|[a, b]| of_32(a) == of_32(b));
    ensure(alike, Rule::ScaleBlocks, "give both blocks of 32", || {
        "one has blocks of 32, the other one of 128".into()
    })?;
    let is_mx = blocks.is_some_and(|[a, _]| of_32(a));
    let name = match blocks {
        None => "per row",
        Some(_) if is_mx => "per block of 32",
        Some(_) => "per block of 128",
    };
    let Capability { compute, library, .. } = *capability;
    let has_scales = match is_mx {
        true => compute >= ComputeCapability::SM_100,
        false => compute == ComputeCapability::SM_90,
    };
    ensure(has_scales, Rule::ScaleDevice, "use one scale per tensor", || {
        format!("scales are {name} and the device is {compute}")
    })?;
    // Blackwell needs a library that has blocks of 32 already.
    let remedy = "install a newer CUDA toolkit, or use one scale per tensor";
    ensure(is_mx || library >= SCALE_VECTORS, Rule::ScaleLibrary, remedy, || {
        format!("scales are {name} and cuBLASLt is {library}")
    })?;
    ensure(!is_fp8, Rule::ScaleOutput, "store D in BF16, F16 or F32", || {
        format!("scales are {name} and D is {d}")
    })?;
    let both_square = blocks == Some([BlockScale::Square128; 2]);
    let remedy = "give one operand a scale per 1×128 block";
    ensure(!both_square, Rule::ScaleBlocks, remedy, || "both have blocks of 128×128".into())?;
    let whole = is_mx || blocks.is_none() || [shape.m, shape.n].iter().all(|n| n % 4 == 0);
    ensure(whole, Rule::ScaleBlockShape, "pad with zeros", || {
        format!("M is {} and N is {}", shape.m, shape.n)
    })
}

fn batch(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let Batch { count, d: stride, .. } = problem.batch;
    if count == 1 {
        return Ok(());
    }
    let is_plain = matches!(problem.scales, Scales::None | Scales::PerTensor)
        && problem.c.is_none()
        && problem.epilogue == Epilogue::NONE
        && !problem.scaled_d
        && !problem.amax_d;
    ensure(is_plain, Rule::PlainBatch, "run the products one by one", || {
        format!("there are {count} products with more")
    })?;
    // The last row may end with its last column, but the next matrix must not start before.
    let (shape, d) = (problem.shape, problem.d);
    let span = u128::from(shape.m - 1) * u128::from(d.ld) + u128::from(shape.n);
    let remedy = "store the matrices one after the other";
    ensure(u128::from(stride) >= span, Rule::StrideRange, remedy, || {
        format!("the stride is {stride} elements and a matrix spans {span}")
    })
}

/// Leading dimensions, strides and alignment of A, B, C and D.
fn memory(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let (shape, d) = (problem.shape, problem.d);
    for (name, dtype) in [("C", type_of_c(problem)), ("D", d.dtype)] {
        let remedy = "pad B with zero rows and D with columns, for example to a multiple of 16";
        let is_multiple = (shape.n * dtype.size()).is_multiple_of(ALIGNMENT);
        ensure(is_multiple, Rule::NMultiple, remedy, || {
            format!("N is {} and {name} is {dtype}", shape.n)
        })?;
    }
    let (a, b) = (DataType::Fp8(problem.a.format), DataType::Fp8(problem.b.format));
    let batch = problem.batch;
    let all = [
        Some(("A", a, [shape.m, shape.k], problem.a.ld, batch.a)),
        Some(("B", b, [shape.n, shape.k], problem.b.ld, batch.b)),
        problem.c.map(|c| ("C", c.dtype, [shape.m, shape.n], c.ld, batch.d)),
        Some(("D", d.dtype, [shape.m, shape.n], d.ld, batch.d)),
    ];
    for (name, dtype, [rows, columns], ld, stride) in all.into_iter().flatten() {
        let stride = if batch.count == 1 { 0 } else { stride };
        let remedy = "pass the distance between rows in elements";
        ensure(ld >= columns, Rule::LdRange, remedy, || {
            format!("that of {name} is {ld} where a row has {columns} elements")
        })?;
        let others = u128::from(batch.count - 1) * u128::from(stride);
        let elements = u128::from(rows) * u128::from(ld) + others;
        let extent = elements.saturating_mul(dtype.size().into());
        let remedy = "check its leading dimension and stride";
        ensure(extent <= i64::MAX as u128, Rule::Extent, remedy, || {
            format!("{name} spans {extent} bytes")
        })?;
        let is_multiple = (ld * dtype.size()).is_multiple_of(ALIGNMENT);
        ensure(is_multiple, Rule::LdMultiple, "pad its rows", || {
            format!("that of {name} is {ld} elements of {dtype}")
        })?;
        let is_multiple = (stride * dtype.size()).is_multiple_of(ALIGNMENT);
        ensure(is_multiple, Rule::StrideMultiple, "pad its matrices", || {
            format!("that of {name} is {stride} elements of {dtype}")
        })?;
    }
    let alignment = problem.alignment;
    let used = [
        ("A", Some(alignment.a)),
        ("B", Some(alignment.b)),
        ("C", problem.c.map(|_| alignment.c)),
        ("D", Some(alignment.d)),
        ("the bias", problem.epilogue.bias.map(|_| alignment.bias)),
    ];
    for (name, bytes) in used {
        let Some(bytes) = bytes else { continue };
        let aligned = bytes.is_power_of_two() && (16..=256).contains(&bytes);
        ensure(aligned, Rule::Alignment, "copy it to an aligned allocation", || {
            format!("{name} is aligned to {bytes} bytes")
        })?;
    }
    Ok(())
}
