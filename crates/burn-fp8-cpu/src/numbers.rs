//! Matrices of numbers that are multiplied in bf16.
#![allow(unsafe_code, reason = "packing takes vector instructions")]

#[cfg(target_arch = "x86_64")]
use core::ops::Range;

use half::bf16;

#[cfg(target_arch = "x86_64")]
use crate::epilogue::WIDTH;
#[cfg(target_arch = "x86_64")]
use crate::pack::words::{self, Lines, ToBf16};
#[cfg(target_arch = "x86_64")]
use crate::product::STEP;

/// A matrix of numbers in f32, which are rounded to bf16, or in bf16.
///
/// Either its rows or its columns lie without gaps between their elements.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    values: Values<'a>,
    shape: [usize; 2],
    /// From one row, or one column, to the next.
    stride: usize,
    /// Whether the elements of a column are next to each other, not those of a row.
    transposed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl<'a> Numbers<'a> {
    /// A matrix `[rows, columns]` in f32, whose rows are `stride` elements apart.
    ///
    /// # Panics
    /// If the last row ends beyond the numbers, or rows overlap.
    #[track_caller]
    pub fn f32(values: &'a [f32], shape: [usize; 2], stride: usize) -> Self {
        Self::new(Values::F32(values), values.len(), shape, stride)
    }

    /// The same in bf16.
    ///
    /// # Panics
    /// As in f32.
    #[track_caller]
    pub fn bf16(values: &'a [bf16], shape: [usize; 2], stride: usize) -> Self {
        Self::new(Values::Bf16(values), values.len(), shape, stride)
    }

    #[track_caller]
    fn new(
        values: Values<'a>,
        count: usize,
        shape @ [rows, columns]: [usize; 2],
        stride: usize,
    ) -> Self {
        let end = rows.saturating_sub(1).checked_mul(stride).and_then(|x| x.checked_add(columns));
        let is_apart = rows <= 1 || stride >= columns;
        let fits = rows == 0 || (is_apart && end.is_some_and(|end| end <= count));
        assert!(fits, "{count} numbers are no {rows} × {columns} with a stride of {stride}");
        Self { values, shape, stride, transposed: false }
    }

    /// The same memory, seen as the transpose of the matrix.
    pub fn transpose(self) -> Self {
        let [rows, columns] = self.shape;
        Self { shape: [columns, rows], transposed: !self.transposed, ..self }
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Lines of memory from an element on.
    #[cfg(target_arch = "x86_64")]
    fn lines<S>(&self, values: &[S], [row, column]: [usize; 2]) -> Lines<S> {
        let [line, element] = if self.transposed { [column, row] } else { [row, column] };
        let start = values.as_ptr().wrapping_add(line * self.stride + element);
        Lines { start, stride: self.stride }
    }

    /// # Safety
    /// As for [`pack_left`](Self::pack_left).
    #[cfg(target_arch = "x86_64")]
    unsafe fn left<S: ToBf16>(
        &self,
        values: &[S],
        [rows, depth]: [Range<usize>; 2],
        panel: usize,
        panels: &mut [u16],
    ) {
        let length = depth.len().next_multiple_of(STEP);
        assert!(rows.end <= self.shape[0] && depth.end <= self.shape[1]);
        assert!(rows.len() * length <= panels.len());
        for (first, out) in rows.clone().step_by(panel).zip(panels.chunks_mut(panel * length)) {
            let height = panel.min(rows.end - first);
            let lines = self.lines(values, [first, depth.start]);
            let (words, step) = (out.as_mut_ptr().cast(), height * STEP / 2);
            // SAFETY: the caller's promise; rows and depth are inside of the matrix, and the panel has room, as asserted.
            unsafe {
                match self.transposed {
                    false => words::rows(lines, [height, depth.len()], words, step),
                    true => words::rows_of_transpose(lines, [depth.len(), height], words, step),
                }
            }
        }
    }

    /// # Safety
    /// As for [`pack_right`](Self::pack_right).
    #[cfg(target_arch = "x86_64")]
    unsafe fn right<S: ToBf16>(
        &self,
        values: &[S],
        [columns, depth]: [Range<usize>; 2],
        panels: &mut [u16],
    ) {
        let length = depth.len().next_multiple_of(STEP);
        assert!(columns.end <= self.shape[1] && depth.end <= self.shape[0]);
        assert!(columns.len().next_multiple_of(WIDTH) * length <= panels.len());
        let panels = panels.chunks_exact_mut(WIDTH * length);
        for (first, out) in columns.clone().step_by(WIDTH).zip(panels) {
            let width = WIDTH.min(columns.end - first);
            out[depth.len().next_multiple_of(2) * WIDTH..].fill(0);
            let lines = self.lines(values, [depth.start, first]);
            let words = out.as_mut_ptr().cast();
            // SAFETY: the caller's promise; columns and depth are inside of the matrix, and the panel has room, as asserted.
            unsafe {
                match self.transposed {
                    false => words::pairs(lines, [depth.len(), width], words, WIDTH),
                    true => words::columns(lines, [width, depth.len()], words, WIDTH),
                }
            }
        }
    }

    /// As [`Packable::decode`](crate::packable::Packable::decode).
    pub(crate) fn decode(&self) -> (Vec<f32>, [isize; 2]) {
        let [rows, columns] = self.shape;
        let [lines, elements] = if self.transposed { [columns, rows] } else { [rows, columns] };
        let mut numbers = Vec::with_capacity(lines * elements);
        for line in 0..lines {
            let line = line * self.stride..line * self.stride + elements;
            match self.values {
                Values::F32(values) => {
                    numbers.extend(values[line].iter().map(|x| bf16::from_f32(*x).to_f32()));
                }
                Values::Bf16(values) => numbers.extend(values[line].iter().map(|x| x.to_f32())),
            }
        }
        let elements = elements as isize;
        (numbers, if self.transposed { [1, elements] } else { [elements, 1] })
    }

    /// # Safety
    /// As for [`Packable::pack_left`](crate::packable::Packable::pack_left).
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn pack_left(
        &self,
        part: [Range<usize>; 2],
        panel: usize,
        panels: &mut [u16],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.values {
                Values::F32(values) => self.left(values, part, panel, panels),
                Values::Bf16(values) => self.left(values, part, panel, panels),
            }
        }
    }

    /// # Safety
    /// As for [`Packable::pack_right`](crate::packable::Packable::pack_right).
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn pack_right(&self, part: [Range<usize>; 2], panels: &mut [u16]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.values {
                Values::F32(values) => self.right(values, part, panels),
                Values::Bf16(values) => self.right(values, part, panels),
            }
        }
    }
}
