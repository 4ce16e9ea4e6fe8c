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
}

/// # Panics
/// If they do not fit each other, or blocks of one begin between the steps of panels.
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
    let rhs_powers = rhs.powers.map(Grid::transpose);
    for (name, powers) in [("left", lhs.powers), ("right", rhs_powers)] {
        if let Some(powers) = powers {
            let [_, along] = powers.block();
            assert!(
                along.is_multiple_of(STEP),
                "blocks of the {name} operand have {along} elements along K, no multiple of {STEP}"
            );
        }
    }
    Product { lhs, rhs, batch: lhs.batch, m, n, k }
}
