//! A grid of scales: one for each block of the last two dimensions of a tensor, or one for all.

use cubecl::prelude::*;

use crate::bits::{self, Division, Divisor, Quad};
use crate::error::KernelError;
use crate::launch::array;
use crate::tensor::Scalar;

/// Matrices of one size, one after the other, and their blocks. On the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    pub(crate) matrices: usize,
    /// Rows and columns of a matrix.
    pub(crate) size: [usize; 2],
    /// Those of a block, no more than there are.
    pub(crate) block: [usize; 2],
}

/// How a kernel finds the blocks of four elements side by side, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Finding {
    /// Whether there is more than one matrix.
    several: bool,
    /// The logarithms of the rows and columns of a block, where they are powers of two.
    shifts: [Option<u32>; 2],
    /// Whether four elements of a word lie in one row.
    one_row: bool,
    /// Whether they lie in one block.
    one_block: bool,
}

impl Blocks {
    /// The blocks of a tensor of this shape, none of whose sizes is 0.
    pub(crate) fn new(shape: &[usize], block: [usize; 2]) -> Result<Self, KernelError> {
        let Some((leading, &size)) = shape.split_last_chunk::<2>() else {
            return Err(KernelError::NoMatrix { shape: shape.into() });
        };
        if block.contains(&0) {
            return Err(KernelError::Block { block });
        }
        let block = [0, 1].map(|dim| block[dim].min(size[dim]));
        Ok(Self { matrices: product(leading), size, block })
    }

    pub(crate) fn elements(&self) -> usize {
        product(&[self.matrices, self.size[0], self.size[1]])
    }

    /// How many blocks lie along rows and columns.
    pub(crate) fn grid(&self) -> [usize; 2] {
        [0, 1].map(|dim| self.size[dim].div_ceil(self.block[dim]))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let [rows, columns] = self.grid();
        self.matrices * rows * columns
    }

    pub(crate) fn arg<R: Runtime>(&self) -> GridLaunch<R> {
        let ([rows, columns], [block_rows, block_columns]) = (self.size, self.block);
        let [grid_rows, grid_columns] = self.grid();
        let shift = |size: usize| size.is_power_of_two().then(|| size.trailing_zeros());
        let one_row = columns.is_multiple_of(4);
        let finding = Finding {
            several: self.matrices > 1,
            shifts: self.block.map(shift),
            one_row,
            one_block: one_row && (block_columns == columns || block_columns.is_multiple_of(4)),
        };
        GridLaunch::new(rows, columns, block_rows, block_columns, grid_rows, grid_columns, finding)
    }

    /// Their scales as an argument of a kernel.
    pub(crate) fn scales<R: Runtime>(&self, scales: ArrayArg<R>) -> ScalesLaunch<R> {
        ScalesLaunch::new(
            ComptimeOptionArgs::Some(scales),
            0.0,
            ComptimeOptionArgs::Some(self.arg()),
        )
    }
}

/// The product of sizes, the largest number where it is larger than that.
fn product(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product: usize, size| product.saturating_mul(*size))
}

/// The same in a kernel.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Grid {
    rows: usize,
    columns: usize,
    block_rows: usize,
    block_columns: usize,
    grid_rows: usize,
    grid_columns: usize,
    #[cube(comptime)]
    finding: Finding,
}

/// Where a block begins, and how far it goes.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) matrix: usize,
    pub(crate) row: usize,
    pub(crate) column: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

#[cube]
impl Grid {
    /// The block with this number.
    pub(crate) fn place(&self, block: usize) -> Place {
        let row = block / self.grid_columns;
        let column = (block % self.grid_columns) * self.block_columns;
        let matrix = row / self.grid_rows;
        let row = (row % self.grid_rows) * self.block_rows;
        Place {
            matrix,
            row,
            column,
            rows: min(self.block_rows, self.rows - row),
            columns: min(self.block_columns, self.columns - column),
        }
    }

    /// The first block beside or below which those of a row lie. Rows are counted through all matrices.
    fn first_of_row(&self, row: usize) -> usize {
        let shift = comptime!(self.finding.shifts[0]);
        if comptime!(self.finding.several) {
            let (matrix, row) = (row / self.rows, row % self.rows);
            (matrix * self.grid_rows + quotient(row, self.block_rows, shift)) * self.grid_columns
        } else {
            quotient(row, self.block_rows, shift) * self.grid_columns
        }
    }

    /// The scales of the blocks of four elements, of which the first is given, in row-major order. There are `elements` of them.
    fn scales(&self, scales: &Array<u32>, first: usize, elements: usize) -> Four {
        let shift = comptime!(self.finding.shifts[1]);
        let row = first / self.columns;
        let column = first % self.columns;
        // The scale of what is no element: 1.
        let mut found = Quad::new(0x3F80_0000);
        if first < elements {
            if comptime!(self.finding.one_block) {
                let block = self.first_of_row(row) + quotient(column, self.block_columns, shift);
                found = Quad::new(scales[block]);
            } else if comptime!(self.finding.one_row) {
                let of_row = self.first_of_row(row);
                #[unroll]
                for i in 0..4usize {
                    found[i] = scales[of_row + quotient(column + i, self.block_columns, shift)];
                }
            } else {
                #[unroll]
                for i in 0..4usize {
                    if first + i < elements {
                        let row = (first + i) / self.columns;
                        let column = (first + i) % self.columns;
                        let of_row = self.first_of_row(row);
                        found[i] = scales[of_row + quotient(column, self.block_columns, shift)];
                    }
                }
            }
        }
        Four::reinterpret(found)
    }
}

/// Numbers of four elements.
type Four = Vector<f32, Const<4>>;

/// The scales of a tensor in a kernel: known on the host, one on the device, or one there for each block.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Scales {
    on_device: ComptimeOption<Array<u32>>,
    given: f32,
    blocks: ComptimeOption<Grid>,
}

impl Scalar {
    /// As the scale of a whole tensor.
    pub(crate) fn scales<R: Runtime>(&self) -> ScalesLaunch<R> {
        let (on_device, given) = match self {
            Self::Host(scale) => (ComptimeOptionArgs::None, *scale),
            Self::Device(handle) => (ComptimeOptionArgs::Some(array(handle)), 0.0),
        };
        ScalesLaunch::new(on_device, given, ComptimeOptionArgs::None)
    }
}

#[cube]
impl Scales {
    /// The one of the whole tensor.
    pub(crate) fn one(&self) -> f32 {
        one(&self.on_device, self.given)
    }

    /// Those of four elements, of which the first is given, in row-major order. There are `elements` of them.
    pub(crate) fn of_four(&self, first: usize, elements: usize) -> Four {
        of_four(&self.blocks, &self.on_device, self.given, first, elements)
    }

    /// The same, prepared for divisions by them.
    pub(crate) fn divisor(
        &self,
        first: usize,
        elements: usize,
        #[comptime] division: Division,
    ) -> Divisor {
        if comptime!(self.blocks.is_some()) {
            bits::divisor_of_each(self.of_four(first, elements), division)
        } else {
            bits::divisor(self.one(), division)
        }
    }
}

#[cube]
fn one(on_device: &ComptimeOption<Array<u32>>, given: f32) -> f32 {
    #[comptime]
    match on_device {
        ComptimeOption::Some(scale) => f32::reinterpret(scale[0]),
        ComptimeOption::None => given,
    }
}

#[cube]
fn of_four(
    blocks: &ComptimeOption<Grid>,
    on_device: &ComptimeOption<Array<u32>>,
    given: f32,
    first: usize,
    elements: usize,
) -> Four {
    #[comptime]
    match blocks {
        ComptimeOption::Some(grid) => {
            let scales = on_device.as_ref().unwrap();
            grid.scales(scales, first, elements)
        }
        ComptimeOption::None => Four::new(one(on_device, given)),
    }
}

#[cube]
fn quotient(n: usize, size: usize, #[comptime] shift: Option<u32>) -> usize {
    if comptime!(shift.is_some()) {
        n >> comptime!(shift.unwrap_or_default() as usize).runtime()
    } else {
        n / size
    }
}
