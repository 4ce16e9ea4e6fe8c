//! The scales of a tensor: one for all elements, or one for each block.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_fp8_core::{Granularity, ScaleRounding};

use crate::engine::Scalar;
use crate::engine::tensor::{constant, primitive};

/// The scales of codes as they lie in memory.
#[derive(Clone, Debug)]
pub(crate) enum Scales<B: Backend> {
    /// One for all elements.
    One(Scalar<B>),
    /// One for each block.
    Blocks(BlockScales<B>),
}

/// A scale for each block of the last two dimensions.
#[derive(Clone, Debug)]
pub(crate) struct BlockScales<B: Backend> {
    /// f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]`.
    pub(crate) scales: FloatTensor<B>,
    /// Rows and columns of a block. Those at the end of a dimension are cut off by it.
    pub(crate) block: [usize; 2],
}

impl<B: Backend> Scales<B> {
    pub(crate) fn moved_to(self, device: &B::Device) -> Self {
        match self {
            Self::One(scale) => Self::One(scale.moved_to(device)),
            Self::Blocks(BlockScales { scales, block }) => {
                Self::Blocks(BlockScales { scales: B::float_to_device(scales, device), block })
            }
        }
    }
}

impl<B: AutodiffBackend> Scales<B> {
    pub(crate) fn inner(self) -> Scales<B::InnerBackend> {
        match self {
            Self::One(scale) => Scales::One(scale.inner()),
            Self::Blocks(BlockScales { scales, block }) => {
                Scales::Blocks(BlockScales { scales: B::inner(scales), block })
            }
        }
    }

    pub(crate) fn from_inner(scales: Scales<B::InnerBackend>) -> Self {
        match scales {
            Scales::One(scale) => Self::One(Scalar::from_inner(scale)),
            Scales::Blocks(BlockScales { scales, block }) => {
                Self::Blocks(BlockScales { scales: B::from_inner(scales), block })
            }
        }
    }
}

impl<B: Backend> BlockScales<B> {
    /// Scales for a tensor of these dimensions, or what is wrong with them. Their values are not looked at.
    pub(crate) fn new<const D: usize>(
        scales: Tensor<B, D>,
        dims: [usize; D],
        block: [usize; 2],
    ) -> Result<Self, String> {
        check_block(dims, block)?;
        let grid = grid(dims, block);
        if scales.dims() != grid || scales.dtype() != DType::F32 {
            return Err(format!(
                "the scales are {:?} {:?}; codes {dims:?} in blocks {} have F32 {grid:?}",
                scales.dtype(),
                scales.dims(),
                Shown(block),
            ));
        }
        Ok(Self { scales: primitive(constant(scales)), block })
    }

    /// The scales of the transpose.
    pub(crate) fn transpose(self) -> Self {
        let [rows, columns] = self.block;
        Self { scales: B::float_transpose(self.scales), block: [columns, rows] }
    }

    pub(crate) fn tensor<const D: usize>(&self) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(self.scales.clone()))
    }

    /// What a trace calls them, of an operand `[R, C]` whose elements along `dim` are summed.
    pub(crate) fn granularity(&self, size: usize, dim: usize) -> Granularity {
        match (self.block[1 - dim], self.block[dim]) {
            (1, 32) => Granularity::Mx(ScaleRounding::default()),
            (1, along) if along >= size => Granularity::PerRow,
            _ => Granularity::Blockwise,
        }
    }
}

/// Why a tensor cannot have such blocks.
pub(crate) fn check_block<const D: usize>(
    dims: [usize; D],
    block: [usize; 2],
) -> Result<(), String> {
    if D < 2 {
        return Err(format!("{dims:?} are no rows and columns, which blocks are made of"));
    }
    if block.contains(&0) {
        return Err(format!("blocks {} have no elements", Shown(block)));
    }
    Ok(())
}

/// The dimensions of the scales of a tensor.
pub(super) fn grid<const D: usize>(dims: [usize; D], block: [usize; 2]) -> [usize; D] {
    let mut grid = dims;
    for (dim, size) in (D - 2..D).zip(block) {
        grid[dim] = dims[dim].div_ceil(size);
    }
    grid
}

/// A block in words: `1×32`.
pub(crate) struct Shown(pub(crate) [usize; 2]);

impl core::fmt::Display for Shown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [rows, columns] = self.0;
        write!(f, "{rows}×{columns}")
    }
}
