//! Products that break no rule and that cuBLASLt may have no algorithm for.

use burn_fp8_core::Fp8Format::{E4M3, E5M2};

use crate::problem::{Activation, BlockScale, DataType, Epilogue, ScaledMatmul, Scales};

pub(super) fn of(problem: &ScaledMatmul) -> Option<&'static str> {
    of_scales(problem).or_else(|| of_epilogue(problem))
}

/// What PyTorch's tests of cuBLASLt on Hopper (`test_scaled_matmul_cuda.py`) leave out.
///
/// With scales per row they run E4M3 × E4M3 into BF16, F16 and F32, and E4M3 × E5M2 into BF16; with scales per block E4M3 × E4M3 into
/// BF16 and F32, with every dimension a multiple of 128; with MXFP8 on Blackwell E4M3 × E4M3 into BF16; without an epilogue. NVIDIA's documentation names types for a scale per
/// tensor only.
fn of_scales(problem: &ScaledMatmul) -> Option<&'static str> {
    let (formats, d) = ([problem.a.format, problem.b.format], problem.d.dtype);
    match problem.scales {
        Scales::None | Scales::PerTensor => None,
        _ if problem.epilogue != Epilogue::NONE || problem.c.is_some() => {
            Some("scales per row or per block with C or an epilogue are not always there")
        }
        Scales::PerRow => {
            let tested = formats == [E4M3; 2] || (formats, d) == ([E4M3, E5M2], DataType::Bf16);
            (!tested).then_some("scales per row with operands of two formats are not always there")
        }
        Scales::Blocks { a: BlockScale::Row32, .. } => {
            let tested = formats == [E4M3; 2] && d == DataType::Bf16;
            (!tested).then_some(
                "scales per block of 32 with an operand in E5M2, or D in F32 or F16, are not always there",
            )
        }
        Scales::Blocks { .. } if formats != [E4M3; 2] => {
            Some("scales per block with an operand in E5M2 are not always there")
        }
        Scales::Blocks { .. } if d == DataType::F16 => {
            Some("scales per block with D in F16 are not always there")
        }
        Scales::Blocks { .. } => {
            let shape = problem.shape;
            let whole = [shape.m, shape.n, shape.k].iter().all(|size| size.is_multiple_of(128));
            (!whole).then_some(
                "scales per block with a dimension that is no multiple of 128 are not always there",
            )
        }
    }
}

/// Combinations that the FP8 tests of nvmath-python (`test_fp8_epilogs.py`, NVIDIA) let cuBLASLt refuse.
fn of_epilogue(problem: &ScaledMatmul) -> Option<&'static str> {
    let d = problem.d.dtype;
    match problem.epilogue.activation {
        Activation::Gelu if d == DataType::F32 => Some("GELU with D in F32 is not always there"),
        Activation::Gelu if d.is_fp8() => Some("GELU with D in FP8 is not always there"),
        _ => None,
    }
}
