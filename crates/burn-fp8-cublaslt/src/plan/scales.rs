//! Which scales a device, a library and an output allow.
//!
//! From "Scaling Mode Support Overview" of the cuBLAS documentation: per tensor on 8.9 and newer; outer vectors (here: per row),
//! 128-element and 128×128 blocks on 9.0 alone; blocks of 32 with scales in UE8M0 (MXFP8) on 10.0 and newer.

use super::error::{PlanError, Rule};
use crate::capability::Capability;
use crate::problem::{BlockScale, ScaledMatmul, Scales};
use crate::version::{ComputeCapability, LibraryVersion};

/// The first cuBLASLt with scales per row and per block of 128.
const SCALE_VECTORS: LibraryVersion = LibraryVersion::new(12, 9);

pub(super) fn check(problem: &ScaledMatmul, capability: &Capability) -> Result<(), PlanError> {
    let (d, shape) = (problem.d.dtype, problem.shape);
    if problem.scaled_d && !d.is_fp8() {
        return Err(PlanError::new(
            Rule::ScaleD,
            format!("D is {d}"),
            "put the factor into alpha or a scale",
        ));
    }
    if problem.amax_d && !d.is_fp8() {
        return Err(PlanError::new(
            Rule::AmaxD,
            format!("D is {d}"),
            "compute the amax in a kernel",
        ));
    }
    let (name, is_mx) = match problem.scales {
        Scales::None | Scales::PerTensor => return Ok(()),
        Scales::PerRow => ("per row", false),
        Scales::Blocks { a, b } => match [a, b].map(|block| block == BlockScale::Row32) {
            [true, true] => ("per block of 32", true),
            [false, false] => ("per block of 128", false),
            _ => {
                return Err(PlanError::new(
                    Rule::ScaleBlocks,
                    "one has blocks of 32, the other one of 128",
                    "give both blocks of 32",
                ));
            }
        },
    };
    let has_scales = match is_mx {
        true => capability.compute >= ComputeCapability::SM_100,
        false => capability.compute == ComputeCapability::SM_90,
    };
    if !has_scales {
        let found = format!("scales are {name} and the device is {}", capability.compute);
        return Err(PlanError::new(Rule::ScaleDevice, found, "use one scale per tensor"));
    }
    // Blackwell needs a library that has blocks of 32 already.
    if !is_mx && capability.library < SCALE_VECTORS {
        let found = format!("scales are {name} and cuBLASLt is {}", capability.library);
        return Err(PlanError::new(
            Rule::ScaleLibrary,
            found,
            "install a newer CUDA toolkit, or use one scale per tensor",
        ));
    }
    if d.is_fp8() {
        let found = format!("scales are {name} and D is {d}");
        return Err(PlanError::new(Rule::ScaleOutput, found, "store D in BF16, F16 or F32"));
    }
    if shape.batch != 1 {
        let found = format!("scales are {name} and there are {} products", shape.batch);
        return Err(PlanError::new(Rule::ScaleBatch, found, "run the products one by one"));
    }
    if let Scales::Blocks { a, b } = problem.scales
        && !is_mx
    {
        if (a, b) == (BlockScale::Square128, BlockScale::Square128) {
            return Err(PlanError::new(
                Rule::ScaleBlocks,
                "both have blocks of 128×128",
                "give one operand a scale per 1×128 block",
            ));
        }
        if shape.m % 4 != 0 || shape.n % 4 != 0 {
            let found = format!("M is {} and N is {}", shape.m, shape.n);
            return Err(PlanError::new(Rule::ScaleBlockShape, found, "pad with zeros"));
        }
    }
    Ok(())
}
