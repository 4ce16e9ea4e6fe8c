//! Products with a matrix whose rows are summed over: of codes, or of numbers in a type of two bytes.
//!
//! Some rows are decoded at a time, for a while of K, and multiplied by all rows of `x` while the first-level cache holds them. So the matrix is read
//! once, from end to end, and one row of `x` takes about as long as reading it.

mod columns;
#[cfg(target_arch = "x86_64")]
mod few;
mod strips;
#[cfg(target_arch = "x86_64")]
mod vectors;

use core::ops::Range;

use burn_fp8_core::{Fp8Format, element};
pub use columns::{matmul_block_codes, matmul_codes};
use half::{bf16, f16};
use pulp::{Simd, WithSimd};

use strips::{in_portions, in_strips, lines};

use crate::slice::{Source, same_length};
use crate::unit::arch;

/// K that is decoded at a time.
const DEPTH: usize = 512;

/// Rows that are decoded at a time: with [`DEPTH`] 12 KiB of f32, which stay in the first-level cache beside a tile's rows of `x`.
const HEIGHT: usize = 6;

/// Of these, rows whose sums are in registers at a time: with [`ROWS`] twelve sums, three rows and one of `x` are the sixteen registers of AVX2. Where
/// there are more registers, it is all of them.
const WIDTH: usize = 3;

/// Rows of `x` whose sums are in registers at a time.
const ROWS: usize = 4;

/// Bytes of `x` that are multiplied by all rows before the next ones: they stay in the second-level cache.
const PORTION: usize = 384 << 10;

/// Rows of `x` in a portion, at least: decoding costs as much as multiplying by a few.
const PORTION_ROWS: usize = 32;

/// K is padded with zeros to a multiple of it: numbers that are decoded at a time, at most.
const STEP: usize = 64;

/// A matrix `[N, K]`, row by row.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Of numbers in bf16.
    Bf16(&'a [bf16]),
    /// Of numbers in f16.
    F16(&'a [f16]),
    /// Of codes, which stand for numbers.
    Codes(&'a [u8], Fp8Format),
    /// Of codes, each times the scale of its block.
    Blocks {
        /// The codes.
        codes: &'a [u8],
        /// What they are codes of.
        format: Fp8Format,
        /// Rows and columns that share a scale.
        block: [usize; 2],
        /// `[⌈N / rows⌉, ⌈K / columns⌉]`.
        scales: &'a [f32],
    },
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Bf16(numbers) => numbers.len(),
            Self::F16(numbers) => numbers.len(),
            Self::Codes(codes, _) | Self::Blocks { codes, .. } => codes.len(),
        }
    }
}

/// `x` `[M, K]` times `matrix` `[N, K]` transposed: `y` `[M, N]`, in f32, all row by row.
///
/// A scale multiplies its codes, or the sum of their products. Sums are taken in an order that depends on the shape, on whether all codes are finite, and
/// on the vector instructions, not on the number of threads. Runs on rayon's current pool.
///
/// # Panics
/// If a slice has not the length that `[M, K, N]` and the blocks give it.
pub fn matmul_rows(x: &[f32], matrix: Rows<'_>, [m, k, n]: [usize; 3], y: &mut [f32]) {
    for (name, len, [rows, columns]) in
        [("x", x.len(), [m, k]), ("the matrix", matrix.len(), [n, k]), ("y", y.len(), [m, n])]
    {
        assert!(
            rows.checked_mul(columns) == Some(len),
            "{name} has {len} elements and {rows} rows of {columns}; they must fit"
        );
    }
    if let Rows::Blocks { block: [rows, columns], scales, .. } = matrix {
        same_length(("scales", scales.len()), ("the grid", n.div_ceil(rows) * k.div_ceil(columns)));
    }
    if k == 0 {
        y.fill(0.0);
    }
    if m * n * k == 0 || in_registers(x, matrix, [m, k, n], y) {
        return;
    }
    let order = Order::of(matrix, k);
    let ((x, from), arch) = (pack(x, k, &order), arch());
    in_strips([m, k, n], HEIGHT, y, |rows, y| {
        arch.dispatch(Strip { x: &x[from..], k, matrix, order: &order, rows, y });
    });
}

/// Rows of `x` that are multiplied at a time.
fn portion(k: usize) -> usize {
    (PORTION / (k * size_of::<f32>())).max(PORTION_ROWS).next_multiple_of(ROWS)
}

/// Portions of rows of `x`, each for a while of K after the other: `[⌈K / DEPTH⌉][rows][depth]`. Elements are in the order of those that are decoded; they
/// begin where a cache line does, at the second number returned.
fn pack(x: &[f32], k: usize, order: &Order) -> (Vec<f32>, usize) {
    let (rows, padded) = (portion(k), k.next_multiple_of(STEP));
    let count = x.len() / k * padded;
    let (mut packed, first) = lines(count);
    let end = first + count;
    let places: [usize; STEP] = core::array::from_fn(order.place);
    let portion = |x: &[f32], packed: &mut [f32]| {
        let mut steps = packed.as_chunks_mut::<STEP>().0.iter_mut();
        for start in (0..k).step_by(DEPTH) {
            for row in x.chunks_exact(k) {
                let (whole, rest) = row[start..k.min(start + DEPTH)].as_chunks::<STEP>();
                for (x, y) in whole.iter().zip(&mut steps) {
                    *y = places.map(|place| x[place]);
                }
                if !rest.is_empty() {
                    let mut last = [0.0; STEP];
                    last[..rest.len()].copy_from_slice(rest);
                    let y = steps.next().expect("a step for each begun one");
                    *y = places.map(|place| last[place]);
                }
            }
        }
    };
    in_portions(x, rows * k, &mut packed[first..end], rows * padded, portion);
    (packed, first)
}

/// Decoded rows, from the beginning of a cache line on.
#[repr(align(64))]
struct Decoded([[f32; DEPTH]; HEIGHT]);

/// The product with some rows of the matrix. No dimension is 0.
struct Strip<'a> {
    x: &'a [f32],
    k: usize,
    matrix: Rows<'a>,
    order: &'a Order,
    rows: Range<usize>,
    /// `[M, rows]`.
    y: &'a mut [f32],
}

impl WithSimd for Strip<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<A: Simd>(self, simd: A) {
        let Self { x, k, matrix, order, rows, y } = self;
        let (first, count) = (rows.start, rows.len());
        let Decoded(decoded) = &mut Decoded([[0.0; DEPTH]; HEIGHT]);
        let portion = portion(k);
        // `[M][HEIGHT][lanes]`.
        let mut sums = vec![simd.splat_f32s(0.0); portion.min(y.len() / count) * HEIGHT];
        let portions = x.chunks(portion * k.next_multiple_of(STEP));
        for (x, y) in portions.zip(y.chunks_mut(portion * count)) {
            let m = y.len() / count;
            let sums = &mut sums[..m * HEIGHT];
            for start in (0..count).step_by(HEIGHT) {
                let height = HEIGHT.min(count - start);
                sums.fill(simd.splat_f32s(0.0));
                for from in (0..k).step_by(DEPTH) {
                    let depth = DEPTH.min(k - from);
                    let padded = depth.next_multiple_of(STEP);
                    for (row, decoded) in decoded[..height].iter_mut().enumerate() {
                        ask(matrix, first + start + HEIGHT + row, k, from);
                        let (row, columns) = (first + start + row, from..from + depth);
                        decode(matrix, order, row, k, columns, &mut decoded[..padded]);
                    }
                    let x = &x[from * m..][..m * padded];
                    multiply(simd, x, &decoded[..height], padded, sums);
                }
                for (sums, y) in sums.chunks_exact(HEIGHT).zip(y.chunks_exact_mut(count)) {
                    for (sum, y) in sums.iter().zip(&mut y[start..start + height]) {
                        *y = simd.reduce_sum_f32s(*sum);
                    }
                }
            }
        }
    }
}

/// The product of a few rows, where there are instructions that convert elements in registers: whether that was done.
fn in_registers(x: &[f32], matrix: Rows<'_>, shape: [usize; 3], y: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        use few::multiply;

        use crate::blocks::BlockScales;
        use vectors::{Avx2, Avx512, FromCodes, FromHalves};
        let (codes, format, scales) = match matrix {
            Rows::Bf16(numbers) => {
                return multiply::<Avx2, FromHalves<bf16>>(x, numbers, None, shape, y);
            }
            Rows::F16(numbers) => {
                return multiply::<Avx2, FromHalves<f16>>(x, numbers, None, shape, y);
            }
            Rows::Codes(codes, format) => (codes, format, None),
            Rows::Blocks { codes, format, block, scales } => {
                (codes, format, Some(BlockScales { block, scales }))
            }
        };
        match format {
            Fp8Format::E4M3 => {
                multiply::<Avx512, FromCodes<true>>(x, codes, scales, shape, y)
                    || multiply::<Avx2, FromCodes<true>>(x, codes, scales, shape, y)
            }
            Fp8Format::E5M2 => {
                multiply::<Avx512, FromCodes<false>>(x, codes, scales, shape, y)
                    || multiply::<Avx2, FromCodes<false>>(x, codes, scales, shape, y)
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (x, matrix, shape, y);
        false
    }
}

/// How elements are decoded.
struct Order {
    instructions: Instructions,
    /// Where among [`STEP`] elements the one is that comes at a place.
    place: fn(usize) -> usize,
}

/// The instructions that decode.
enum Instructions {
    None,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Order {
    fn of(matrix: Rows<'_>, k: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use vectors::{Avx2, Avx512, FromCodes, FromHalves, order};
            let wide = |format, columns| match format {
                Fp8Format::E4M3 => order::<Avx512, FromCodes<true>>(k, columns),
                Fp8Format::E5M2 => order::<Avx512, FromCodes<false>>(k, columns),
            };
            let codes = |format, columns| match format {
                Fp8Format::E4M3 => order::<Avx2, FromCodes<true>>(k, columns),
                Fp8Format::E5M2 => order::<Avx2, FromCodes<false>>(k, columns),
            };
            let [wide, narrow] = match matrix {
                Rows::Bf16(_) => [None, order::<Avx2, FromHalves<bf16>>(k, k)],
                Rows::F16(_) => [None, order::<Avx2, FromHalves<f16>>(k, k)],
                Rows::Codes(_, format) => [wide(format, k), codes(format, k)],
                Rows::Blocks { format, block, .. } => {
                    [wide(format, block[1]), codes(format, block[1])]
                }
            };
            if let Some(place) = wide {
                return Self { instructions: Instructions::Avx512, place };
            }
            if let Some(place) = narrow {
                return Self { instructions: Instructions::Avx2, place };
            }
        }
        let _ = (matrix, k);
        Self { instructions: Instructions::None, place: |index| index }
    }
}

/// Numbers of some columns of a row, in vectors or one by one; zeros after them, to a whole step.
fn decode(
    matrix: Rows<'_>,
    order: &Order,
    row: usize,
    k: usize,
    columns: Range<usize>,
    numbers: &mut [f32],
) {
    let place = row * k + columns.start..row * k + columns.end;
    #[cfg(target_arch = "x86_64")]
    {
        use vectors::{Avx2, Avx512, FromCodes, FromHalves, convert};
        let is_done = match (&order.instructions, matrix) {
            (Instructions::None, _) => false,
            (_, Rows::Bf16(values)) => {
                convert::<Avx2, FromHalves<bf16>>(&values[place.clone()], numbers);
                true
            }
            (_, Rows::F16(values)) => {
                convert::<Avx2, FromHalves<f16>>(&values[place.clone()], numbers);
                true
            }
            (width, Rows::Codes(codes, format) | Rows::Blocks { codes, format, .. }) => {
                let codes = &codes[place.clone()];
                match (width, format) {
                    (Instructions::Avx512, Fp8Format::E4M3) => {
                        convert::<Avx512, FromCodes<true>>(codes, numbers);
                    }
                    (Instructions::Avx512, Fp8Format::E5M2) => {
                        convert::<Avx512, FromCodes<false>>(codes, numbers);
                    }
                    (_, Fp8Format::E4M3) => convert::<Avx2, FromCodes<true>>(codes, numbers),
                    (_, Fp8Format::E5M2) => convert::<Avx2, FromCodes<false>>(codes, numbers),
                }
                true
            }
        };
        if is_done {
            return scale(matrix, row, k, columns.start, numbers);
        }
    }
    debug_assert!(matches!(order.instructions, Instructions::None));
    let (these, after) = numbers.split_at_mut(columns.len());
    after.fill(0.0);
    match matrix {
        Rows::Bf16(values) => one_by_one(&values[place], Source::to_f32, these),
        Rows::F16(values) => one_by_one(&values[place], Source::to_f32, these),
        Rows::Codes(codes, format) | Rows::Blocks { codes, format, .. } => {
            one_by_one(&codes[place], |code| element::decode(code, format), these);
        }
    }
    scale(matrix, row, k, columns.start, these);
}

fn one_by_one<E: Copy>(elements: &[E], number: impl Fn(E) -> f32, numbers: &mut [f32]) {
    for (element, y) in elements.iter().zip(numbers) {
        *y = number(*element);
    }
}

/// Multiplies numbers of a row from column `from` on by the scales of their blocks, inside of which vectors change places.
fn scale(matrix: Rows<'_>, row: usize, k: usize, from: usize, mut numbers: &mut [f32]) {
    let Rows::Blocks { block: [rows, width], scales, .. } = matrix else { return };
    // With what follows the last column.
    let width = if width < k { width } else { usize::MAX };
    let columns = k.div_ceil(width);
    let scales = &scales[row / rows * columns..][..columns];
    let mut column = from;
    // What pads K may be longer than the last block.
    while !numbers.is_empty() && column / width < columns {
        let count = (width - column % width).min(numbers.len());
        let (now, later) = numbers.split_at_mut(count);
        let scale = scales[column / width];
        now.iter_mut().for_each(|x| *x *= scale);
        (numbers, column) = (later, column + count);
    }
}

/// Asks for what is decoded soon: the same while of a row among the next ones.
fn ask(matrix: Rows<'_>, row: usize, k: usize, from: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::_MM_HINT_T1;

        use vectors::prefetch;
        let (place, count) = (row * k + from, DEPTH.min(k - from));
        match matrix {
            Rows::Bf16(values) => {
                prefetch::<_MM_HINT_T1, _>(values.as_ptr().wrapping_add(place), count)
            }
            Rows::F16(values) => {
                prefetch::<_MM_HINT_T1, _>(values.as_ptr().wrapping_add(place), count)
            }
            Rows::Codes(codes, _) | Rows::Blocks { codes, .. } => {
                prefetch::<_MM_HINT_T1, _>(codes.as_ptr().wrapping_add(place), count);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (matrix, row, k, from);
}

/// Adds the products of all rows of `x` `[M][depth]` with decoded ones to `sums` `[M][HEIGHT]`.
#[inline(always)]
fn multiply<A: Simd>(
    simd: A,
    x: &[f32],
    decoded: &[[f32; DEPTH]],
    depth: usize,
    sums: &mut [A::f32s],
) {
    let groups = x.chunks(ROWS * depth).zip(sums.chunks_mut(ROWS * HEIGHT));
    for (x, sums) in groups {
        let mut first = 0;
        while first < decoded.len() {
            let rows = &decoded[first..];
            let sums = &mut sums[first..];
            first += match rows.len() {
                HEIGHT.. if A::REGISTER_COUNT >= 32 => {
                    tiles::<A, HEIGHT>(simd, x, rows, depth, sums)
                }
                WIDTH.. => tiles::<A, WIDTH>(simd, x, rows, depth, sums),
                _ => tiles::<A, 1>(simd, x, rows, depth, sums),
            };
        }
    }
}

/// `R` decoded rows, which are returned, and up to four of `x`.
#[inline(always)]
fn tiles<A: Simd, const R: usize>(
    simd: A,
    x: &[f32],
    rows: &[[f32; DEPTH]],
    depth: usize,
    sums: &mut [A::f32s],
) -> usize {
    match x.len() / depth {
        1 => tile::<A, R, 1>(simd, x, rows, depth, sums),
        2 => tile::<A, R, 2>(simd, x, rows, depth, sums),
        3 => tile::<A, R, 3>(simd, x, rows, depth, sums),
        _ => tile::<A, R, 4>(simd, x, rows, depth, sums),
    }
    R
}

/// `R` decoded rows and `P` rows of `x`.
#[inline(always)]
fn tile<A: Simd, const R: usize, const P: usize>(
    simd: A,
    x: &[f32],
    rows: &[[f32; DEPTH]],
    depth: usize,
    sums: &mut [A::f32s],
) {
    let vectors = depth / A::F32_LANES;
    let x: [&[A::f32s]; P] =
        core::array::from_fn(|p| &A::as_simd_f32s(&x[p * depth..][..depth]).0[..vectors]);
    let rows: [&[A::f32s]; R] = core::array::from_fn(|r| &A::as_simd_f32s(&rows[r]).0[..vectors]);
    let mut totals: [[A::f32s; R]; P] =
        core::array::from_fn(|p| core::array::from_fn(|r| sums[p * HEIGHT + r]));
    #[allow(
        clippy::needless_range_loop,
        reason = "iterators over so many sums leave them in memory, at a fifth of the speed"
    )]
    for vector in 0..vectors {
        let mut now = [simd.splat_f32s(0.0); R];
        for r in 0..R {
            now[r] = rows[r][vector];
        }
        for p in 0..P {
            for r in 0..R {
                totals[p][r] = simd.mul_add_e_f32s(x[p][vector], now[r], totals[p][r]);
            }
        }
    }
    for (p, totals) in totals.into_iter().enumerate() {
        sums[p * HEIGHT..][..R].copy_from_slice(&totals);
    }
}
