//! What a backend is asked for when a tensor is quantized.

use burn_backend::tensor::FloatTensor;
use burn_fp8_core::{Fp8Format, Layouts, Overflow, Recipe};

use super::codes::Codes;
use super::matrix::{Matrix, WHOLE};
use super::scalar::Scalar;

/// What to quantize a tensor `[…, R, C]` to.
#[derive(Clone, Copy, Debug)]
pub struct Request<F> {
    /// The format of the codes.
    pub format: Fp8Format,
    /// Rows and columns of the elements that share a scale: [`WHOLE`] for all of them, `[1, usize::MAX]` for a row, `[1, 32]` for MXFP8. Blocks
    /// at the end of a dimension are cut off by it.
    pub block: [usize; 2],
    /// How a scale is chosen.
    pub rule: ScaleRule<F>,
    /// The form that is wanted.
    pub wanted: Wanted,
}

/// A [`Request`] of a backend.
pub type RequestOf<B> = Request<FloatTensor<B>>;

/// How the scale of a tensor is chosen.
#[derive(Clone, Copy, Debug)]
pub enum ScaleRule<F> {
    /// From the amax of the tensor, or of a block. Finite values saturate, the others stay visible: [`Overflow::SaturateFinite`].
    Current(Recipe),
    /// From this amax, of earlier steps; from that of the tensor where it is 0. Overflow as for `Current`. For one scale only.
    Delayed(Scalar<F>, Recipe),
    /// This scale, positive and finite, and this treatment of overflow. For one scale only.
    Given(Scalar<F>, Overflow),
}

/// A [`ScaleRule`] of a backend.
pub type ScaleRuleOf<B> = ScaleRule<FloatTensor<B>>;

/// In which form a matrix is wanted: what its products take, and what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// The codes, as small as the backend holds them: for a matrix unit, or to be kept.
    Codes,
    /// The numbers that they stand for: for a product in f32, which follows at once.
    Values,
    /// Both.
    CodesAndValues,
    /// The codes laid out for tensor cores, which sum over a contiguous dimension; a tensor with one scale becomes a matrix, its leading dimensions
    /// joined.
    Lines(Layouts),
    /// The same of a batch of matrices with one scale, each laid out by itself.
    Batch(Layouts),
}

impl Wanted {
    /// Whether codes are.
    pub const fn codes(self) -> bool {
        !matches!(self, Self::Values)
    }
}

impl<F> Request<F> {
    /// A tensor with one scale, in some form.
    pub const fn whole(format: Fp8Format, rule: ScaleRule<F>, wanted: Wanted) -> Self {
        Self { format, block: WHOLE, rule, wanted }
    }

    /// The codes of values that are numbers of the format already.
    pub const fn exact(format: Fp8Format, wanted: Wanted) -> Self {
        let rule = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
        Self::whole(format, rule, wanted)
    }

    /// The same request, the tensor of its rule handed through `float`.
    pub fn map<G>(self, float: impl FnOnce(F) -> G) -> Request<G> {
        let Self { format, block, rule, wanted } = self;
        let rule = match rule {
            ScaleRule::Current(recipe) => ScaleRule::Current(recipe),
            ScaleRule::Delayed(amax, recipe) => ScaleRule::Delayed(amax.map(float), recipe),
            ScaleRule::Given(scale, overflow) => ScaleRule::Given(scale.map(float), overflow),
        };
        Request { format, block, rule, wanted }
    }
}

impl<F> ScaleRule<F> {
    /// The recipe of scales of blocks, which are those of the tensor.
    pub fn of_blocks(&self) -> Recipe {
        match self {
            Self::Current(recipe) => *recipe,
            _ => unreachable!("several scales are those of the tensor itself, without a history"),
        }
    }
}

impl<F, I> Matrix<F, I> {
    /// Whether it has its codes in this form.
    pub fn has(&self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Values => false,
            Wanted::Codes | Wanted::CodesAndValues => self.codes.is_some(),
            Wanted::Lines(layouts) => {
                (self.codes.is_some() || !layouts.rows())
                    && (self.transposed.is_some() || !layouts.transposed())
            }
            Wanted::Batch(layouts) => {
                let padded = |codes: &Option<_>| matches!(codes, Some(Codes::Padded(..)));
                (padded(&self.codes) || !layouts.rows())
                    && (padded(&self.transposed) || !layouts.transposed())
            }
        }
    }
}
