//! Which element types go together.
//!
//! The table of FP8 kernels in the section "cublasLtMatmul()" of the cuBLAS documentation:
//!
//! | A × B                      | C    | D                | bias |
//! |----------------------------|------|------------------|------|
//! | E4M3 × E4M3                | BF16 | BF16, E4M3       | BF16 |
//! |                            | F16  | F16, E4M3        | F16  |
//! |                            | F32  | F32              | BF16 |
//! | E4M3 × E5M2, E5M2 × E4M3   | BF16 | BF16, E4M3, E5M2 | BF16 |
//! |                            | F16  | F16, E4M3, E5M2  | F16  |
//! |                            | F32  | F32              | BF16 |

use burn_fp8_core::Fp8Format;

use super::error::{PlanError, Rule};
use crate::data_type::DataType;
use crate::problem::ScaledMatmul;

/// Checks A, B, C, D and the bias; returns the type of C, implied where there is no C.
pub(super) fn check(problem: &ScaledMatmul) -> Result<DataType, PlanError> {
    let (a, b, d) = (problem.a.format, problem.b.format, problem.d.dtype);
    if (a, b) == (Fp8Format::E5M2, Fp8Format::E5M2) {
        return Err(PlanError::new(
            Rule::OperandFormats,
            "A and B are both E5M2",
            "quantize one of them to E4M3",
        ));
    }
    if d == DataType::Fp8(Fp8Format::E5M2) && (a, b) == (Fp8Format::E4M3, Fp8Format::E4M3) {
        return Err(PlanError::new(
            Rule::OutputType,
            "D is E5M2 and A and B are E4M3",
            "store D as E4M3, BF16, F16 or F32",
        ));
    }
    let c = of_c(problem);
    let c_fits = if d.is_fp8() { matches!(c, DataType::Bf16 | DataType::F16) } else { c == d };
    if !c_fits {
        return Err(PlanError::new(
            Rule::CType,
            format!("C is {c} and D is {d}"),
            "convert C, or choose another type of D",
        ));
    }
    if let Some(bias) = problem.epilogue.bias {
        let wanted = if c == DataType::F32 { DataType::Bf16 } else { c };
        if bias.dtype != wanted {
            return Err(PlanError::new(
                Rule::BiasType,
                format!(
                    "the bias is {} and D is {d} with C in {c}, which needs {wanted}",
                    bias.dtype
                ),
                "convert the bias",
            ));
        }
    }
    Ok(c)
}

/// The type of C. Where there is none cuBLASLt is told D's, or, for D in FP8, what the bias needs.
pub(super) fn of_c(problem: &ScaledMatmul) -> DataType {
    if let Some(c) = problem.c {
        return c.dtype;
    }
    let d = problem.d.dtype;
    if !d.is_fp8() {
        return d;
    }
    match problem.epilogue.bias.map(|bias| bias.dtype) {
        Some(DataType::F16) => DataType::F16,
        _ => DataType::Bf16,
    }
}
