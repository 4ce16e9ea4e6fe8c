//! Matrices of codes.

use burn_fp8_core::Fp8Format;

use crate::blocks::{BlockScales, Factors, Grid, Powers};

/// A matrix of FP8 codes in memory, or a batch of matrices of one shape.
///
/// Either its rows or its columns lie without gaps between their elements.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    pub(crate) codes: &'a [u8],
    pub(crate) format: Fp8Format,
    pub(crate) shape: [usize; 2],
    pub(crate) batch: usize,
    /// Where each matrix of the batch begins.
    starts: Starts<'a>,
    /// From one row, or one column, to the next.
    pub(crate) line_stride: usize,
    /// Whether the elements of a column are next to each other, not those of a row.
    pub(crate) transposed: bool,
    /// What its blocks are multiplied by.
    pub(crate) factors: Factors<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Starts<'a> {
    /// As many elements after each other.
    Stride(usize),
    /// Wherever they are.
    Each(&'a [usize]),
}

impl<'a> Codes<'a> {
    /// A matrix `[rows, columns]`, row by row.
    ///
    /// # Panics
    /// If there are not as many codes.
    pub fn rows(codes: &'a [u8], format: Fp8Format, shape: [usize; 2]) -> Self {
        Self::batch(codes, format, 1, shape)
    }

    /// Matrices `[rows, columns]`, one after the other, row by row.
    ///
    /// # Panics
    /// If there are not as many codes.
    #[track_caller]
    pub fn batch(codes: &'a [u8], format: Fp8Format, batch: usize, shape: [usize; 2]) -> Self {
        let [rows, columns] = shape;
        let elements = batch.checked_mul(rows).and_then(|lines| lines.checked_mul(columns));
        assert!(
            elements == Some(codes.len()),
            "{} codes are not {batch} matrices {rows} × {columns}",
            codes.len()
        );
        // Not `rows * columns`, which may overflow where there are no matrices.
        let starts = Starts::Stride(codes.len() / batch.max(1));
        Self { batch, starts, ..Self::one(codes, format, shape, columns) }
    }

    /// Rows that are `stride` elements apart: part of a wider matrix.
    ///
    /// # Panics
    /// If the last row ends beyond the codes, or rows overlap.
    #[track_caller]
    pub fn strided(
        codes: &'a [u8],
        format: Fp8Format,
        [rows, columns]: [usize; 2],
        stride: usize,
    ) -> Self {
        let end = (rows.saturating_sub(1)).checked_mul(stride).and_then(|x| x.checked_add(columns));
        let fits = rows == 0 || (stride >= columns && end.is_some_and(|end| end <= codes.len()));
        assert!(fits, "{} codes are no {rows} × {columns} with a stride of {stride}", codes.len());
        Self::one(codes, format, [rows, columns], if rows <= 1 { columns } else { stride })
    }

    fn one(codes: &'a [u8], format: Fp8Format, shape: [usize; 2], line_stride: usize) -> Self {
        let (batch, starts) = (1, Starts::Stride(0));
        let (transposed, factors) = (false, Factors::Ones);
        Self { codes, format, shape, batch, starts, line_stride, transposed, factors }
    }

    /// A batch of matrices like this one, which begin as many elements after it. They may overlap.
    ///
    /// # Panics
    /// If it is a batch of matrices already, or one ends beyond the codes, or its blocks have powers or scales.
    #[track_caller]
    pub fn starting_at(self, starts: &'a [usize]) -> Self {
        assert!(self.batch == 1, "a batch of {} matrices does not begin anew", self.batch);
        assert!(
            matches!(self.factors, Factors::Ones),
            "a matrix whose blocks have powers or scales does not begin anew"
        );
        let this = self.matrix(0);
        let [rows, columns] = self.shape;
        let [lines, elements] = if self.transposed { [columns, rows] } else { [rows, columns] };
        let extent = if lines == 0 { 0 } else { (lines - 1) * self.line_stride + elements };
        if let Some(last) = starts.iter().max() {
            let fits = last.checked_add(extent).is_some_and(|end| end <= this.codes.len());
            assert!(fits, "a matrix {rows} × {columns} does not begin at code {last}");
        }
        Self { batch: starts.len(), starts: Starts::Each(starts), ..this }
    }

    /// The same memory, seen as the transpose of the matrix, or of each matrix.
    pub fn transpose(self) -> Self {
        let [rows, columns] = self.shape;
        let factors = self.factors.transpose();
        Self { shape: [columns, rows], transposed: !self.transposed, factors, ..self }
    }

    /// One matrix as the operand of each product of a batch.
    ///
    /// # Panics
    /// If it is a batch of matrices already.
    #[track_caller]
    pub fn broadcast(self, batch: usize) -> Self {
        assert!(self.batch == 1, "a batch of {} matrices is not broadcast", self.batch);
        Self { batch, ..self.matrix(0) }
    }

    /// Multiplies each block of the matrix, as it is seen now, by a power of two. What its blocks were multiplied by before is forgotten.
    ///
    /// In a product, blocks must have a multiple of 32 elements along the dimension that is summed; the last ones may have fewer.
    ///
    /// # Panics
    /// If there are not as many exponents as blocks, one is positive or below [`Powers::lowest`], or it is a batch of matrices.
    #[track_caller]
    pub fn with_powers(self, powers: Powers<'a>) -> Self {
        assert!(self.batch == 1, "a batch of {} matrices has no powers: 1 has", self.batch);
        let factors = Factors::Powers(Grid::of_powers(powers, self.format, self.shape));
        Self { factors, ..self }
    }

    /// Multiplies each block of the matrix, as it is seen now, by a scale. What its blocks were multiplied by before is forgotten.
    ///
    /// In a product, both operands have scales, of blocks with as many elements along the dimension that is summed, a multiple of 32; the last ones may have fewer.
    ///
    /// # Panics
    /// If there are not as many scales as blocks, or it is a batch of matrices.
    #[track_caller]
    pub fn with_scales(self, BlockScales { scales, block }: BlockScales<'a>) -> Self {
        let batch = self.batch;
        assert!(batch == 1, "a batch of {batch} matrices has no scales of blocks: 1 has");
        let factors = Factors::Scales(Grid::new("scales", scales, block, self.shape));
        Self { factors, ..self }
    }

    /// Rows and columns of a matrix.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The code in row `row` and column `column` of the first matrix.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn at(&self, row: usize, column: usize) -> u8 {
        let (line, element) = if self.transposed { (column, row) } else { (row, column) };
        self.codes[line * self.line_stride + element]
    }

    /// One matrix of the batch.
    pub(crate) fn matrix(&self, index: usize) -> Self {
        let start = match self.starts {
            Starts::Stride(stride) => index * stride,
            Starts::Each(starts) => starts[index],
        };
        Self { codes: &self.codes[start..], batch: 1, starts: Starts::Stride(0), ..*self }
    }
}
