//! Scales of blocks, in tensor operations.

use burn_backend::{Backend, FloatDType, Shape, Slice, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{Fp8Format, Granularity, Recipe};

use super::scale;
use crate::host;

/// A tensor `[…, R, C]`, its leading dimensions joined, and its blocks.
#[derive(Clone, Copy)]
pub struct Grid {
    leading: usize,
    /// Rows, columns.
    size: [usize; 2],
    block: [usize; 2],
}

impl Grid {
    pub fn new(shape: &Shape, block: [usize; 2]) -> Self {
        let rank = shape.num_dims();
        let size = [shape[rank - 2], shape[rank - 1]];
        // Blocks larger than the matrix are as large as that: nothing is filled up for them.
        let block = [0, 1].map(|dim| block[dim].min(size[dim]).max(1));
        Self { leading: shape[..rank - 2].iter().product(), size, block }
    }

    /// How many blocks lie along each dimension.
    fn blocks(&self) -> [usize; 2] {
        [0, 1].map(|dim| self.size[dim].div_ceil(self.block[dim]))
    }

    /// The shape of the scales of a tensor of this shape.
    pub fn of_scales(&self, shape: &Shape) -> Shape {
        let mut scales = shape.clone();
        let rank = shape.num_dims();
        [scales[rank - 2], scales[rank - 1]] = self.blocks();
        scales
    }

    /// Rows and columns split into blocks, the last ones filled up: `[leading, blocks, rows, blocks, columns]`.
    fn split(&self, size: [usize; 2]) -> Shape {
        let [rows, columns] = self.blocks();
        Shape::new([self.leading, rows, size[0], columns, size[1]])
    }

    /// Rows and columns as they are once the last blocks are filled up.
    fn filled(&self) -> [usize; 2] {
        let blocks = self.blocks();
        [0, 1].map(|dim| blocks[dim] * self.block[dim])
    }

    /// The amax of each block of an f32 tensor, its finite elements only, `[leading, blocks, 1, blocks, 1]`.
    fn amax<B: Backend>(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let [rows, columns] = self.size;
        let filled = self.filled();
        let tensor = B::float_reshape(tensor, Shape::new([self.leading, rows, columns]));
        let tensor = fill_up::<B>(fill_up::<B>(tensor, 1, filled[0]), 2, filled[1]);
        let split = B::float_reshape(tensor, self.split(self.block));
        // A block of one row has one dimension less to go through.
        let amax = scale::amax_dim::<B>(split, 4);
        match self.block[0] {
            1 => amax,
            _ => B::float_max_dim(amax, 2),
        }
    }

    /// A number of each block, for each element: `[…, ⌈R / rows⌉, ⌈C / columns⌉]` becomes `shape`.
    pub fn spread<B: Backend>(&self, of_blocks: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
        let of_blocks = B::float_reshape(of_blocks, self.split([1, 1]));
        let spread = B::float_expand(of_blocks, self.split(self.block));
        let [rows, columns] = self.filled();
        let spread = B::float_reshape(spread, Shape::new([self.leading, rows, columns]));
        let cut = [rows, columns] != self.size;
        let spread = match cut {
            true => {
                let up_to = |size: usize| Slice::new(0, Some(size as isize), 1);
                B::float_slice(spread, &[Slice::full(), up_to(self.size[0]), up_to(self.size[1])])
            }
            false => spread,
        };
        B::float_reshape(spread, shape)
    }
}

/// Zeros behind the elements of a dimension, up to this size.
fn fill_up<B: Backend>(tensor: FloatTensor<B>, dim: usize, size: usize) -> FloatTensor<B> {
    let mut missing = tensor.shape();
    if missing[dim] == size {
        return tensor;
    }
    missing[dim] = size - missing[dim];
    let zeros = B::float_zeros(missing, &host::float_device::<B>(&tensor), FloatDType::F32);
    B::float_cat(vec![tensor, zeros], dim)
}

/// A tensor divided by the scales of its blocks, and these. f32.
pub fn divide<B: Backend>(
    tensor: FloatTensor<B>,
    block: [usize; 2],
    format: Fp8Format,
    recipe: Recipe,
) -> [FloatTensor<B>; 2] {
    let shape = tensor.shape();
    let grid = Grid::new(&shape, block);
    let amax = grid.amax::<B>(tensor.clone());
    let of_scales = grid.of_scales(&shape);
    let (quotient, scales) = match recipe.granularity() {
        Granularity::Mx(rounding) => {
            let [scales, reciprocals] = scale::mx::<B>(amax, format, rounding);
            (B::float_mul(tensor, grid.spread::<B>(reciprocals, shape)), scales)
        }
        _ => {
            let scales = scale::from_amax::<B>(amax, format, recipe);
            (B::float_div(tensor, grid.spread::<B>(scales.clone(), shape)), scales)
        }
    };
    [quotient, B::float_reshape(scales, of_scales)]
}
