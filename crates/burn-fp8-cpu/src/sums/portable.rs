//! Sums in integers of 32 or 64 bits, on any CPU: compiled for its vectors.

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::{Accumulator, RunningSum};
use pulp::WithSimd;

use super::pack::{Layout, NO_PRODUCT, Parts, ZERO, table};
use super::{Kernel, NAN_EXPONENT, PanelScales, Segment, WIDTH};
use crate::unit::arch;

/// The most fraction bits for which sums of 64 products fit f32, so that 32 bits do.
pub(super) const NARROW: u32 = 13;

/// No exponent counts below this one.
const LOWEST_EXPONENT: i32 = -132;

/// Integers that hold the sum of a block.
pub(super) trait Lane:
    Copy + Default + Sync + core::ops::AddAssign + core::ops::Neg<Output = Self>
{
    /// No exponent of this or below has any number but 0.
    const LOWEST: i32;

    /// `magnitude · 2^up`, cut by `down` bits: at least 0.
    fn term(magnitude: i32, up: u32, down: i32) -> Self;

    /// `c · 2^power`, cut toward zero.
    fn cut(c: f32, power: i32) -> Self;

    /// `sum · 2^unit`, with so many fraction bits of its own.
    fn finish(self, unit: i32, fraction: u32) -> f32;
}

/// `2^exponent`, of a normal number.
#[inline(always)]
fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

#[inline(always)]
fn power_f64(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Lane for i32 {
    // Products of codes are multiples of 2^-32, and so are their sums.
    const LOWEST: i32 = -60;

    #[inline(always)]
    fn term(magnitude: i32, up: u32, down: i32) -> Self {
        ((magnitude << up) as u32 >> down.clamp(0, 31)) as i32
    }

    #[inline(always)]
    fn cut(c: f32, exponent: i32) -> Self {
        // SAFETY: below 2^(13 + 1), as `exponent` is that of the largest term.
        unsafe { (c * power(exponent)).to_int_unchecked() }
    }

    #[inline(always)]
    fn finish(self, unit: i32, fraction: u32) -> f32 {
        let cut = (self as f32).to_bits() & !((1 << (23 - fraction)) - 1);
        f32::from_bits(cut) * power(unit)
    }
}

impl Lane for i64 {
    const LOWEST: i32 = LOWEST_EXPONENT;

    #[inline(always)]
    fn term(magnitude: i32, up: u32, down: i32) -> Self {
        (magnitude as i64) << up >> down.clamp(0, 63)
    }

    #[inline(always)]
    fn cut(c: f32, exponent: i32) -> Self {
        (f64::from(c) * power_f64(exponent)) as i64
    }

    #[inline(always)]
    fn finish(self, unit: i32, fraction: u32) -> f32 {
        // Fewer than 53 bits: exact.
        let cut = (self as f64).to_bits() & !((1 << (52 - fraction)) - 1);
        let y = f64::from_bits(cut) * power_f64(unit);
        let lowest = 126 + fraction as i32;
        match y.abs() < f64::from(f32::MIN_POSITIVE) {
            true => ((y * power_f64(lowest)).trunc() * power_f64(-lowest)) as f32 + 0.0,
            false => y as f32,
        }
    }
}

/// Lanes of one of the two sizes.
pub(super) struct Portable<L> {
    accumulator: Accumulator,
    tables: [[Parts; 256]; 2],
    /// How far a product of significands is shifted left, to be in units of the lowest fraction bit.
    up: u32,
    /// And then right, where there are fewer fraction bits than significands have.
    down: i32,
    lane: core::marker::PhantomData<L>,
}

/// Significands with their sign, and exponents.
pub(super) struct Packed<const N: usize> {
    significands: Vec<[i8; N]>,
    exponents: Vec<[i8; N]>,
}

impl<L: Lane> Portable<L> {
    pub(super) fn new(accumulator: Accumulator, formats: [Fp8Format; 2]) -> Self {
        let bits: u32 = formats.iter().map(|format| format.mantissa_bits()).sum();
        let up = accumulator.fraction as i32 - bits as i32;
        let (up, down) = (up.max(0) as u32, (-up).max(0));
        Self { accumulator, tables: formats.map(table), up, down, lane: core::marker::PhantomData }
    }

    /// The parts of lines that lie side by side.
    fn pack<const N: usize>(&self, side: usize, lines: &[&[u8]], layout: &Layout) -> Packed<N> {
        let mut packed = Packed {
            significands: vec![[0; N]; layout.length],
            exponents: vec![[ZERO; N]; layout.length],
        };
        for (lane, line) in lines.iter().enumerate() {
            layout.place(line, |place, code| {
                let Parts { significand, exponent, is_negative } =
                    self.tables[side][usize::from(code)];
                let significand = significand as i8;
                packed.significands[place][lane] =
                    if is_negative { -significand } else { significand };
                packed.exponents[place][lane] = exponent;
            });
        }
        packed
    }

    /// Adds a block of products, their exponents moved, to `c`.
    #[inline(always)]
    fn block(
        &self,
        left: (&[[i8; 1]], &[[i8; 1]]),
        right: (&[[i8; WIDTH]], &[[i8; WIDTH]]),
        moved: [i32; WIDTH],
        c: &mut [f32; WIDTH],
    ) {
        let Accumulator { fraction, result, running, .. } = self.accumulator;
        let mut largest = [i8::MIN; WIDTH];
        for ([a], b) in left.1.iter().zip(right.1) {
            for (largest, b) in largest.iter_mut().zip(b) {
                *largest = (*largest).max(a.wrapping_add(*b));
            }
        }
        let mut exponents = [0i32; WIDTH];
        for lane in 0..WIDTH {
            let largest = i32::from(largest[lane]);
            let of_products = if largest >= NO_PRODUCT { largest + moved[lane] } else { L::LOWEST };
            let of_c = match running {
                // Of a subnormal number too, whose bits are normalized in f64.
                RunningSum::Early if L::LOWEST == LOWEST_EXPONENT => {
                    (f64::from(c[lane]).to_bits() >> 52 & 0x7FF) as i32 - 1023
                }
                RunningSum::Early => (c[lane].to_bits() >> 23 & 0xFF) as i32 - 127,
                RunningSum::Late => L::LOWEST,
            };
            exponents[lane] = of_products.max(of_c).max(L::LOWEST);
        }
        let mut sums = [L::default(); WIDTH];
        if running == RunningSum::Early {
            for lane in 0..WIDTH {
                sums[lane] = L::cut(c[lane], fraction as i32 - exponents[lane]);
            }
        }
        let from: [i32; WIDTH] =
            core::array::from_fn(|lane| exponents[lane] - moved[lane] + self.down);
        for (([a], [of_a]), (b, of_b)) in left.0.iter().zip(left.1).zip(right.0.iter().zip(right.1))
        {
            let (a, of_a) = (i32::from(*a), i32::from(*of_a));
            for lane in 0..WIDTH {
                let product = a * i32::from(b[lane]);
                let down = from[lane] - of_a - i32::from(of_b[lane]);
                let term = L::term(product.abs(), self.up, down);
                sums[lane] += if product < 0 { -term } else { term };
            }
        }
        for lane in 0..WIDTH {
            let sum = sums[lane].finish(exponents[lane] - fraction as i32, result);
            c[lane] = match running {
                RunningSum::Early => sum,
                RunningSum::Late => sum + c[lane],
            };
        }
    }
}

impl<L: Lane> Kernel for Portable<L> {
    type Left = Vec<Packed<1>>;
    type Right = Packed<WIDTH>;

    fn pack_left(&self, rows: &[&[u8]], layout: &Layout) -> Self::Left {
        rows.iter().map(|row| self.pack(0, &[row], layout)).collect()
    }

    fn pack_right(&self, columns: &[&[u8]], layout: &Layout) -> Self::Right {
        self.pack(1, columns, layout)
    }

    fn part(
        &self,
        (left, right): (&Self::Left, &Self::Right),
        segments: &[Segment],
        scales: &PanelScales<'_>,
        sums: &mut [[f32; WIDTH]],
    ) {
        arch().dispatch(Part { kernel: self, left, right, segments, scales, sums });
    }
}

struct Part<'a, L: Lane> {
    kernel: &'a Portable<L>,
    left: &'a [Packed<1>],
    right: &'a Packed<WIDTH>,
    segments: &'a [Segment],
    scales: &'a PanelScales<'a>,
    sums: &'a mut [[f32; WIDTH]],
}

impl<L: Lane> WithSimd for Part<'_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _simd: S) {
        let Self { kernel, left, right, segments, scales, sums } = self;
        let products = kernel.accumulator.products as usize;
        for (row, (left, sums)) in left.iter().zip(sums).enumerate() {
            *sums = [0.0; WIDTH];
            let mut is_nan = [false; WIDTH];
            for Segment { blocks, of_scales } in segments {
                let mut c = [0.0; WIDTH];
                for block in blocks.clone() {
                    let codes = block * products..(block + 1) * products;
                    let moved = match scales {
                        PanelScales::Exponents { lhs, rhs, blocks, along } => {
                            let at = codes.start / along;
                            let lhs = lhs[row * blocks + at];
                            core::array::from_fn(|lane| {
                                let rhs = rhs[at][lane];
                                match lhs == NAN_EXPONENT || rhs == NAN_EXPONENT {
                                    true => {
                                        is_nan[lane] = true;
                                        0
                                    }
                                    false => i32::from(lhs) + i32::from(rhs),
                                }
                            })
                        }
                        _ => [0; WIDTH],
                    };
                    kernel.block(
                        (&left.significands[codes.clone()], &left.exponents[codes.clone()]),
                        (&right.significands[codes.clone()], &right.exponents[codes]),
                        moved,
                        &mut c,
                    );
                }
                match scales {
                    PanelScales::Blocks { lhs, rhs, blocks } => {
                        let lhs = lhs[row * blocks + of_scales];
                        for lane in 0..WIDTH {
                            sums[lane] = c[lane].mul_add(lhs * rhs[*of_scales][lane], sums[lane]);
                        }
                    }
                    _ => sums.iter_mut().zip(c).for_each(|(sum, c)| *sum += c),
                }
            }
            for (sum, is_nan) in sums.iter_mut().zip(is_nan) {
                if is_nan {
                    *sum = f32::NAN;
                }
            }
        }
    }
}
