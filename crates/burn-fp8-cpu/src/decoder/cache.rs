//! Keys and values of the tokens that a decoder has seen, as they are held.

use burn_fp8_core::{Fp8Format, Recipe};
use half::bf16;
use pulp::{Simd, WithSimd};

use crate::attention::{HeadNumbers, Heads};
use crate::round;
use crate::slice::blocks::{self, Blocks};
use crate::unit::arch;

/// Keys or values, `[rows, heads, room, width]`.
#[derive(Debug)]
pub enum CachePart<'a> {
    /// As they were computed.
    F32(&'a mut [f32]),
    /// Rounded.
    Bf16(&'a mut [bf16]),
    /// Codes, and the scale of each token's head.
    E4m3(&'a mut [u8], &'a mut [f32]),
}

impl CachePart<'_> {
    /// Tokens of each head that there is room for, of so many heads in all.
    pub(super) fn room(&self, heads: usize, width: usize) -> usize {
        let numbers = match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
            Self::E4m3(codes, _) => codes.len(),
        };
        numbers / (heads * width)
    }

    /// Puts heads `[rows, tokens, heads, width]` at the places of tokens, from one on.
    pub(super) fn put(&mut self, new: &[f32], [tokens, heads, width]: [usize; 3], at: usize) {
        let rows = new.len() / (tokens * heads * width);
        let room = self.room(rows * heads, width);
        assert!(
            at + tokens <= room,
            "there is no room for token {}, but for {room}",
            at + tokens - 1
        );
        // The row of a head of the cache for each of the new ones.
        let place = |index: usize| {
            let (row, token, head) =
                (index / heads / tokens, index / heads % tokens, index % heads);
            (row * heads + head) * room + at + token
        };
        match self {
            Self::F32(numbers) => scatter(new, numbers, width, place),
            Self::Bf16(numbers) => {
                let mut rounded = vec![bf16::ZERO; new.len()];
                to_bf16(new, &mut rounded);
                scatter(&rounded, numbers, width, place);
            }
            Self::E4m3(codes, scales) => {
                let blocks = Blocks { columns: width, block: [1, width] };
                let (mut new_codes, mut new_scales) =
                    (vec![0; new.len()], vec![0.0; new.len() / width]);
                let (format, recipe) = (Fp8Format::E4M3, Recipe::current());
                blocks::encode(new, blocks, format, recipe, &mut new_codes, &mut new_scales);
                scatter(&new_codes, codes, width, place);
                scatter(&new_scales, scales, 1, place);
            }
        }
    }

    /// Some tokens of the heads of a row: `[1, heads, tokens, width]`.
    pub(super) fn of(
        &self,
        row: usize,
        [heads, room, width]: [usize; 3],
        tokens: core::ops::Range<usize>,
    ) -> Heads<'_> {
        let first = row * heads * room + tokens.start;
        let numbers = match self {
            Self::F32(numbers) => HeadNumbers::F32(&numbers[first * width..]),
            Self::Bf16(numbers) => HeadNumbers::Bf16(&numbers[first * width..]),
            Self::E4m3(codes, scales) => {
                HeadNumbers::E4m3(&codes[first * width..], &scales[first..])
            }
        };
        let strides = [heads * room * width, room * width, width];
        Heads::strided(numbers, [1, heads, tokens.len(), width], strides)
    }
}

/// Copies rows of this width to their places.
fn scatter<T: Copy>(from: &[T], to: &mut [T], width: usize, place: impl Fn(usize) -> usize) {
    for (index, row) in from.chunks_exact(width).enumerate() {
        to[place(index) * width..][..width].copy_from_slice(row);
    }
}

/// Rounds to the nearest numbers of bf16, ties to even ones.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn to_bf16(x: &[f32], y: &mut [bf16]) {
    assert!(x.len() == y.len(), "{} numbers do not become {} of bf16", x.len(), y.len());
    arch().dispatch(ToBf16(x, y));
}

struct ToBf16<'a>(&'a [f32], &'a mut [bf16]);

impl WithSimd for ToBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.0.iter().zip(self.1).for_each(|(x, y)| *y = round::to_bf16(*x));
    }
}
