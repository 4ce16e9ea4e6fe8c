//! What becomes of sums: scales, bias, activation, the type of the result.
#![allow(unsafe_code, reason = "tasks write to disjoint parts of one result")]

use core::sync::atomic::{AtomicU32, Ordering};

use burn_fp8_core::{Fp8Format, Overflow, scale};
use half::{bf16, f16};

use crate::round::{to_bf16, to_f16};
use crate::slice;

/// Numbers of a row of sums: the columns of a right panel.
pub(crate) const WIDTH: usize = 32;

/// What is applied to each element of a product, in this order: scales, bias, activation.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// The scales of the operands.
    pub scales: OperandScales<'a>,
    /// What is added to each row `[N]`.
    pub bias: Option<&'a [f32]>,
    /// What is applied after the bias.
    pub activation: Activation,
}

impl Epilogue<'_> {
    /// A scale for each operand: `x ≈ code × scale`.
    pub const fn scaled(lhs: f32, rhs: f32) -> Self {
        let scales = OperandScales::Tensor { lhs, rhs };
        Self { scales, bias: None, activation: Activation::None }
    }
}

/// The scales of the operands of a product.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum OperandScales<'a> {
    /// One for each operand.
    Tensor {
        /// Of the left one.
        lhs: f32,
        /// Of the right one.
        rhs: f32,
    },
    /// One for each row of the left operand and each column of the right one.
    Rows {
        /// `[M]`, or `[batch × M]`.
        lhs: &'a [f32],
        /// `[N]`, or `[batch × N]`.
        rhs: &'a [f32],
    },
}

/// What is applied to each element after the bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`, in the order of JAX's `gelu(approximate=True)`.
    Gelu,
}

/// Where a result `[batch × M × N]` goes, row by row.
#[derive(Debug)]
#[non_exhaustive]
pub enum Output<'a> {
    /// f32.
    F32(&'a mut [f32]),
    /// f32, to which the result is added.
    Add(&'a mut [f32]),
    /// bf16, rounded to nearest even.
    Bf16(&'a mut [bf16]),
    /// f16, rounded to nearest even; infinite beyond its range.
    F16(&'a mut [f16]),
    /// FP8: the codes of the result times `factor`, saturating.
    Fp8 {
        /// The codes.
        codes: &'a mut [u8],
        /// Their format.
        format: Fp8Format,
        /// The reciprocal of their scale: cuBLASLt's `D_SCALE`. The product is rounded to f32 before it is rounded to FP8.
        factor: f32,
    },
}

impl Output<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(y) | Self::Add(y) => y.len(),
            Self::Bf16(y) => y.len(),
            Self::F16(y) => y.len(),
            Self::Fp8 { codes, .. } => codes.len(),
        }
    }
}

/// The memory of a result, which tasks write to disjoint parts of.
#[derive(Clone, Copy)]
enum Target {
    F32(*mut f32),
    Add(*mut f32),
    Bf16(*mut bf16),
    F16(*mut f16),
    Fp8 { codes: *mut u8, format: Fp8Format, factor: f32 },
}

/// An epilogue on its way to a result `[batch, M, N]`.
pub(crate) struct Finish<'a> {
    epilogue: Epilogue<'a>,
    target: Target,
    /// M and N.
    shape: [usize; 2],
    batch: usize,
    /// The bits of the largest magnitude before the result was rounded, where it is wanted.
    amax: Option<&'a AtomicU32>,
}

// SAFETY: tasks write to different parts of the target, which `new` borrows for as long as this lives.
unsafe impl Sync for Finish<'_> {}

/// Part of a result: the place of a tile of sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The matrix of the batch.
    pub(crate) batch: usize,
    /// The row and the column of its first element.
    pub(crate) start: [usize; 2],
    /// Its rows, and its columns: at most 32.
    pub(crate) size: [usize; 2],
}

impl<'a> Finish<'a> {
    /// # Panics
    /// If scales, bias or output have other lengths than the shape has.
    #[track_caller]
    pub(crate) fn new(
        epilogue: &Epilogue<'a>,
        output: &'a mut Output<'_>,
        batch: usize,
        shape: [usize; 2],
        amax: Option<&'a AtomicU32>,
    ) -> Self {
        let [m, n] = shape;
        let elements = batch.checked_mul(m).and_then(|x| x.checked_mul(n));
        assert!(
            elements == Some(output.len()),
            "the output has {} elements; {batch} products {m} × {n} do not",
            output.len()
        );
        if let Some(bias) = epilogue.bias {
            assert!(bias.len() == n, "the bias has {} elements for {n} columns", bias.len());
        }
        if let OperandScales::Rows { lhs, rhs } = epilogue.scales {
            for (name, scales, lines) in [("left", lhs, m), ("right", rhs, n)] {
                assert!(
                    scales.len() == lines || batch.checked_mul(lines) == Some(scales.len()),
                    "{} scales of the {name} operand for {batch} × {lines}",
                    scales.len()
                );
            }
        }
        let target = match output {
            Output::F32(y) => Target::F32(y.as_mut_ptr()),
            Output::Add(y) => Target::Add(y.as_mut_ptr()),
            Output::Bf16(y) => Target::Bf16(y.as_mut_ptr()),
            Output::F16(y) => Target::F16(y.as_mut_ptr()),
            Output::Fp8 { codes, format, factor } => {
                Target::Fp8 { codes: codes.as_mut_ptr(), format: *format, factor: *factor }
            }
        };
        Self { epilogue: *epilogue, target, shape, batch, amax }
    }

    /// Applies the epilogue to sums `[rows][32]`, in place, and stores the result.
    ///
    /// Inlined into functions that are compiled for a vector instruction set.
    #[inline(always)]
    pub(crate) fn run(&self, part: Part, sums: &mut [f32]) {
        let [m, n] = self.shape;
        let Part { batch, start: [first, column], size: [rows, width] } = part;
        assert!(batch < self.batch && first + rows <= m && column + width <= n && width <= WIDTH);
        let mut largest = 0;
        let (tile, _) = sums.as_chunks_mut::<WIDTH>();
        for (row, values) in (first..first + rows).zip(tile) {
            self.apply(batch, row, column, width, values);
            if self.amax.is_some() {
                for value in &values[..width] {
                    // The order of magnitudes is that of their bits; NaN comes last.
                    largest = largest.max(value.to_bits() & 0x7FFF_FFFF);
                }
            }
            // SAFETY: part of a row of the result, by the assertion above, which no other task writes to.
            unsafe { self.store((batch * m + row) * n + column, width, values) };
        }
        if let Some(amax) = self.amax {
            amax.fetch_max(largest, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn apply(
        &self,
        batch: usize,
        row: usize,
        column: usize,
        width: usize,
        values: &mut [f32; WIDTH],
    ) {
        let [m, n] = self.shape;
        match self.epilogue.scales {
            OperandScales::Tensor { lhs, rhs } => {
                let [first, second] = scale::of_product(lhs, rhs);
                for value in values.iter_mut() {
                    *value = *value * first * second;
                }
            }
            OperandScales::Rows { lhs, rhs } => {
                let lhs = lhs[(batch * m + row) % lhs.len()];
                let rhs = &rhs[(batch * n + column) % rhs.len()..][..width];
                for (value, rhs) in values.iter_mut().zip(rhs) {
                    let [first, second] = scale::of_product(lhs, *rhs);
                    *value = *value * first * second;
                }
            }
        }
        if let Some(bias) = self.epilogue.bias {
            for (value, bias) in values.iter_mut().zip(&bias[column..][..width]) {
                *value += bias;
            }
        }
        match self.epilogue.activation {
            Activation::None => {}
            // Not `max`, which loses NaN.
            Activation::Relu => {
                values.iter_mut().for_each(|x| *x = if *x <= 0.0 { 0.0 } else { *x })
            }
            Activation::Gelu => values[..width].iter_mut().for_each(|x| *x = gelu(*x)),
        }
    }

    /// # Safety
    /// `width` elements from `start` on must be inside of the result, and nobody else may be writing there.
    #[inline(always)]
    unsafe fn store(&self, start: usize, width: usize, values: &[f32; WIDTH]) {
        // SAFETY: the caller's promise, for each type.
        unsafe {
            match self.target {
                // A constant length becomes vector stores, not a call.
                Target::F32(y) if width == WIDTH => {
                    core::ptr::copy_nonoverlapping(values.as_ptr(), y.add(start), WIDTH);
                }
                Target::F32(y) => row(y, start, width).copy_from_slice(&values[..width]),
                Target::Add(y) => {
                    row(y, start, width).iter_mut().zip(values).for_each(|(y, x)| *y += x);
                }
                Target::Bf16(y) => {
                    row(y, start, width).iter_mut().zip(values).for_each(|(y, x)| *y = to_bf16(*x));
                }
                Target::F16(y) => {
                    row(y, start, width).iter_mut().zip(values).for_each(|(y, x)| *y = to_f16(*x));
                }
                Target::Fp8 { codes, format, factor } => {
                    let scaled = values.map(|x| x * factor);
                    let codes = row(codes, start, width);
                    slice::encode(&scaled[..width], 1.0, format, Overflow::Saturate, codes);
                }
            }
        }
    }
}

/// # Safety
/// As [`Finish::store`].
#[inline(always)]
unsafe fn row<'a, T>(target: *mut T, start: usize, width: usize) -> &'a mut [T] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(target.add(start), width) }
}

fn gelu(x: f32) -> f32 {
    let inner = (x + x * x * x * 0.044715) * (2.0 / core::f32::consts::PI).sqrt();
    x * ((inner.tanh() + 1.0) * 0.5)
}
