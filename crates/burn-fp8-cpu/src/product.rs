//! The operands of a product.

use crate::blocks::{Factors, Grid};
use crate::codes::Codes;

/// What is summed in one step of a unit: K of its panels is a multiple of this, and so is K of blocks.
pub(crate) const STEP: usize = 32;

/// Kernels for few rows know blocks with scales that have a multiple of so many elements along K.
pub(crate) const FEW_ROWS_STEP: usize = 64;

/// Two operands that fit each other.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "there are no units"))]
pub(crate) struct Product<'a, O = Codes<'a>> {
    pub(crate) lhs: O,
    pub(crate) rhs: O,
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// The scales of sums over blocks of K, where there are any.
    pub(crate) blocks: Option<SumScales<'a>>,
}

/// The scales of blocks of both operands: units sum block by block, f32 multiplies operands that are scaled.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "there are no units"))]
#[derive(Clone, Copy)]
pub(crate) struct SumScales<'a> {
    pub(crate) lhs: Grid<'a, f32>,
    pub(crate) rhs: Grid<'a, f32>,
    /// Elements of a block along K.
    pub(crate) along: usize,
}

/// M, N and K.
///
/// # Panics
/// If the matrices do not fit each other.
#[track_caller]
pub(crate) fn sizes([m, k]: [usize; 2], [depth, n]: [usize; 2]) -> [usize; 3] {
    assert!(
        k == depth,
        "{m} × {k} is not multiplied by {depth} × {n}: {k} and {depth} must be equal"
    );
    [m, n, k]
}

/// # Panics
/// If they or their blocks do not fit each other, or blocks of one begin between the steps of panels.
#[track_caller]
pub(crate) fn check<'a>(lhs: Codes<'a>, rhs: Codes<'a>) -> Product<'a> {
    let [m, n, k] = sizes(lhs.shape, rhs.shape);
    assert!(
        lhs.batch == rhs.batch,
        "{} matrices are not multiplied by {}: broadcast the one",
        lhs.batch,
        rhs.batch
    );
    let along =
        [lhs.factors.block().map(|[_, along]| along), rhs.factors.block().map(|[along, _]| along)];
    for (name, along) in ["left", "right"].into_iter().zip(along) {
        assert!(
            along.is_none_or(|along| along.is_multiple_of(STEP)),
            "blocks of the {name} operand have {} elements along K, no multiple of {STEP}",
            along.unwrap_or_default()
        );
    }
    let blocks = match (lhs.factors, rhs.factors) {
        (Factors::Scales(left), Factors::Scales(right)) => {
            let [along, of_right] = [left.block()[1], right.block()[0]];
            assert!(
                along == of_right,
                "blocks have {along} elements along K in the left operand and {of_right} in the right one: they must be equal"
            );
            // Nothing is summed without K.
            (k > 0).then_some(SumScales { lhs: left, rhs: right, along })
        }
        (Factors::Scales(_), _) | (_, Factors::Scales(_)) => {
            panic!("one operand has scales of blocks, the other has none: both have, or neither")
        }
        _ => None,
    };
    Product { lhs, rhs, batch: lhs.batch, m, n, k, blocks }
}
