//! Activation, bias and auxiliary output.

use burn_fp8_core::Fp8Format;

use super::{PlanError, Rule};
use crate::capability::{Capability, ComputeCapability};
use crate::problem::{Activation, Aux, AuxKind, DataType, Epilogue, ScaledMatmul};
use crate::raw::constants as k;

const E4M3: DataType = DataType::Fp8(Fp8Format::E4M3);

/// `c` is the type of C, given or implied.
pub(super) fn check(problem: &ScaledMatmul, c: DataType) -> Result<(), PlanError> {
    let Epilogue { activation, bias, aux } = problem.epilogue;
    let (shape, d) = (problem.shape, problem.d.dtype);
    let Some(Aux { kind, ld, batch_stride }) = aux else { return Ok(()) };
    let multiple = match (activation, kind) {
        (Activation::Relu, AuxKind::ReluMask) => 128,
        (Activation::Gelu, AuxKind::GeluInput { dtype, scaled, amax }) => {
            let all_e4m3 =
                [problem.a.format, problem.b.format] == [Fp8Format::E4M3; 2] && d == E4M3;
            let exception = all_e4m3 && bias.is_none() && dtype == c;
            if dtype != d && !exception {
                return Err(PlanError::new(
                    Rule::AuxType,
                    format!("it is {dtype} where D is {d} and C is {c}"),
                    "choose the type of D",
                ));
            }
            if (scaled || amax) && !dtype.is_fp8() {
                let found = format!("it is {dtype}");
                return Err(PlanError::new(Rule::AuxScale, found, "ask for neither"));
            }
            8
        }
        (activation, kind) => {
            return Err(PlanError::new(
                Rule::AuxKind,
                format!("the activation is {activation:?} and the auxiliary output {kind:?}"),
                "leave it out, or choose the one of the activation",
            ));
        }
    };
    if ld < shape.n || ld % multiple != 0 || ld > i64::MAX as u64 {
        return Err(PlanError::new(
            Rule::AuxLd,
            format!("it is {ld} and N is {}", shape.n),
            "pad its rows",
        ));
    }
    let extent = u128::from(shape.m) * u128::from(ld);
    let overlaps = u128::from(batch_stride) < extent;
    if shape.batch > 1
        && (overlaps || batch_stride % multiple != 0 || batch_stride > i64::MAX as u64)
    {
        return Err(PlanError::new(
            Rule::AuxStride,
            format!("it is {batch_stride} and a matrix has {extent}"),
            "store the matrices one after the other",
        ));
    }
    Ok(())
}

/// `cublasLtEpilogue_t`.
pub(super) fn number(epilogue: &Epilogue) -> u32 {
    let activation = match epilogue.activation {
        Activation::None => 0,
        Activation::Relu => k::CUBLASLT_EPILOGUE_RELU,
        Activation::Gelu => k::CUBLASLT_EPILOGUE_GELU,
    };
    let aux = if epilogue.aux.is_some() { k::CUBLASLT_EPILOGUE_AUX } else { 0 };
    let bias = if epilogue.bias.is_some() { k::CUBLASLT_EPILOGUE_BIAS } else { 0 };
    match activation | aux | bias {
        0 => k::CUBLASLT_EPILOGUE_DEFAULT,
        number => number,
    }
}

/// Combinations that the FP8 tests of nvmath-python (`test_fp8_epilogs.py`, NVIDIA) let cuBLASLt refuse.
pub(super) fn gap(
    problem: &ScaledMatmul,
    c: DataType,
    capability: &Capability,
) -> Option<&'static str> {
    let Epilogue { activation, bias, aux } = problem.epilogue;
    let (d, mixed) = (problem.d.dtype, problem.a.format != problem.b.format);
    let ada = capability.compute <= ComputeCapability::SM_89;
    match (activation, aux) {
        (Activation::Gelu, _) if d == DataType::F32 => {
            Some("GELU with D in F32 is not always there")
        }
        (Activation::Gelu, None) if d.is_fp8() => Some("GELU with D in FP8 is not always there"),
        (Activation::Gelu, Some(_)) if d == DataType::F16 => {
            Some("GELU with its input in F16 is not always there")
        }
        (Activation::Relu, Some(_)) if mixed => {
            Some("the mask of ReLU with operands of two formats is not always there")
        }
        (Activation::Relu, Some(_)) if bias.is_some() && c == DataType::F32 => {
            Some("the mask of ReLU with bias and D in F32 is not always there")
        }
        (_, Some(_)) if ada && d.is_fp8() && problem.shape.batch > 1 => {
            Some("auxiliary outputs of a batch with D in FP8 are not always there on Ada")
        }
        (Activation::Gelu, Some(_)) if ada && mixed => {
            Some("GELU with its input and operands of two formats is not always there on Ada")
        }
        _ => None,
    }
}
