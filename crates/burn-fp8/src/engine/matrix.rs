//! Matrices of FP8 codes as tensor cores take them: the dimension that is summed over contiguous, every dimension padded.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::IntTensor;
use burn_fp8_core::{Fp8Format, Layouts};

use super::launch::{LaunchNote, Otherwise};
use super::quantize::ScaleRule;
use super::scalar::Scalar;

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
    /// Where it leaves what ran it, if anybody wants to know.
    pub note: Option<LaunchNote>,
}

impl GemmOptions {
    /// A product that tells nobody what runs it, and panics where nothing does.
    pub fn new(k: usize, dtype: DType, fast_accumulation: bool) -> Self {
        Self { k, dtype, fast_accumulation, otherwise: Otherwise::Refuse, note: None }
    }
}

impl<B: Backend> QuantizedMatrix<B> {
    /// Whether it has the codes in these layouts.
    pub(crate) fn has(&self, layouts: Layouts) -> bool {
        (self.rows.is_some() || !layouts.rows())
            && (self.transposed.is_some() || !layouts.transposed())
    }

    /// The matrix as a factor whose columns are summed over.
    pub(crate) fn by_rows(&self) -> Option<GemmOperand<B>> {
        Some(self.operand(self.rows.clone()?, self.shape[0]))
    }

    /// The matrix as a factor whose rows are summed over.
    pub(crate) fn by_columns(&self) -> Option<GemmOperand<B>> {
        Some(self.operand(self.transposed.clone()?, self.shape[1]))
    }

    fn operand(&self, words: IntTensor<B>, rows: usize) -> GemmOperand<B> {
        GemmOperand { words, rows, format: self.format, scale: self.scale.clone() }
    }
}
