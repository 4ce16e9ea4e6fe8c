//! Keys and values of the tokens that a decoder has seen, as they are held.

use burn_fp8_core::slice::blocks::{self, Blocks};
use burn_fp8_core::{Fp8Format, Recipe};
use half::bf16;
use pulp::{Arch, Simd, WithSimd};

use crate::attention::{HeadNumbers, Heads};
use crate::round;

/// Keys or values, `[rows, heads, room, width]`.
#[derive(Debug)]
pub enum Held<'a> {
    /// As they were computed.
    F32(&'a mut [f32]),
    /// Rounded.
    Bf16(&'a mut [bf16]),
    /// Codes, and the scale of each token's head.
    E4m3(&'a mut [u8], &'a mut [f32]),
}

impl Held<'_> {
    /// Tokens of each head that there is room for, of so many heads in all.
    pub(super) fn room(&self, heads: usize, width: usize) -> usize {
        let numbers = match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
            Self::E4m3(codes, _) => codes.len(),
        };
        numbers / (heads * width)
    }

    /// Puts heads `[rows, heads, width]` at the place of a token.
    pub(super) fn put(&mut self, new: &[f32], width: usize, at: usize) {
        let room = self.room(new.len() / width, width);
        assert!(at < room, "there is no room for token {at}, but for {room}");
        for (head, new) in new.chunks_exact(width).enumerate() {
            let row = head * room + at;
            let place = row * width..(row + 1) * width;
            match self {
                Self::F32(numbers) => numbers[place].copy_from_slice(new),
                Self::Bf16(numbers) => to_bf16(new, &mut numbers[place]),
                Self::E4m3(codes, scales) => {
                    let blocks = Blocks { columns: width, block: [1, width] };
                    let recipe = Recipe::current();
                    let scale = &mut scales[row..=row];
                    blocks::encode(new, blocks, Fp8Format::E4M3, recipe, &mut codes[place], scale);
                }
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

/// Rounds to the nearest numbers of bf16, ties to even ones.
///
/// # Panics
/// If the lengths differ.
#[track_caller]
pub fn to_bf16(x: &[f32], y: &mut [bf16]) {
    assert!(x.len() == y.len(), "{} numbers do not become {} of bf16", x.len(), y.len());
    Arch::new().dispatch(ToBf16(x, y));
}

struct ToBf16<'a>(&'a [f32], &'a mut [bf16]);

impl WithSimd for ToBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.0.iter().zip(self.1).for_each(|(x, y)| *y = round::to_bf16(*x));
    }
}
