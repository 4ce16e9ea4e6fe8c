//! Products with the sums of tensor cores, bit for bit: [`burn_fp8_core::sums`] has the rules.
//!
//! Columns lie side by side in vectors, so that each lane is a chain of its own. Codes are split into significand, exponent and sign once. For each block
//! the largest exponent is found first; then significands are multiplied as integers, shifted right by their distance to it, and added.
#![allow(unsafe_code, reason = "instructions are used after they were found")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod pack;
mod portable;
#[cfg(target_arch = "x86_64")]
mod quads;
mod special;

use burn_fp8_core::Fp8Format;
#[cfg(target_arch = "x86_64")]
use burn_fp8_core::sums::RunningSum;
use burn_fp8_core::sums::{Accumulation, Accumulator, CANONICAL_NAN, SplitK, chains, join_parts};
use rayon::prelude::*;

use crate::share;
#[cfg(target_arch = "x86_64")]
use crate::unit::Instructions;
use pack::Layout;
use special::Special;

/// Columns that lie side by side.
const WIDTH: usize = 16;

/// Rows that one task multiplies by such columns.
const ROWS: usize = 64;

/// How a product adds.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The hardware's accumulator.
    pub accumulator: Accumulator,
    /// Whether a new chain begins now and then. Scales of blocks have one for each block, whatever this says.
    pub accumulation: Accumulation,
    /// Whether parts of K are added by themselves. Not of scales of blocks.
    pub split: Option<SplitK>,
}

/// The scales of two operands `[M, K]` and `[N, K]`.
#[derive(Clone, Copy, Debug)]
pub enum LineScales<'a> {
    /// One for each row of an operand, or one for all: `y = fma(sum, RN(lhs · rhs), +0)`.
    Whole {
        /// 1 or M of the left operand.
        lhs: &'a [f32],
        /// 1 or N of the right one.
        rhs: &'a [f32],
    },
    /// One for each block of so many of K in each row: a chain for each block, which is multiplied by `RN(lhs · rhs)` and added in one rounding, as
    /// DeepSeek's kernels do on Hopper. Not compared with a card.
    Blocks {
        /// `[M, ⌈K / along⌉]`.
        lhs: &'a [f32],
        /// `[N, ⌈K / along⌉]`.
        rhs: &'a [f32],
        /// Elements of a block.
        along: usize,
    },
    /// The same with powers of two that the hardware multiplies the products by, as exponents: MXFP8. [`NAN_EXPONENT`] makes what it meets NaN. Chains are of whole
    /// blocks.
    Exponents {
        /// `[M, ⌈K / along⌉]`.
        lhs: &'a [i16],
        /// `[N, ⌈K / along⌉]`.
        rhs: &'a [i16],
        /// Elements of a block: a multiple of the products of the accumulator.
        along: usize,
    },
}

/// The exponent of a scale that is NaN.
pub const NAN_EXPONENT: i16 = i16::MAX;

/// The blocks of one chain, in the order in which codes were packed.
#[derive(Clone, Debug)]
struct Segment {
    blocks: core::ops::Range<usize>,
    /// The block of scales that it is of.
    of_scales: usize,
}

/// Where the codes of a row go before they are multiplied, and what is added when.
struct Plan {
    layout: Layout,
    parts: Vec<Vec<Segment>>,
}

/// A kernel for packed rows and columns.
trait Kernel: Sync {
    /// Rows of the left operand.
    type Left: Send + Sync;
    /// [`WIDTH`] columns of the right one.
    type Right;

    fn pack_left(&self, rows: &[&[u8]], layout: &Layout) -> Self::Left;

    fn pack_right(&self, columns: &[&[u8]], layout: &Layout) -> Self::Right;

    /// The sums of chains, one after the other, of each packed row with each column.
    fn part(
        &self,
        operands: (&Self::Left, &Self::Right),
        segments: &[Segment],
        scales: &PanelScales<'_>,
        sums: &mut [[f32; WIDTH]],
    );
}

/// What sums of blocks, or products in them, are multiplied by in a panel: for each block of K, of rows and of columns.
enum PanelScales<'a> {
    None,
    Blocks { lhs: &'a [f32], rhs: Vec<[f32; WIDTH]>, blocks: usize },
    Exponents { lhs: &'a [i16], rhs: Vec<[i16; WIDTH]>, blocks: usize, along: usize },
}

/// `lhs` `[M, K]` times the transpose of `rhs` `[N, K]`, into `[M, N]`, with the sums of an accumulator.
///
/// The bits are the same on every CPU, by any number of threads, and those of [`burn_fp8_core::sums::dot`] and `scaled`. Sums that are no number are the NaN of tensor cores.
///
/// # Panics
/// If lengths do not fit the sizes, the accumulator is out of range, or a block of scales is not whole blocks of products.
#[track_caller]
pub fn matmul(
    order: &Order,
    codes: [&[u8]; 2],
    formats: [Fp8Format; 2],
    size: [usize; 3],
    scales: LineScales<'_>,
    output: &mut [f32],
) {
    let [m, n, _] = size;
    check(order, codes, size, scales, output.len());
    if m == 0 || n == 0 {
        return;
    }
    let product = Product { order, codes, formats, size, scales };
    let is_narrow = order.accumulator.fraction <= portable::NARROW
        && !matches!(scales, LineScales::Exponents { .. });
    #[cfg(target_arch = "x86_64")]
    if is_narrow && order.accumulator.running == RunningSum::Early {
        let instructions = Instructions::current();
        if instructions == Instructions::Widest
            && let Some(kernel) = avx512::Avx512::new(order.accumulator, formats)
        {
            return product.run(&kernel, output);
        }
        if instructions != Instructions::Baseline
            && let Some(kernel) = avx2::Avx2::new(order.accumulator, formats)
        {
            return product.run(&kernel, output);
        }
    }
    match is_narrow {
        true => product.run(&portable::Portable::<i32>::new(order.accumulator, formats), output),
        false => product.run(&portable::Portable::<i64>::new(order.accumulator, formats), output),
    }
}

#[track_caller]
fn check(
    order: &Order,
    [a, b]: [&[u8]; 2],
    [m, n, k]: [usize; 3],
    scales: LineScales<'_>,
    output: usize,
) {
    if let Err(error) = order.accumulator.validate() {
        panic!("{error}");
    }
    for (name, codes, lines) in [("left", a, m), ("right", b, n)] {
        assert!(
            lines.checked_mul(k) == Some(codes.len()),
            "{} codes of the {name} operand are not {lines} × {k}",
            codes.len()
        );
    }
    assert!(m.checked_mul(n) == Some(output), "the output has {output} elements, not {m} × {n}");
    let (of_lines, blocks) = match scales {
        LineScales::Whole { lhs, rhs } => {
            let fits = |scales: &[f32], lines| scales.len() == 1 || scales.len() == lines;
            assert!(
                fits(lhs, m) && fits(rhs, n),
                "{} and {} scales for {m} rows and {n} columns",
                lhs.len(),
                rhs.len()
            );
            return;
        }
        LineScales::Blocks { lhs, rhs, along } => ([lhs.len(), rhs.len()], along),
        LineScales::Exponents { lhs, rhs, along } => ([lhs.len(), rhs.len()], along),
    };
    let Accumulator { products, chain, .. } = order.accumulator;
    let products = products as usize;
    if let LineScales::Exponents { .. } = scales {
        let whole = chain == u32::MAX || (chain as usize).is_multiple_of(blocks);
        assert!(whole, "chains of {chain} are not whole blocks of {blocks}");
    }
    assert!(
        blocks > 0 && blocks.is_multiple_of(products),
        "blocks of {blocks} are not whole blocks of {products} products"
    );
    assert!(
        order.split.is_none_or(|split| split.splits <= 1),
        "products with scales of blocks are not split"
    );
    let blocks = k.div_ceil(blocks);
    assert!(
        of_lines == [m * blocks, n * blocks],
        "{} and {} scales for {m} and {n} times {blocks} blocks",
        of_lines[0],
        of_lines[1]
    );
}

struct Product<'a> {
    order: &'a Order,
    codes: [&'a [u8]; 2],
    formats: [Fp8Format; 2],
    size: [usize; 3],
    scales: LineScales<'a>,
}

impl Product<'_> {
    fn plan(&self) -> Plan {
        let Order { accumulator, accumulation, split } = *self.order;
        let [_, _, k] = self.size;
        let parts = match self.scales {
            LineScales::Whole { .. } => chains(k, accumulator.chain, accumulation, split),
            LineScales::Blocks { along, .. } => {
                chains(k, along.min(u32::MAX as usize) as u32, Accumulation::Split, None)
            }
            LineScales::Exponents { .. } => chains(k, accumulator.chain, accumulation, None),
        };
        Plan::new(parts, accumulator.products as usize)
    }

    fn rows(&self, operand: usize, rows: core::ops::Range<usize>) -> Vec<&[u8]> {
        let k = self.size[2];
        rows.map(|row| &self.codes[operand][row * k..][..k]).collect()
    }

    fn run<K: Kernel>(&self, kernel: &K, output: &mut [f32]) {
        let [m, n, k] = self.size;
        let plan = self.plan();
        let special = Special::new(self.codes, self.formats, self.size);
        let work = m.saturating_mul(n).saturating_mul(k);
        let is_parallel = share::threads(work, share::IN_F32) > 1;
        let tiles = m.div_ceil(ROWS);
        let pack = |tile: usize| {
            let rows = tile * ROWS..((tile + 1) * ROWS).min(m);
            kernel.pack_left(&self.rows(0, rows), &plan.layout)
        };
        let left: Vec<K::Left> = match is_parallel {
            true => (0..tiles).into_par_iter().map(pack).collect(),
            false => (0..tiles).map(pack).collect(),
        };
        let output = Cells { start: output.as_mut_ptr(), length: output.len() };
        let panel = |panel: usize| {
            let columns = panel * WIDTH..((panel + 1) * WIDTH).min(n);
            let right = kernel.pack_right(&self.rows(1, columns.clone()), &plan.layout);
            let mut sums = vec![[[0f32; WIDTH]; ROWS]; plan.parts.len()];
            for (tile, left) in left.iter().enumerate() {
                let rows = tile * ROWS..((tile + 1) * ROWS).min(m);
                let scales = self.panel_scales(rows.clone(), columns.clone());
                for (segments, sums) in plan.parts.iter().zip(&mut sums) {
                    kernel.part((left, &right), segments, &scales, &mut sums[..rows.len()]);
                }
                for row in rows.clone() {
                    let at = row - rows.start;
                    // SAFETY: these columns of these rows are this task's.
                    let y = unsafe { output.row(row * n + columns.start, columns.len()) };
                    for (column, y) in columns.clone().zip(y) {
                        let lane = column - columns.start;
                        let sum = match &sums[..] {
                            [sums] => sums[at][lane],
                            parts => {
                                let parts: Vec<f32> =
                                    parts.iter().map(|sums| sums[at][lane]).collect();
                                join_parts(&parts, self.order.split)
                            }
                        };
                        *y = self.finish(special.replace(sum, row, column), row, column);
                    }
                }
            }
        };
        let panels = n.div_ceil(WIDTH);
        match is_parallel {
            true => (0..panels).into_par_iter().for_each(panel),
            false => (0..panels).for_each(panel),
        }
    }

    fn panel_scales(
        &self,
        rows: core::ops::Range<usize>,
        columns: core::ops::Range<usize>,
    ) -> PanelScales<'_> {
        let k = self.size[2];
        match self.scales {
            LineScales::Whole { .. } => PanelScales::None,
            LineScales::Blocks { lhs, rhs, along } => {
                let blocks = k.div_ceil(along);
                let lhs = &lhs[rows.start * blocks..rows.end * blocks];
                PanelScales::Blocks { lhs, rhs: across(rhs, columns, blocks), blocks }
            }
            LineScales::Exponents { lhs, rhs, along } => {
                let blocks = k.div_ceil(along);
                let lhs = &lhs[rows.start * blocks..rows.end * blocks];
                PanelScales::Exponents { lhs, rhs: across(rhs, columns, blocks), blocks, along }
            }
        }
    }

    /// The epilogue: `fma(sum, RN(lhs · rhs), +0)`.
    #[inline]
    fn finish(&self, sum: f32, row: usize, column: usize) -> f32 {
        let y = match self.scales {
            LineScales::Whole { lhs, rhs } => {
                let [lhs, rhs] = [(lhs, row), (rhs, column)]
                    .map(|(of, line)| of[if of.len() == 1 { 0 } else { line }]);
                let factor = lhs * rhs;
                // An exact zero is +0; one that a small factor has left keeps its sign.
                if sum == 0.0 || factor == 0.0 { sum * factor + 0.0 } else { sum * factor }
            }
            _ => sum,
        };
        if y.is_nan() { CANONICAL_NAN } else { y }
    }
}

/// What lines have for each block of K, as vectors of [`WIDTH`] lines.
fn across<T: Copy + Default>(
    of_lines: &[T],
    lines: core::ops::Range<usize>,
    blocks: usize,
) -> Vec<[T; WIDTH]> {
    let mut vectors = vec![[T::default(); WIDTH]; blocks];
    for (lane, line) in lines.enumerate() {
        for (vector, of_line) in vectors.iter_mut().zip(&of_lines[line * blocks..]) {
            vector[lane] = *of_line;
        }
    }
    vectors
}

impl Plan {
    fn new(parts: Vec<burn_fp8_core::sums::Part>, products: usize) -> Self {
        let mut layout = Layout::default();
        let (mut block, mut of_scales) = (0, 0);
        let parts = parts.into_iter().map(|part| {
            let segments = part.into_iter().map(|chain| {
                let length: usize = chain.iter().map(|piece| piece.len()).sum();
                layout.push(chain, block * products);
                let blocks = block..block + length.div_ceil(products);
                block = blocks.end;
                of_scales += 1;
                Segment { blocks, of_scales: of_scales - 1 }
            });
            segments.collect()
        });
        let parts = parts.collect();
        layout.length = block * products;
        Self { layout, parts }
    }
}

/// The output, of which tasks write different elements.
struct Cells {
    start: *mut f32,
    length: usize,
}

// SAFETY: tasks write different elements.
unsafe impl Sync for Cells {}

impl Cells {
    /// # Safety
    /// Nobody else may have these elements.
    #[expect(clippy::mut_from_ref, reason = "disjoint parts, by the caller's promise")]
    unsafe fn row(&self, start: usize, length: usize) -> &mut [f32] {
        assert!(start + length <= self.length, "a row within the output");
        // SAFETY: within the output, and nobody else's.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(start), length) }
    }
}
