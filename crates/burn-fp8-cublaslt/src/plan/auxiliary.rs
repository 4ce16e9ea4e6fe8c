//! Auxiliary outputs, for users of this crate: burn-fp8 asks for none.

use super::error::{PlanError, Rule};
use crate::auxiliary::{Aux, AuxKind};
use crate::problem::{Activation, Epilogue, ScaledMatmul};

pub(super) fn check(problem: &ScaledMatmul) -> Result<(), PlanError> {
    let Epilogue { activation, bias: _, aux } = problem.epilogue;
    let (shape, d) = (problem.shape, problem.d.dtype);
    let Some(Aux { kind, ld, batch_stride }) = aux else { return Ok(()) };
    let multiple = match (activation, kind) {
        (Activation::Relu, AuxKind::ReluMask) => 128,
        (Activation::Gelu, AuxKind::GeluInput { dtype, scaled, amax }) => {
            if dtype != d {
                return Err(PlanError::new(
                    Rule::AuxType,
                    format!("it is {dtype} and D is {d}"),
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
