//! Codes and scales over the memory of Flex.

use burn_backend::{Bytes, DType, Element, Shape};
use burn_flex::Flex;
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::{Overflow, scale};
use burn_fp8_cpu::slice::blocks::{self, Blocks};
use burn_fp8_cpu::slice::{self, Source};

use super::memory::{dense, elements};
use super::pool;
use crate::engine::backend;
use crate::engine::codes::Codes;
use crate::engine::matrix::{Matrix, MatrixOf, ScaleKind, Scales, WHOLE};
use crate::engine::request::{Request, RequestOf, ScaleRule, ScaleRuleOf, Wanted};
use crate::engine::scalar::Scalar;

/// An element of a tensor that is quantized.
pub(super) trait Quantizable: Source + Element + bytemuck::Pod {}

impl<E: Source + Element + bytemuck::Pod> Quantizable for E {}

pub(super) fn quantize<E: Quantizable>(
    tensor: FlexTensor,
    request: RequestOf<Flex>,
) -> MatrixOf<Flex> {
    match (request.block, tensor.layout().shape().num_dims()) {
        (WHOLE, _) => with_one_scale::<E>(tensor, request),
        ([1, usize::MAX] | [usize::MAX, 1], 2) => in_lines::<E>(tensor, request),
        _ => match in_blocks::<E>(&tensor, &request) {
            Some(matrix) => matrix,
            None => backend::in_blocks::<Flex>(tensor, request),
        },
    }
}

fn with_one_scale<E: Quantizable>(tensor: FlexTensor, request: RequestOf<Flex>) -> MatrixOf<Flex> {
    let Request { format, rule, wanted, .. } = request;
    let (tensor, layout) = dense(tensor);
    let x = elements::<E>(&tensor, &layout);
    let matrix = |codes, scale, amax: Option<f32>| {
        let amax = amax.map(Scalar::Host);
        Matrix { amax, ..Matrix::new(codes, Scales::One(Scalar::Host(scale)), format) }
    };
    if let Wanted::Codes | Wanted::Lines(_) | Wanted::Batch(_) = wanted {
        let (codes, (scale, amax)) = pool::tensor_and(layout, |codes: &mut [u8]| match rule {
            // The scale is known: one read of the tensor gives its codes and its amax.
            ScaleRule::Delayed(amax, recipe) if amax.clone().read::<Flex>() != 0.0 => {
                let scale = scale::from_amax(amax.read::<Flex>(), format, recipe);
                let overflow = Overflow::SaturateFinite;
                let amax = slice::encode_with_amax(x, scale, format, overflow, codes);
                (scale, Some(amax.value))
            }
            rule => {
                let (scale, amax, overflow) = choose_scale(x, format, rule);
                slice::encode(x, scale, format, overflow, codes);
                (scale, amax)
            }
        });
        return matrix(Codes::Bytes(codes), scale, amax);
    }
    let (scale, amax, overflow) = choose_scale(x, format, rule);
    if wanted == Wanted::Values {
        let values = pool::tensor(layout, |values: &mut [f32]| {
            slice::round(x, scale, format, overflow, values);
        });
        return matrix(Codes::Values(values), scale, amax);
    }
    let (codes, values) = pool::tensor_and(layout.clone(), |codes: &mut [u8]| {
        pool::tensor(layout, |values: &mut [f32]| {
            slice::encode_and_round(x, scale, format, overflow, codes, values);
        })
    });
    Matrix { values: Some(values), ..matrix(Codes::Bytes(codes), scale, amax) }
}

/// The scale, the amax where it was measured, and the treatment of overflow.
fn choose_scale<S: Source>(
    x: &[S],
    format: burn_fp8_core::Fp8Format,
    rule: ScaleRuleOf<Flex>,
) -> (f32, Option<f32>, Overflow) {
    let (from, recipe) = match rule {
        ScaleRule::Given(scale, overflow) => return (scale.read::<Flex>(), None, overflow),
        ScaleRule::Current(recipe) => (0.0, recipe),
        ScaleRule::Delayed(amax, recipe) => (amax.read::<Flex>(), recipe),
    };
    let amax = slice::amax(x).value;
    let from = if from == 0.0 { amax } else { from };
    (scale::from_amax(from, format, recipe), Some(amax), Overflow::SaturateFinite)
}

/// A matrix with a scale for each row, or column.
fn in_lines<E: Quantizable>(tensor: FlexTensor, request: RequestOf<Flex>) -> MatrixOf<Flex> {
    let Request { format, block, rule, wanted } = request;
    let recipe = rule.of_blocks();
    let (tensor, layout) = dense(tensor);
    let x = elements::<E>(&tensor, &layout);
    let shape = layout.shape().clone();
    let along = usize::from(block[0] == 1);
    // A transposed matrix has the columns where the rows of another one are.
    let by_rows = layout.is_contiguous();
    let columns = if by_rows { shape[1] } else { shape[0] };
    let line = if (along == 1) == by_rows { [1, columns] } else { [usize::MAX, 1] };
    let lines = Blocks { columns, block: line };

    // Lines without elements have a scale, too; their matrix has no grid.
    let mut scales = vec![1f32; shape[1 - along]];
    let codes = match wanted {
        Wanted::Values => Codes::Values(pool::tensor(layout, |values: &mut [f32]| {
            if !x.is_empty() {
                blocks::round(x, lines, format, recipe, values, &mut scales);
            }
        })),
        _ => Codes::Bytes(pool::tensor(layout, |codes: &mut [u8]| {
            if !x.is_empty() {
                blocks::encode(x, lines, format, recipe, codes, &mut scales);
            }
        })),
    };
    let mut grid = shape;
    grid[along] = 1;
    let scales = FlexTensor::new(Bytes::from_elems(scales), Layout::contiguous(grid), DType::F32);
    Matrix::new(codes, Scales::Grid { scales, block, kind: ScaleKind::of(&recipe) }, format)
}

/// A tensor in blocks as one matrix in memory: its leading dimensions join the rows, where no block spans two matrices.
struct InMemory {
    layout: Layout,
    blocks: Blocks,
    /// Whether rows and columns are swapped in memory.
    swapped: bool,
}

impl InMemory {
    /// None where there is no such matrix.
    fn of(layout: &Layout, block: [usize; 2]) -> Option<Self> {
        let (shape, rank) = (layout.shape(), layout.shape().num_dims());
        let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
        let [of_rows, of_columns] = [block[0].min(rows), block[1].min(columns)];
        let swapped = match layout.is_contiguous() {
            true => false,
            false if rank == 2 => true,
            false => return None,
        };
        if rank > 2 && !rows.is_multiple_of(of_rows) {
            return None;
        }
        let blocks = match swapped {
            true => Blocks { columns: rows, block: [of_columns, of_rows] },
            false => Blocks { columns, block: [of_rows, of_columns] },
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
fn in_blocks<E: Quantizable>(
    tensor: &FlexTensor,
    request: &RequestOf<Flex>,
) -> Option<MatrixOf<Flex>> {
    let Request { format, block, rule, .. } = request;
    let recipe = rule.of_blocks();
    let (tensor, layout) = dense(tensor.clone());
    let matrix = InMemory::of(&layout, *block)?;
    let x = elements::<E>(&tensor, &layout);
    let [rows, columns] = matrix.blocks.grid(x.len());
    let mut scales = vec![0f32; rows * columns];
    let codes = pool::tensor(layout, |codes: &mut [u8]| {
        blocks::encode(x, matrix.blocks, *format, recipe, codes, &mut scales);
    });
    let scales = matrix.scales(scales);
    let scales = Scales::Grid { scales, block: *block, kind: ScaleKind::of(&recipe) };
    Some(Matrix::new(Codes::Bytes(codes), scales, *format))
}

/// The numbers that codes of one byte stand for, times their scales; none where that takes more than one pass.
pub(super) fn dequantize(matrix: &MatrixOf<Flex>) -> Option<FlexTensor> {
    let codes = match (&matrix.values, &matrix.codes, &matrix.transposed) {
        (None, Some(Codes::Bytes(codes)), _) => codes,
        (None, None, Some(Codes::Bytes(_))) => {
            let values = dequantize(&matrix.clone().transpose::<Flex>())?;
            let rank = values.layout().shape().num_dims();
            return Some(values.transpose(rank - 2, rank - 1));
        }
        _ => return None,
    };
    match &matrix.scales {
        Scales::One(Scalar::Host(1.0)) => {
            let (codes, layout) = dense(codes.clone());
            let bytes = elements::<u8>(&codes, &layout);
            Some(pool::tensor(layout.clone(), |values: &mut [f32]| {
                slice::decode(bytes, 1.0, matrix.format, values);
            }))
        }
        Scales::One(_) => None,
        Scales::Grid { scales, block, .. } => {
            let (codes, layout) = dense(codes.clone());
            let in_memory = InMemory::of(&layout, *block)?;
            let bytes = elements::<u8>(&codes, &layout);
            let grid = in_memory.grid(scales.clone());
            let grid = elements::<f32>(&grid, grid.layout());
            Some(pool::tensor(layout, |values: &mut [f32]| {
                blocks::decode(bytes, in_memory.blocks, grid, matrix.format, values);
            }))
        }
    }
}
