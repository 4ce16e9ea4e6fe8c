//! From magnitudes to codes, and from codes to numbers.

use burn_fp8_core::{Fp8Format, Overflow};
use cubecl::prelude::*;

use super::division::{Division, Divisor, divide};
use super::units::{INFINITY, QUIET_NAN, Quad};

const MANTISSA_BITS: u32 = 23;

/// What a kernel encodes to, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Encoding {
    pub(crate) format: Fp8Format,
    pub(crate) overflow: Overflow,
    pub(crate) division: Division,
}

impl Encoding {
    pub(crate) fn new<R: Runtime>(
        client: &ComputeClient<R>,
        format: Fp8Format,
        overflow: Overflow,
    ) -> Self {
        Self { format, overflow, division: Division::of(client) }
    }

    /// Where quotients are clipped: as in the core, the largest number or something that is seen as overflow after rounding.
    fn limit(self) -> f32 {
        match self.overflow {
            Overflow::Saturate | Overflow::SaturateFinite => self.format.max(),
            Overflow::NonSaturating => 2.0 * self.format.max(),
        }
    }

    fn smallest_normal(self) -> u32 {
        self.format.min_positive_normal().to_bits()
    }

    fn dropped_bits(self) -> u32 {
        MANTISSA_BITS - self.format.mantissa_bits()
    }

    /// See [`encode`].
    fn magic(self) -> f32 {
        magic(self.format.mantissa_bits(), self.format.exponent_bits(), self.format.exponent_bias())
    }

    fn infinite(self) -> u32 {
        match self.format {
            Fp8Format::E4M3 => 0x7F,
            Fp8Format::E5M2 => 0x7C,
        }
    }

    fn nan(self) -> u32 {
        match self.format {
            Fp8Format::E4M3 => 0x7F,
            Fp8Format::E5M2 => 0x7E,
        }
    }

    /// The magnitudes from which on codes need [`repair`].
    pub(crate) fn first_broken(self) -> u32 {
        match self.overflow {
            Overflow::SaturateFinite => INFINITY,
            Overflow::Saturate | Overflow::NonSaturating => INFINITY + 1,
        }
    }
}

/// `2^(23 - m)` plus what makes the low bits of the sum in [`encode`] a code: minus `128 - bias`, in the bits above the mantissa.
fn magic(mantissa_bits: u32, exponent_bits: u32, bias: u32) -> f32 {
    let modulus = 2 << exponent_bits;
    let offset = (modulus * 128 - (128 - bias)) % modulus;
    ((1u32 << (MANTISSA_BITS - mantissa_bits)) + offset) as f32
}

/// The codes of `magnitude / scale`, without sign, in the low bytes; what is above those is undefined.
///
/// The rounding is that of the core. Let `e` be the power of two below the quotient `q`, or the smallest normal number if that is
/// larger: codes around `q` are multiples of `e × 2^-m`, and that is the distance between floats around `e × 2^(23 - m)`. So the
/// adder rounds `q` to a code when the two are added, and the mantissa of the sum counts such multiples: its low bits, plus the
/// exponent bits of `e` shifted to their place, are the code plus a constant. The constant, modulo 256, goes into the sum as well:
/// it is part of [`magic`], by which `e` is multiplied. That product is exact, so it may be fused with the sum.
///
/// NaN and infinities become the largest number (or overflow, where that is wanted): [`repair`] does the rest.
#[cube]
pub(crate) fn encode(magnitude: Quad, divisor: &Divisor, #[comptime] encoding: Encoding) -> Quad {
    let clipped = divide(magnitude, divisor, comptime!(encoding.limit()), encoding.division);
    let exponent = max(
        clipped & Quad::new(INFINITY),
        Quad::new(comptime!(encoding.smallest_normal()).runtime()),
    );
    let magic = Vector::<f32, Const<4>>::new(comptime!(encoding.magic()).runtime());
    let power = Vector::<f32, Const<4>>::reinterpret(exponent);
    let sum = power * magic + Vector::<f32, Const<4>>::reinterpret(clipped);
    let dropped = Quad::new(comptime!(encoding.dropped_bits()).runtime());
    let code = Quad::reinterpret(sum) + (exponent >> dropped);
    if comptime!(encoding.overflow == Overflow::NonSaturating) {
        min(code & Quad::new(0xFF), Quad::new(comptime!(encoding.infinite()).runtime()))
    } else {
        code
    }
}

/// The codes of [`encode`] with those of NaN, and of infinities that are to stay visible, put right.
#[cube]
pub(crate) fn repair(code: Quad, magnitude: Quad, #[comptime] encoding: Encoding) -> Quad {
    let infinity = Quad::new(INFINITY);
    let code = if comptime!(encoding.overflow == Overflow::SaturateFinite) {
        let infinite = Quad::new(comptime!(encoding.infinite()).runtime());
        select_many(magnitude.equal(infinity), infinite, code)
    } else {
        code
    };
    let nan = Quad::new(comptime!(encoding.nan()).runtime());
    select_many(magnitude.greater_than(infinity), nan, code)
}

/// The f32 bits of the numbers that code magnitudes (7 bits, nothing above) stand for.
#[cube]
pub(crate) fn decode(code: Quad, #[comptime] format: Fp8Format) -> Quad {
    let m = comptime!(format.mantissa_bits());
    let rebias = comptime!((127 - format.exponent_bias()) << 23).runtime();
    let normal = (code << Quad::new(comptime!(23 - m).runtime())) + Quad::new(rebias);
    // Subnormal numbers are their mantissa times a power of two: an exact conversion and an exact product.
    let unit = Vector::<f32, Const<4>>::new(comptime!(format.min_positive_subnormal()).runtime());
    let subnormal = Quad::reinterpret(Vector::<f32, Const<4>>::cast_from(code) * unit);
    let first_normal = Quad::new(comptime!(1u32 << m).runtime());
    let finite = select_many(code.less_than(first_normal), subnormal, normal);
    match format {
        Fp8Format::E4M3 => select_many(code.equal(Quad::new(0x7F)), Quad::new(QUIET_NAN), finite),
        Fp8Format::E5M2 => {
            let infinite = Quad::new(0x7C);
            let number = select_many(code.equal(infinite), Quad::new(INFINITY), finite);
            select_many(code.greater_than(infinite), Quad::new(QUIET_NAN), number)
        }
    }
}

/// The f32 bits of the numbers that the four codes of a word stand for, the first in its lowest byte.
#[cube]
pub(crate) fn decode_word(word: u32, #[comptime] format: Fp8Format) -> Quad {
    let mut codes = Quad::new(0u32);
    #[unroll]
    for i in 0..4usize {
        codes[i] = word >> comptime!(8 * i as u32).runtime();
    }
    let magnitude = decode(codes & Quad::new(0x7F), format);
    magnitude | ((codes & Quad::new(0x80)) << Quad::new(24))
}
