//! What the kernels of blocks are launched for, and from the amax of a block to its scale.

use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding};
use cubecl::ir::AddressType;
use cubecl::prelude::*;

use crate::bits::{Division, Encoding};
use crate::grid::Blocks;
use crate::scale::{from_amax, power_of_two};
use crate::tensor::Input;

/// A tensor to be quantized, and how.
pub(super) struct Request<'a> {
    pub(super) input: &'a Input<'a>,
    /// As it was asked for; `blocks` has it no larger than the matrix.
    pub(super) block: [usize; 2],
    pub(super) blocks: Blocks,
    pub(super) format: Fp8Format,
    pub(super) recipe: Recipe,
    pub(super) encoding: Encoding,
    pub(super) rule: Rule,
    pub(super) address: AddressType,
}

/// How scales follow from amaxes, known when a kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rule {
    /// The scales of MXFP8.
    mx: Option<Mx>,
    /// Whether other scales are rounded up to powers of two.
    power_of_two: bool,
}

/// Where a rounding of MXFP8 turns. The rule has no float operation, so that no device can be off, nor lose a subnormal amax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Mx {
    /// What carries the mantissas that are rounded up into the exponent.
    carry: u32,
    /// The exponent of the largest power of two of the format. From there down the byte is 0.
    emax: u32,
    /// The bits of an amax up to which the byte is 0, whatever its mantissa.
    smallest: u32,
}

impl Rule {
    pub(super) fn new(format: Fp8Format, recipe: Recipe) -> Self {
        let mx = match recipe.granularity() {
            Granularity::Mx(rounding) => Some(Mx::new(format, rounding)),
            _ => None,
        };
        Self { mx, power_of_two: recipe.power_of_two }
    }

    /// How to divide by such scales, where any scale is divided by as given.
    pub(super) fn division(self, any: Division) -> Division {
        if self.mx.is_some() || self.power_of_two { Division::PowerOfTwo } else { any }
    }
}

impl Mx {
    fn new(format: Fp8Format, rounding: ScaleRounding) -> Self {
        const ONE: u32 = 1 << 23;
        let max = format.max().to_bits();
        // The smallest mantissa that is rounded up; none is where it has a bit too many.
        let up_from = match rounding {
            ScaleRounding::Rceil => max % ONE + 1,
            ScaleRounding::Floor => ONE,
            ScaleRounding::Ceil => 1,
            ScaleRounding::Even => ((1.0 - format.epsilon() / 2.0) * ONE as f32) as u32,
        };
        // The core divides by the largest number in f32: the quotient of the next amax is nearer to 2^-127 than to its neighbour.
        let smallest = match rounding {
            ScaleRounding::Rceil => (format.max() * (f32::MIN_POSITIVE / 2.0)).next_up().to_bits(),
            _ => 0,
        };
        Self { carry: ONE - up_from, emax: max / ONE - 127, smallest }
    }
}

/// The numbers that a rule needs and that compilers are not to know, which would divide by them in other ways.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Factors {
    max_code: f32,
    margin: f32,
}

pub(super) fn factors<R: Runtime>(format: Fp8Format, recipe: Recipe) -> FactorsLaunch<R> {
    FactorsLaunch::new(format.max(), power_of_two(recipe.margin))
}

/// The bits of [`burn_fp8_core::scale::of_block`].
#[cube]
pub(super) fn scale_bits(amax: u32, factors: &Factors, #[comptime] rule: Rule) -> u32 {
    if comptime!(rule.mx.is_some()) {
        let mx = comptime!(rule.mx.unwrap_or_default());
        let emax = comptime!(mx.emax).runtime();
        let exponent = (amax + comptime!(mx.carry).runtime()) >> 23;
        let byte = max(exponent, emax) - emax;
        let is_small = amax <= comptime!(mx.smallest).runtime() || byte == 0;
        // The bits of 2^-127, a subnormal number.
        select(is_small, 0x40_0000, byte << 23)
    } else {
        let scale = from_amax(amax, factors.max_code, factors.margin, rule.power_of_two);
        u32::reinterpret(scale)
    }
}
