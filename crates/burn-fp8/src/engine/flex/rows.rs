//! Matrices with a scale for each row or column, over the memory of Flex.

use burn::backend::Flex;
use burn::tensor::{Bytes, DType, Shape};
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::slice::{Source, matrix};
use burn_fp8_core::{Overflow, scale};

use super::memory::{dense, elements, is_plain};
use super::pool;
use crate::engine::codes::CodesPrimitive;
use crate::engine::quantize::QuantizeRows;

/// The codes or values of a matrix, in the layout that it has, and its scales.
pub(super) fn quantize<E>(
    tensor: FlexTensor,
    request: QuantizeRows,
) -> (CodesPrimitive<Flex>, FlexTensor)
where
    E: Source + burn::tensor::Element + bytemuck::Pod,
{
    let QuantizeRows { dim, format, recipe, values } = request;
    let (tensor, layout) = dense(tensor);
    let x = elements::<E>(&tensor, &layout);
    let shape = layout.shape().clone();
    // A transposed matrix has the columns where the rows of another one are.
    let by_rows = layout.is_contiguous();
    let columns = if by_rows { shape[1] } else { shape[0] };
    let axis = if (dim == 1) == by_rows { matrix::Axis::Rows } else { matrix::Axis::Columns };
    let matrix = matrix::Scaled { columns, axis };

    let mut scales = vec![0f32; shape[1 - dim]];
    matrix::amax(x, matrix, &mut scales);
    for amax in &mut scales {
        *amax = scale::from_amax(*amax, format, recipe);
    }
    let overflow = Overflow::SaturateFinite;
    let codes = match values {
        true => CodesPrimitive::Values(pool::tensor(layout, |values: &mut [f32]| {
            matrix::round(x, matrix, &scales, format, overflow, values);
        })),
        false => {
            let codes = pool::tensor(layout, |codes: &mut [u8]| {
                matrix::encode(x, matrix, &scales, format, overflow, codes);
            });
            CodesPrimitive::Bytes(codes, format)
        }
    };
    let mut of_scales = shape;
    of_scales[dim] = 1;
    let scales =
        FlexTensor::new(Bytes::from_elems(scales), Layout::contiguous(of_scales), DType::F32);
    (codes, scales)
}

/// Multiplies an f32 matrix by scales `[M, 1]` and `[1, N]`.
pub(super) fn rescale(tensor: FlexTensor, lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    let shape: Shape = tensor.layout().shape().clone();
    let [lhs, rhs] = [lhs, rhs].map(|scales| scales.to_contiguous());
    let [rows, columns] = [&lhs, &rhs].map(|scales| elements::<f32>(scales, scales.layout()));
    let mut tensor = match is_plain(tensor.layout()) {
        // Not `to_contiguous`, which shares the memory: it could not be written to.
        true => tensor,
        false => tensor.to_contiguous(),
    };
    if let Some(values) = tensor.try_storage_mut::<f32>()
        && values.len() == shape.num_elements()
    {
        matrix::scale_in_place(values, rows, columns);
        return tensor;
    }
    let mut values = elements::<f32>(&tensor, tensor.layout()).to_vec();
    matrix::scale_in_place(&mut values, rows, columns);
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}
