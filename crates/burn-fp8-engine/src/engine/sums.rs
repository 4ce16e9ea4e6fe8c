//! Emulated products with the sums of tensor cores, on the host.

use std::borrow::Cow;

use burn_backend::{
    FloatDType, Shape, TensorData, TensorMetadata, tensor::FloatTensor, tensor::IntTensor,
};
use burn_fp8_core::sums::{Accumulation, CANONICAL_NAN, Sums};
use burn_fp8_core::{Fp8Format, e8m0};
use burn_fp8_cpu::sums::{LineScales, NAN_EXPONENT, Order, matmul};

use super::backend::Fp8Engine;
use super::codes::Codes;
use super::launch::{Launched, note};
use super::matrix::{MatrixOf, Scales, WHOLE};
use super::portable::codes;
use super::problem::shape_of;
use super::product::{Added, Run, Target};
use super::tensor::read;

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`, times their scales, and what is added to one product, f32.
pub(super) fn multiply<B: Fp8Engine>(
    operands: [MatrixOf<B>; 2],
    added: Option<Added<FloatTensor<B>>>,
    run: &Run,
) -> FloatTensor<B> {
    let [lhs, rhs] = &operands;
    note(&run.note, || launched([lhs, rhs], run));
    let shape = shape_of([lhs.shape(), rhs.shape()]);
    let last = shape.num_dims() - 1;
    let [m, n, k] = [shape[last - 1], shape[last], lhs.shape()[last]];
    let accumulator = run.sums.accumulator().expect("f32 has none, and is multiplied elsewhere");
    let order = Order { accumulator, accumulation: accumulation(run), split: run.split };
    let [a, b] = [(lhs, false), (rhs, true)]
        .map(|(matrix, of_transpose)| Lines::new::<B>(matrix, of_transpose, k));
    let batch = &shape[..last - 1];
    let mut sums = vec![0f32; shape.num_elements()];
    for (index, sums) in sums.chunks_mut((m * n).max(1)).enumerate() {
        let codes = [a.matrix(batch, index, m * k), b.matrix(batch, index, n * k)];
        let [grid_a, grid_b] = [&a, &b].map(|lines| lines.grid(batch, index));
        let scales = OfLines::new([&grid_a, &grid_b], [m, n, k]);
        let multiply =
            |scales, sums| matmul(&order, codes, [lhs.format, rhs.format], [m, n, k], scales, sums);
        match &added {
            None => multiply(scales.view(), sums),
            Some(Added { c, beta }) => {
                let c = read::<B>(B::float_cast(c.clone(), FloatDType::F32));
                multiply(scales.before_epilogue(), sums);
                for (at, (sum, c)) in sums.iter_mut().zip(c).enumerate() {
                    let y = sum.mul_add(scales.of_epilogue([at / n, at % n]), beta * c);
                    *sum = if y.is_nan() { CANONICAL_NAN } else { y };
                }
            }
        }
    }
    let device = operands[0].device::<B>();
    B::float_from_data(TensorData::new(sums, shape), &device)
}

/// Whether chains begin anew.
pub(super) fn accumulation(run: &Run) -> Accumulation {
    if run.fast_accumulation { Accumulation::Fast } else { Accumulation::Split }
}

/// What the trace is told: whose sums, and what is not known of them.
pub(super) fn launched<F, I>(operands: [&super::matrix::Matrix<F, I>; 2], run: &Run) -> Launched {
    let is_whole = operands.iter().all(|matrix| matrix.scales.block() == WHOLE);
    let unknown = match run.sums {
        Sums::Custom(_) => Some("the accumulator is the user's own"),
        Sums::Blackwell => Some("known of single instructions, not of cuBLAS"),
        _ if !is_whole => Some("several scales: not compared with a card"),
        _ => None,
    };
    let reason = match &run.target {
        Target::Emulation(Some(fallback)) => Some(fallback.to_string()),
        _ => unknown.map(String::from),
    };
    Launched::Sums { sums: run.sums, reason }
}

/// Rows of codes along what is summed, of a batch of matrices, and their scales.
struct Lines<'a> {
    codes: Cow<'a, [u8]>,
    /// The leading dimensions.
    batch: Vec<usize>,
    scales: Vec<f32>,
    /// Of one matrix of them: down and along.
    grid: [usize; 2],
    /// Lines and elements of a block.
    block: [usize; 2],
    /// The leading dimensions of the scales.
    batch_of_scales: Vec<usize>,
}

/// The scales of blocks of one matrix.
struct Grid<'a> {
    scales: &'a [f32],
    columns: usize,
    block: [usize; 2],
}

impl<'a> Lines<'a> {
    fn new<B: Fp8Engine>(matrix: &'a MatrixOf<B>, of_transpose: bool, k: usize) -> Self {
        let shape = matrix.shape();
        let last = shape.num_dims() - 1;
        let [rows, columns] = [shape[last - 1], shape[last]];
        let (codes, of_codes) = match (&matrix.codes, &matrix.transposed, &matrix.values) {
            (_, Some(codes), _) if of_transpose => (bytes::<B>(codes, matrix.format), true),
            (Some(codes), ..) => (bytes::<B>(codes, matrix.format), false),
            (None, Some(codes), _) => (bytes::<B>(codes, matrix.format), true),
            (None, None, values) => {
                let values = values.clone().expect("a matrix has its codes in some form");
                let codes = codes::into_bytes::<B>(Codes::Values(values), matrix.format);
                (codes.into(), false)
            }
        };
        let codes = match (of_codes == of_transpose, of_codes) {
            (true, _) => codes,
            (false, false) => transposed(&codes, [rows, columns]).into(),
            (false, true) => transposed(&codes, [columns, rows]).into(),
        };
        let scales = match of_transpose {
            true => matrix.scales.clone().transpose::<B>(),
            false => matrix.scales.clone(),
        };
        let (scales, grid, block, batch_of_scales) = match scales {
            Scales::One(scale) => (vec![scale.read::<B>()], [1, 1], WHOLE, vec![]),
            Scales::Grid { scales, block, .. } => {
                let shape: Shape = scales.shape();
                let last = shape.num_dims() - 1;
                let grid = [shape[last - 1], shape[last]];
                let batch = shape[..last - 1].to_vec();
                (read::<B>(scales), grid, [block[0], block[1].min(k.max(1))], batch)
            }
        };
        let batch = shape[..last - 1].to_vec();
        Self { codes, batch, scales, grid, block, batch_of_scales }
    }

    /// The codes of the matrix that a product of a batch takes.
    fn matrix(&self, batch: &[usize], index: usize, size: usize) -> &[u8] {
        &self.codes[place(&self.batch, batch, index) * size..][..size]
    }

    fn grid(&self, batch: &[usize], index: usize) -> Grid<'_> {
        let at = match self.batch_of_scales.len() == batch.len() {
            true => place(&self.batch_of_scales, batch, index),
            false => 0,
        };
        let [rows, columns] = self.grid;
        let scales = &self.scales[at * rows * columns..][..rows * columns];
        Grid { scales, columns, block: self.block }
    }
}

/// Codes in the host's memory, row by row: where they lie, or read.
fn bytes<B: Fp8Engine>(
    codes: &Codes<FloatTensor<B>, IntTensor<B>>,
    format: Fp8Format,
) -> Cow<'_, [u8]> {
    match codes {
        Codes::Bytes(lying) if B::fp8_codes(lying).is_some() => {
            B::fp8_codes(lying).expect("asked before").into()
        }
        // Those of a batch are padded one by one.
        Codes::Padded(_, shape) if shape.num_dims() > 2 => {
            let values = Codes::Values(codes::values::<B>(codes.clone(), format));
            codes::into_bytes::<B>(values, format).into()
        }
        codes => codes::into_bytes::<B>(codes.clone(), format).into(),
    }
}

/// Matrices of so many rows and columns, each transposed.
fn transposed(codes: &[u8], [rows, columns]: [usize; 2]) -> Vec<u8> {
    /// Rows and columns that stay in the cache.
    const TILE: usize = 64;
    let mut turned = vec![0; codes.len()];
    let size = (rows * columns).max(1);
    for (codes, turned) in codes.chunks(size).zip(turned.chunks_mut(size)) {
        for first in (0..rows).step_by(TILE) {
            for start in (0..columns).step_by(TILE) {
                for row in first..(first + TILE).min(rows) {
                    for column in start..(start + TILE).min(columns) {
                        turned[column * rows + row] = codes[row * columns + column];
                    }
                }
            }
        }
    }
    turned
}

/// Where the matrix for a product of a batch of this shape stands among one's own, which broadcast.
fn place(own: &[usize], batch: &[usize], index: usize) -> usize {
    let (mut rest, mut at, mut step) = (index, 0, 1);
    for (own, size) in own.iter().zip(batch).rev() {
        let here = rest % size;
        at += if *own == 1 { 0 } else { here * step };
        step *= own;
        rest /= size;
    }
    at
}

impl Grid<'_> {
    fn at(&self, line: usize, k: usize) -> f32 {
        self.scales[line / self.block[0] * self.columns + k / self.block[1]]
    }

    /// Whether each line has one.
    fn is_whole(&self) -> bool {
        self.columns == 1
    }

    fn of_lines(&self, lines: usize, pieces: usize, along: usize) -> Vec<f32> {
        let line = |line| (0..pieces).map(move |piece| self.at(line, piece * along));
        (0..lines).flat_map(line).collect()
    }
}

/// The scales of both operands as the host multiplies them.
enum OfLines {
    Whole([Vec<f32>; 2]),
    Blocks([Vec<f32>; 2], usize),
    Exponents([Vec<i16>; 2], usize),
}

impl OfLines {
    fn new([a, b]: [&Grid<'_>; 2], [m, n, k]: [usize; 3]) -> Self {
        if a.is_whole() && b.is_whole() {
            let one = |grid: &Grid<'_>, lines| match grid.scales {
                [scale] => vec![*scale],
                _ => grid.of_lines(lines, 1, k.max(1)),
            };
            return Self::Whole([one(a, m), one(b, n)]);
        }
        let along = [a, b].map(|grid| if grid.is_whole() { usize::MAX } else { grid.block[1] });
        let along = along.into_iter().min().expect("two");
        let pieces = k.div_ceil(along);
        let lines = [a.of_lines(m, pieces, along), b.of_lines(n, pieces, along)];
        let is_power = |scale: &f32| scale.is_nan() || e8m0::encode(*scale).is_some();
        if along != MX || !lines.iter().flatten().all(is_power) {
            return Self::Blocks(lines, along);
        }
        Self::Exponents(lines.map(|scales| scales.into_iter().map(exponent).collect()), along)
    }

    /// Those that products are multiplied by before the epilogue: of blocks.
    fn before_epilogue(&self) -> LineScales<'_> {
        match self {
            Self::Whole(_) => LineScales::Whole { lhs: &[1.0], rhs: &[1.0] },
            _ => self.view(),
        }
    }

    /// What the epilogue multiplies a sum by.
    fn of_epilogue(&self, at: [usize; 2]) -> f32 {
        match self {
            Self::Whole(scales) => {
                let [a, b] = [0, 1].map(|side| match scales[side][..] {
                    [scale] => scale,
                    ref scales => scales[at[side]],
                });
                a * b
            }
            _ => 1.0,
        }
    }

    fn view(&self) -> LineScales<'_> {
        match self {
            Self::Whole([lhs, rhs]) => LineScales::Whole { lhs, rhs },
            Self::Blocks([lhs, rhs], along) => LineScales::Blocks { lhs, rhs, along: *along },
            Self::Exponents([lhs, rhs], along) => LineScales::Exponents { lhs, rhs, along: *along },
        }
    }
}

/// Elements of a block of MXFP8, whose scales are powers of two that hardware multiplies by inside.
const MX: usize = 32;

/// The exponent of a power of two; that of a number of MXFP8, which is no other.
fn exponent(scale: f32) -> i16 {
    match scale.is_nan() {
        true => NAN_EXPONENT,
        // Of 2^-127, which is no normal f32, too.
        false => (scale.to_bits() >> 23) as i16 - 127,
    }
}
