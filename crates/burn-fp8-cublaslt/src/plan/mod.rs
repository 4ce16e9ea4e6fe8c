//! From a product and a capability to what cuBLASLt is told, or to the rule that is broken. Pure: no library, no device.

mod error;
mod gap;
mod rules;

pub use error::{PlanError, Rule};

use crate::capability::Capability;
use crate::problem::{Activation, BlockScale, DataType, Epilogue, ScaledMatmul, Scales, Shape};
use crate::raw::constants;

/// What cuBLASLt is told: its column-major, swapped view of a product.
///
/// The row-major `D = A × Bᵀ` is the column-major `Dᵀ = B × Aᵀ`: cuBLASLt's A is our B, K×N with op T; its B is our A, K×M with
/// op N; its C and D are ours, N×M; its m is our N and its n our M. So the bias, which cuBLASLt adds along its m, has N elements,
/// and the pointer and mode of the scale of our A go to `B_SCALE`, those of our B to `A_SCALE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// The product.
    pub problem: ScaledMatmul,
    /// Layouts of cuBLASLt's A (our B), B (our A), C and D.
    pub layouts: [LayoutPlan; 4],
    /// Scale modes of cuBLASLt's A (our B) and B (our A): `cublasLtMatmulMatrixScale_t`.
    pub scale_modes: [i32; 2],
    /// The epilogue: `cublasLtEpilogue_t`.
    pub epilogue: u32,
    /// Smallest alignments of cuBLASLt's A, B, C and D, in bytes.
    pub alignments: [u32; 4],
    /// A gap in cuBLASLt's coverage that no rule names: no algorithm may be found. Where there is none, NVIDIA's or PyTorch's tests run
    /// such products, or NVIDIA's documentation has them.
    pub gap: Option<&'static str>,
}

/// A column-major matrix: `cublasLtMatrixLayout_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayoutPlan {
    /// The element type.
    pub dtype: DataType,
    /// Rows: the contiguous dimension.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// Elements from one column to the next.
    pub ld: u64,
    /// Matrices in the batch.
    pub count: u64,
    /// Elements from one matrix to the next.
    pub stride: u64,
}

/// Checks `problem` against every documented rule and translates it.
///
/// # Errors
///
/// The first rule that is broken, with the values and a remedy. A plan without an error can still meet a
/// [gap](Plan::gap): only cuBLASLt's heuristics, on the device, know which kernels exist.
pub fn plan(problem: &ScaledMatmul, capability: &Capability) -> Result<Plan, PlanError> {
    rules::check(problem, capability)?;
    Ok(plan_unchecked(problem))
}

/// The same without the rules. Public for tests of them: what cuBLASLt would be told of a product that breaks some.
#[doc(hidden)]
pub fn plan_unchecked(problem: &ScaledMatmul) -> Plan {
    let c = rules::type_of_c(problem);
    let Shape { m, n, k } = problem.shape;
    let batch = problem.batch;
    let layout = |dtype, rows, columns, ld, stride| {
        // The stride of a single matrix means nothing: one value, so that equal plans are equal.
        let stride = if batch.count == 1 { 0 } else { stride };
        LayoutPlan { dtype, rows, columns, ld, count: batch.count, stride }
    };
    let (a, b, d) = (problem.a, problem.b, problem.d);
    let c_ld = problem.c.map_or(d.ld, |c| c.ld);
    let [a_mode, b_mode] = match problem.scales {
        Scales::None | Scales::PerTensor => [constants::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F; 2],
        Scales::PerRow => [constants::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F; 2],
        Scales::Blocks { a, b } => [a, b].map(|block| match block {
            BlockScale::Row32 => constants::CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
            BlockScale::Row128 => constants::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
            BlockScale::Square128 => constants::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128X128_32F,
        }),
    };
    let alignment = problem.alignment;
    Plan {
        problem: *problem,
        layouts: [
            layout(DataType::Fp8(b.format), k, n, b.ld, batch.b),
            layout(DataType::Fp8(a.format), k, m, a.ld, batch.a),
            layout(c, n, m, c_ld, batch.d),
            layout(d.dtype, n, m, d.ld, batch.d),
        ],
        scale_modes: [b_mode, a_mode],
        epilogue: epilogue(&problem.epilogue),
        alignments: [
            alignment.b,
            alignment.a,
            // A missing C is never read, but its alignment must not exclude algorithms.
            if problem.c.is_some() { alignment.c } else { alignment.d },
            alignment.d,
        ],
        gap: gap::of(problem),
    }
}

/// `cublasLtEpilogue_t`.
fn epilogue(epilogue: &Epilogue) -> u32 {
    let activation = match epilogue.activation {
        Activation::None => 0,
        Activation::Relu => constants::CUBLASLT_EPILOGUE_RELU,
        Activation::Gelu => constants::CUBLASLT_EPILOGUE_GELU,
    };
    let bias = if epilogue.bias.is_some() { constants::CUBLASLT_EPILOGUE_BIAS } else { 0 };
    match activation | bias {
        0 => constants::CUBLASLT_EPILOGUE_DEFAULT,
        number => number,
    }
}
