//! The operands of a product.

use crate::codes::Codes;
use crate::pack::STEP;
use crate::powers::Grid;

/// Two operands that fit each other.
pub(crate) struct Product<'a> {
    pub(crate) lhs: Codes<'a>,
    pub(crate) rhs: Codes<'a>,
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// The scales of blocks of K, where there are any.
    pub(crate) blocks: Option<Blocks<'a>>,
}

/// The scales of blocks of both operands.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub(crate) lhs: Grid<'a, f32>,
    pub(crate) rhs: Grid<'a, f32>,
    /// Elements of a block along K.
    pub(crate) along: usize,
}

/// # Panics
/// If they or their blocks do not fit each other, or blocks of one begin between the steps of panels.
#[track_caller]
pub(crate) fn check<'a>(lhs: Codes<'a>, rhs: Codes<'a>) -> Product<'a> {
    let ([m, k], [depth, n]) = (lhs.shape, rhs.shape);
    assert!(
        k == depth,
        "{m} × {k} is not multiplied by {depth} × {n}: {k} and {depth} must be equal"
    );
    assert!(
        lhs.batch == rhs.batch,
        "{} matrices are not multiplied by {}: broadcast the one",
        lhs.batch,
        rhs.batch
    );
    let along = |block: Option<[usize; 2]>, dim: usize| block.map(|block| block[dim]);
    let of_powers =
        [along(lhs.powers.map(|x| x.block()), 1), along(rhs.powers.map(|x| x.block()), 0)];
    let of_scales =
        [along(lhs.scales.map(|x| x.block()), 1), along(rhs.scales.map(|x| x.block()), 0)];
    for (name, index) in [("left", 0), ("right", 1)] {
        if let Some(along) = of_powers[index].or(of_scales[index]) {
            assert!(
                along.is_multiple_of(STEP),
                "blocks of the {name} operand have {along} elements along K, no multiple of {STEP}"
            );
        }
    }
    let blocks = match (lhs.scales, rhs.scales) {
        (None, None) => None,
        (Some(left), Some(right)) => {
            let [Some(along), Some(of_right)] = of_scales else { unreachable!("both have blocks") };
            assert!(
                along == of_right,
                "blocks have {along} elements along K in the left operand and {of_right} in the right one: they must be equal"
            );
            // Nothing is summed without K.
            (k > 0).then_some(Blocks { lhs: left, rhs: right, along })
        }
        _ => panic!("one operand has scales of blocks, the other has none: both have, or neither"),
    };
    Product { lhs, rhs, batch: lhs.batch, m, n, k, blocks }
}
