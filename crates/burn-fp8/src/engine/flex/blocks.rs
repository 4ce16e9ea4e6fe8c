//! Tensors with a scale for each block, over the memory of Flex.

use burn::backend::Flex;
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::slice::blocks::{self, Blocks};
use burn_fp8_core::slice::{Source, matmul_block_codes};

use super::memory::{dense, elements, is_plain};
use super::pool;
use crate::engine::blocks::{BlockCodes, QuantizeBlocks};
use crate::engine::codes::CodesPrimitive;

/// A tensor as one matrix in memory: its leading dimensions join the rows, where no block spans two matrices.
struct Matrix {
    layout: Layout,
    blocks: Blocks,
    /// Whether rows and columns are swapped in memory.
    swapped: bool,
}

impl Matrix {
    /// None where there is no such matrix.
    fn of(layout: &Layout, block: [usize; 2]) -> Option<Self> {
        let (shape, rank) = (layout.shape(), layout.shape().num_dims());
        let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
        let swapped = match layout.is_contiguous() {
            true => false,
            false if rank == 2 => true,
            false => return None,
        };
        if rank > 2 && !rows.is_multiple_of(block[0]) {
            return None;
        }
        let [of_rows, of_columns] = block;
        let blocks = match swapped {
            true => Blocks { columns: rows, block: [of_columns, of_rows] },
            false => Blocks { columns, block },
        };
        Some(Self { layout: layout.clone(), blocks, swapped })
    }

    /// The scales of the tensor, from the grid of the matrix.
    fn scales(&self, grid: Vec<f32>) -> FlexTensor {
        let [rows, columns] = self.blocks.grid(self.layout.num_elements());
        let mut shape = self.layout.shape().to_vec();
        let rank = shape.len();
        let of_matrix = Layout::contiguous(Shape::new([rows, columns]));
        let scales = FlexTensor::new(Bytes::from_elems(grid), of_matrix, DType::F32);
        if self.swapped {
            return scales.transpose(0, 1);
        }
        let leading: usize = shape[..rank - 2].iter().product();
        [shape[rank - 2], shape[rank - 1]] = [rows / leading, columns];
        scales.reshape(Shape::from(shape))
    }

    /// The grid of the matrix, from the scales of the tensor.
    fn grid(&self, scales: FlexTensor) -> FlexTensor {
        match self.swapped {
            true => scales.transpose(0, 1).to_contiguous(),
            false => scales.to_contiguous(),
        }
    }
}

/// The codes of a tensor in the layout that it has; none where its blocks are not those of one matrix in memory.
pub(super) fn quantize<E>(tensor: &FlexTensor, request: QuantizeBlocks) -> Option<BlockCodes<Flex>>
where
    E: Source + burn::tensor::Element + bytemuck::Pod,
{
    let QuantizeBlocks { block, format, recipe } = request;
    let (tensor, layout) = dense(tensor.clone());
    let matrix = Matrix::of(&layout, block)?;
    let x = elements::<E>(&tensor, &layout);
    let [rows, columns] = matrix.blocks.grid(x.len());
    let mut scales = vec![0f32; rows * columns];
    let codes = pool::tensor(layout, |codes: &mut [u8]| {
        blocks::encode(x, matrix.blocks, format, recipe, codes, &mut scales);
    });
    let scales = matrix.scales(scales);
    Some(BlockCodes { codes: CodesPrimitive::Bytes(codes, format), scales, block, format })
}

/// The numbers that codes stand for, times their scales; none where they do not lie as [`quantize`] leaves them.
pub(super) fn dequantize(codes: &BlockCodes<Flex>) -> Option<FlexTensor> {
    let BlockCodes { codes, scales, block, format } = codes;
    let CodesPrimitive::Bytes(codes, _) = codes else { return None };
    let (codes, layout) = dense(codes.clone());
    let matrix = Matrix::of(&layout, *block)?;
    let bytes = elements::<u8>(&codes, &layout);
    let grid = matrix.grid(scales.clone());
    let grid = elements::<f32>(&grid, grid.layout());
    Some(pool::tensor(layout, |values: &mut [f32]| {
        blocks::decode(bytes, matrix.blocks, grid, *format, values);
    }))
}

/// Rows of `x` up to which decoding while multiplying is faster than decoding before: each row reads all codes of a block again, from the cache.
const ROWS: usize = 16;

/// `x` `[M, K]` times codes `[K, N]` times their scales; none where the codes do not lie row by row, or `x` has many rows.
pub(super) fn matmul(x: &FlexTensor, codes: &BlockCodes<Flex>) -> Option<FlexTensor> {
    let BlockCodes { codes, scales, block, format } = codes;
    let CodesPrimitive::Bytes(codes, _) = codes else { return None };
    let [m, k] = x.layout().shape().dims();
    let [_, n] = codes.layout().shape().dims();
    if !is_plain(codes.layout()) || m > ROWS {
        return None;
    }
    let [x, scales] = [x, scales].map(FlexTensor::to_contiguous);
    let [x, scales] = [&x, &scales].map(|tensor| elements::<f32>(tensor, tensor.layout()));
    Some(pool::tensor(Layout::contiguous(Shape::new([m, n])), |y: &mut [f32]| {
        matmul_block_codes(x, codes.bytes(), [m, k, n], *block, scales, *format, y);
    }))
}
