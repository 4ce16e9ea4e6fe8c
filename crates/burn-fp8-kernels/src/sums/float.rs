//! f32 as integers.

use cubecl::prelude::*;

use crate::bits::INFINITY;

/// The fraction bits of f32.
pub(super) const FRACTION: u32 = 23;

/// Classes of products that are not finite, as bits.
pub(super) const PLUS: u32 = 1;
pub(super) const MINUS: u32 = 2;
pub(super) const NAN: u32 = 4;

/// [`CANONICAL_NAN`](burn_fp8_core::sums::CANONICAL_NAN).
const CANONICAL_NAN: u32 = burn_fp8_core::sums::CANONICAL_NAN.to_bits();

/// The exponent field.
#[cube]
pub(super) fn exponent(x: u32) -> u32 {
    (x >> FRACTION) & 0xFF
}

/// The significand of a normal number, with the hidden bit, or of a zero.
#[cube]
pub(super) fn significand(x: u32) -> u32 {
    (x & 0x7F_FFFF) | (min(exponent(x), 1) << FRACTION)
}

/// The sum of two f32 that are normal numbers or +0, rounded to the nearest, ties to even, where it is one of these as well.
#[cube]
pub(super) fn add(x: u32, y: u32) -> u32 {
    let x_is_larger = (x & 0x7FFF_FFFF) >= (y & 0x7FFF_FFFF);
    let large = select(x_is_larger, x, y);
    let small = select(x_is_larger, y, x);
    // Seven bits below the last: two would do, and the lowest stands for all that is lost.
    let other = significand(small) << 7;
    let distance = min(exponent(large) - exponent(small), 31);
    let shifted = other >> distance;
    let lost = u32::cast_from((shifted << distance) != other);
    let other = shifted | lost;
    let one = significand(large) << 7;
    let sum = select((large ^ small) >> 31 == 0, one + other, one - other);
    if sum == 0 {
        0u32.runtime()
    } else {
        let zeros = sum.leading_zeros();
        let normal = sum << zeros;
        // Above one half, or one half of an odd number. The carry goes into the exponent.
        let up = u32::cast_from((normal & 0xFF) + ((normal >> 8) & 1) > 0x80);
        let fraction = (normal & 0x7FFF_FFFF) >> 8;
        (large & 0x8000_0000u32) | ((((exponent(large) + 1 - zeros) << FRACTION) | fraction) + up)
    }
}

/// A sum, or what it is where products were not finite.
#[cube]
pub(super) fn with_class(sum: u32, class: u32) -> u32 {
    let mut x = sum;
    if class == PLUS {
        x = INFINITY.runtime();
    } else if class == MINUS {
        x = comptime!(INFINITY | 0x8000_0000).runtime();
    } else if class != 0 {
        x = CANONICAL_NAN.runtime();
    }
    x
}
