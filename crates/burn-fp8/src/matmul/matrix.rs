//! Matrices of FP8 codes as tensor cores take them: the dimension that is summed over contiguous, every dimension padded.

use std::sync::{Arc, OnceLock};

use burn::tensor::DType;
#[cfg(any(feature = "cubecl", feature = "fusion"))]
use burn::tensor::TensorMetadata;
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn_fp8_core::{Fp8Format, Layouts};

use super::operand::ScaleRule;
use super::{Fp8Matmul, NativeProblem, portable};
use crate::{Execution, Fallback, Ran, Scalar, report};

/// What to quantize a tensor `[…, C]` to, seen as a matrix `[R, C]` by joining its leading dimensions.
#[derive(Clone, Debug)]
pub struct QuantizeMatrix<B: Backend> {
    /// The format of the codes.
    pub format: Fp8Format,
    /// How the scale is chosen.
    pub scale: ScaleRule<B>,
    /// The layouts wanted.
    pub layouts: Layouts,
}

/// A tensor `[…, C]` quantized as a matrix `[R, C]`.
///
/// Codes are words of an i32 tensor, four in each, the first in its lowest byte: on every runtime the same bytes. R and C are padded to
/// multiples of [`PADDING`](burn_fp8_core::PADDING), which gives R' and C'.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix<B: Backend> {
    /// The codes, `[R', C' / 4]`, where they were asked for.
    pub rows: Option<IntTensor<B>>,
    /// Those of the transposed matrix, `[C', R' / 4]`, where they were asked for.
    pub transposed: Option<IntTensor<B>>,
    /// `[R, C]`.
    pub shape: [usize; 2],
    /// The scale: `x ≈ code × scale`.
    pub scale: Scalar<B>,
    /// The largest finite magnitude of the tensor, 0 if there are none; not where the scale was given.
    pub amax: Option<Scalar<B>>,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// An operand of a GEMM `[M, K] · [N, K]ᵀ`: the codes of a matrix `[rows, K]`, row by row, padded.
#[derive(Clone, Debug)]
pub struct GemmOperand<B: Backend> {
    /// `[rows', K' / 4]`, as in [`QuantizedMatrix`].
    pub words: IntTensor<B>,
    /// Its rows: M or N, without padding.
    pub rows: usize,
    /// The format of the codes.
    pub format: Fp8Format,
    /// Their scale.
    pub scale: Scalar<B>,
}

/// How a GEMM of codes is run.
#[derive(Clone, Debug)]
pub struct GemmOptions {
    /// The dimension that is summed over, without padding.
    pub k: usize,
    /// The type of the result.
    pub dtype: DType,
    /// Whether tensor cores may accumulate with fewer bits.
    pub fast_accumulation: bool,
    /// What becomes of it where there is no algorithm on tensor cores.
    pub otherwise: Otherwise,
    /// What the GEMM tells a trace.
    pub note: Option<GemmNote>,
}

impl GemmOptions {
    /// A product that tells nobody what runs it, and panics where nothing does.
    pub fn new(k: usize, dtype: DType, fast_accumulation: bool) -> Self {
        Self { k, dtype, fast_accumulation, otherwise: Otherwise::Refuse, note: None }
    }
}

/// What becomes of a native product that cuBLASLt has no algorithm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// It is emulated, and says so in the trace.
    Emulate,
    /// It panics, with what cuBLASLt says.
    Refuse,
}

impl Otherwise {
    pub(crate) fn of(execution: Execution) -> Self {
        match execution {
            Execution::Native => Self::Refuse,
            _ => Self::Emulate,
        }
    }
}

/// Filled when a GEMM runs, perhaps after the call that registers it has returned, and perhaps on another thread: with what ran it, or why
/// nothing did.
pub type GemmNote = Arc<OnceLock<Result<Ran, String>>>;

/// Tells a trace what ran a product, where there is one. The first answer counts.
pub(crate) fn note(note: &Option<GemmNote>, ran: impl FnOnce() -> Ran) {
    if let Some(note) = note {
        let _ = note.get_or_init(|| Ok(ran()));
    }
}

/// Tells a trace that a product is emulated, and why. Panics where it must not be.
#[cfg(feature = "cubecl")]
pub(crate) fn fall_back(fallback: Fallback, otherwise: Otherwise, to: &Option<GemmNote>) {
    if otherwise == Otherwise::Refuse {
        let refused = refusal(&fallback);
        if let Some(note) = to {
            let _ = note.set(Err(refused.clone()));
        }
        panic!("{refused}");
    }
    note(to, || Ran::Fallback(fallback));
}

/// Multiplies `lhs` `[M, K]` by `rhs` `[N, K]` transposed, on tensor cores. Panics, on this thread, where it must run there and cannot:
/// Fusion runs products on a thread of its own, whose panics nobody sees.
pub(crate) fn native_gemm<B: Fp8Matmul>(
    lhs: GemmOperand<B>,
    rhs: GemmOperand<B>,
    options: GemmOptions,
) -> FloatTensor<B> {
    if options.otherwise == Otherwise::Refuse {
        let problem = NativeProblem::of_gemm([&lhs, &rhs], &options);
        if let Err(fallback) = B::fp8_check_native(&B::int_device(&lhs.words), &problem) {
            panic!("{}", refusal(&fallback));
        }
    }
    B::fp8_gemm(lhs, rhs, options)
}

/// What a product that cannot run natively says under [`Execution::Native`].
fn refusal(fallback: &Fallback) -> String {
    format!(
        "Execution::Native: {fallback}. Use Execution::Auto, which emulates such products, or leave it out: Filter, \
         Fp8Config::scope_where"
    )
}

/// Where a product is to leave what ran it, while a trace runs.
pub(crate) fn new_note() -> Option<GemmNote> {
    report::is_tracing().then(GemmNote::default)
}

impl<B: Backend> QuantizedMatrix<B> {
    /// The matrix as a factor whose columns are summed over.
    fn by_rows(&self) -> Option<GemmOperand<B>> {
        Some(self.operand(self.rows.clone()?, self.shape[0]))
    }

    /// The matrix as a factor whose rows are summed over.
    fn by_columns(&self) -> Option<GemmOperand<B>> {
        Some(self.operand(self.transposed.clone()?, self.shape[1]))
    }

    fn operand(&self, words: IntTensor<B>, rows: usize) -> GemmOperand<B> {
        GemmOperand { words, rows, format: self.format, scale: self.scale.clone() }
    }
}

/// A quantized matrix on its way into products.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredMatrix<B: Backend> {
    pub(crate) matrix: QuantizedMatrix<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

/// An operand of a GEMM, and how much of it saturated.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredOperand<B: Backend> {
    pub(crate) operand: GemmOperand<B>,
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Matmul> MeasuredMatrix<B> {
    pub(crate) fn quantize(tensor: &FloatTensor<B>, request: QuantizeMatrix<B>) -> Self {
        Self::new(tensor, B::fp8_quantize_matrix(tensor.clone(), request))
    }

    /// A tensor that has been quantized.
    pub(crate) fn new(tensor: &FloatTensor<B>, matrix: QuantizedMatrix<B>) -> Self {
        let saturated = report::is_tracing()
            .then(|| portable::count_saturated::<B>(tensor, &matrix.scale, matrix.format));
        Self { matrix, saturated }
    }
}

impl<B: Backend> MeasuredMatrix<B> {
    /// Whether it has the codes in these layouts.
    pub(crate) fn has(&self, layouts: Layouts) -> bool {
        (self.matrix.rows.is_some() || !layouts.rows())
            && (self.matrix.transposed.is_some() || !layouts.transposed())
    }

    /// The matrix as a factor whose columns are summed over. Panics where its rows were not asked for.
    pub(crate) fn by_rows(&self) -> MeasuredOperand<B> {
        let operand = self.matrix.by_rows().expect("the rows were asked for");
        MeasuredOperand { operand, saturated: self.saturated.clone() }
    }

    /// The matrix as a factor whose rows are summed over. Panics where its transpose was not asked for.
    pub(crate) fn by_columns(&self) -> MeasuredOperand<B> {
        let operand = self.matrix.by_columns().expect("the transpose was asked for");
        MeasuredOperand { operand, saturated: self.saturated.clone() }
    }
}

/// Rows and columns of a tensor `[…, C]` whose leading dimensions are joined.
#[cfg(any(feature = "cubecl", feature = "fusion"))]
pub(crate) fn matrix_shape(tensor: &impl TensorMetadata) -> [usize; 2] {
    let shape = tensor.shape();
    let columns = shape[shape.num_dims() - 1];
    [shape.num_elements() / columns, columns]
}
