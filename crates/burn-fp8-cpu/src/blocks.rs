//! What blocks of a matrix are multiplied by.

use burn_fp8_core::Fp8Format;

/// The lowest exponent of a normal f32, and of a normal bf16.
const LOWEST_NORMAL: i16 = f32::MIN_EXP as i16 - 1;

/// Powers of two that blocks of a matrix are multiplied by: the scales of MXFP8, or of DeepSeek's blocks.
///
/// Exponents are relative: callers take the largest one of a tensor out of it and into the scale of [`Epilogue`](crate::Epilogue), so that the
/// others are 0 or less. A block of zeros has any exponent; 0 is best, as it does not count as low.
///
/// A code times the power of its block is exact in bf16. Units with bf16 take products and sums below 2^-126 for zero, though:
/// [`are_exact`](Self::are_exact) says whether there are any.
#[derive(Clone, Copy, Debug)]
pub struct Powers<'a> {
    /// The exponents `[⌈rows / block[0]⌉, ⌈columns / block[1]⌉]`, row by row, each from [`lowest`](Self::lowest) to 0.
    pub exponents: &'a [i16],
    /// Rows and columns of a block: `[1, 32]`, say. The last ones may have fewer.
    pub block: [usize; 2],
}

impl Powers<'_> {
    /// The lowest exponent of blocks of a format: −117 for E4M3, −110 for E5M2. The smallest code times this power is the smallest normal bf16.
    pub const fn lowest(format: Fp8Format) -> i16 {
        LOWEST_NORMAL - lowest_code(format)
    }

    /// Whether a product of two operands loses nothing to zero: whether every product of their codes, but those with 0, is at least 2^-126.
    ///
    /// Each operand has a format, and a lowest exponent: 0 where it has no powers. As the products are multiples of the smallest one,
    /// so are their sums: none of them is between 0 and 2^-126.
    pub const fn are_exact(lhs: (Fp8Format, i16), rhs: (Fp8Format, i16)) -> bool {
        let within = lhs.1 >= Self::lowest(lhs.0) && rhs.1 >= Self::lowest(rhs.0);
        within && lhs.1 + lowest_code(lhs.0) + rhs.1 + lowest_code(rhs.0) >= LOWEST_NORMAL
    }
}

/// Scales of blocks in f32: those of DeepSeek's recipe.
///
/// What a product sums over one block of K is multiplied by the scales of its two blocks, and added to what other blocks of K gave: so blocks of both
/// operands have as many elements along K.
#[derive(Clone, Copy, Debug)]
pub struct BlockScales<'a> {
    /// The scales `[⌈rows / block[0]⌉, ⌈columns / block[1]⌉]`, row by row.
    pub scales: &'a [f32],
    /// Rows and columns of a block: `[1, 128]`, say. The last ones may have fewer.
    pub block: [usize; 2],
}

/// The exponent of the smallest positive number of a format.
const fn lowest_code(format: Fp8Format) -> i16 {
    1 - format.exponent_bias() as i16 - format.mantissa_bits() as i16
}

/// What the blocks of a matrix are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Factors<'a> {
    /// Nothing.
    Ones,
    /// Powers of two, given by their exponents: they are multiplied into the numbers of the block.
    Powers(Grid<'a, i16>),
    /// Scales: they are multiplied into the sums over the block.
    Scales(Grid<'a, f32>),
}

impl Factors<'_> {
    pub(crate) fn transpose(self) -> Self {
        match self {
            Self::Ones => Self::Ones,
            Self::Powers(grid) => Self::Powers(grid.transpose()),
            Self::Scales(grid) => Self::Scales(grid.transpose()),
        }
    }

    /// Rows and columns of a block, where there are any.
    pub(crate) fn block(&self) -> Option<[usize; 2]> {
        match self {
            Self::Ones => None,
            Self::Powers(grid) => Some(grid.block),
            Self::Scales(grid) => Some(grid.block),
        }
    }
}

/// What the blocks of a matrix have, exponents or scales, in rows or transposed as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid<'a, T> {
    of_blocks: &'a [T],
    block: [usize; 2],
    /// From a block to the one below, and to the one on the right.
    strides: [usize; 2],
}

impl<'a> Grid<'a, i16> {
    /// # Panics
    /// If there are not as many exponents as blocks, or one is out of range.
    #[track_caller]
    pub(crate) fn of_powers(
        Powers { exponents, block }: Powers<'a>,
        format: Fp8Format,
        shape: [usize; 2],
    ) -> Self {
        let grid = Self::new("exponents", exponents, block, shape);
        let lowest = Powers::lowest(format);
        if let Some(exponent) = exponents.iter().find(|x| !(lowest..=0).contains(x)) {
            panic!("the exponent {exponent} of a block of {format} is not from {lowest} to 0");
        }
        grid
    }
}

#[cfg(target_arch = "x86_64")]
impl Grid<'_, f32> {
    /// The smallest magnitude, and the largest: NaN where there is one.
    pub(crate) fn range(&self) -> [f32; 2] {
        // As bits, which vectors compare.
        let bits = self.of_blocks.iter().map(|x| x.abs().to_bits());
        bits.fold([u32::MAX, 0], |[low, high], x| [low.min(x), high.max(x)]).map(f32::from_bits)
    }
}

impl<'a, T: Copy> Grid<'a, T> {
    /// # Panics
    /// If there are not as many of them as blocks.
    #[track_caller]
    pub(crate) fn new(
        name: &str,
        of_blocks: &'a [T],
        block: [usize; 2],
        [rows, columns]: [usize; 2],
    ) -> Self {
        let [height, width] = block;
        assert!(height > 0 && width > 0, "blocks {height} × {width} have no elements");
        let [down, across] = [rows.div_ceil(height), columns.div_ceil(width)];
        assert!(
            down.checked_mul(across) == Some(of_blocks.len()),
            "{} {name} for {down} × {across} blocks {height} × {width} of a matrix {rows} × {columns}",
            of_blocks.len()
        );
        Self { of_blocks, block, strides: [across, 1] }
    }

    pub(crate) fn transpose(self) -> Self {
        let ([height, width], [down, across]) = (self.block, self.strides);
        Self { block: [width, height], strides: [across, down], ..self }
    }

    /// Rows and columns of a block.
    pub(crate) fn block(&self) -> [usize; 2] {
        self.block
    }

    /// The place of the exponent at the beginning of a row.
    pub(crate) fn row(&self, row: usize) -> usize {
        row / self.block[0] * self.strides[0]
    }

    /// How far from there the exponents of columns are: of `first`, `first + step` and so on. Widths of blocks and `first` are multiples of
    /// `step`.
    #[inline(always)]
    pub(crate) fn columns(&self, first: usize, step: usize) -> impl Iterator<Item = usize> {
        let (width, stride) = (self.block[1], self.strides[1]);
        debug_assert!(first.is_multiple_of(step) && width.is_multiple_of(step));
        // Counted: a division for each step takes as long as what is done with its exponent.
        let (mut place, mut left) = (first / width * stride, width - first % width);
        core::iter::repeat_with(move || {
            let here = place;
            left -= step;
            if left == 0 {
                (place, left) = (place + stride, width);
            }
            here
        })
    }

    /// What the block at a place has.
    #[inline(always)]
    pub(crate) fn at(&self, place: usize) -> T {
        self.of_blocks[place]
    }

    /// What the block of an element has.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn of(&self, row: usize, column: usize) -> T {
        self.at(self.row(row) + column / self.block[1] * self.strides[1])
    }
}
