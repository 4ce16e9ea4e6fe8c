//! Reading a sample of a tensor back from its device.

use burn_backend::{Backend, FloatDType, Slice, TensorData, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Gemm;
use burn_fp8_report::sample::{MatrixSample, spread};

use crate::engine::tensor::{self, join, reshape};
use crate::host;

/// As many rows and columns of a tensor as `take` says, as a matrix: its leading dimensions are joined to the rows where those are
/// rows of the GEMM, else the matrix in the middle of the batch is taken.
pub(super) fn matrix<B: Backend>(
    tensor: &FloatTensor<B>,
    gemm: Gemm,
    take: [usize; 2],
) -> MatrixSample {
    let tensor = match gemm.batch == 1 && gemm.plain_operand {
        true => join::<B>(tensor.clone()),
        false => one_of_batch::<B>(tensor.clone()),
    };
    let shape = [tensor.shape()[0], tensor.shape()[1]];
    let read = |tensor| tensor::read::<B>(B::float_cast(tensor, FloatDType::F32));
    if shape == take {
        return MatrixSample::whole(read(tensor), shape);
    }
    let device = host::float_device::<B>(&tensor);
    let indices = [0, 1].map(|dim| {
        let indices: Vec<i64> =
            spread(shape[dim], take[dim]).into_iter().map(|index| index as i64).collect();
        B::int_from_data(TensorData::from(&indices[..]), &device)
    });
    let select = |tensor, dim: usize| match shape[dim] == take[dim] {
        true => tensor,
        false => B::float_select(tensor, dim, indices[dim].clone()),
    };
    let rows = select(tensor.clone(), 0);
    let columns = select(tensor, 1);
    // Of whole rows and columns: outliers may lie where no sample does.
    let amax = [B::float_max_abs_dim(rows.clone(), 1), B::float_max_abs_dim(columns, 0)].map(read);
    MatrixSample::sampled(read(select(rows, 1)), take, amax)
}

/// The largest magnitude of a tensor; not finite where the tensor is not.
pub(super) fn amax<B: Backend>(tensor: &FloatTensor<B>) -> f32 {
    let amax = B::float_cast(B::float_max_abs(tensor.clone()), FloatDType::F32);
    tensor::read::<B>(amax)[0]
}

fn one_of_batch<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let rank = shape.num_dims();
    let slices: Vec<Slice> = (0..rank)
        .map(|dim| match dim + 2 < rank {
            true => Slice::from(shape[dim] / 2..shape[dim] / 2 + 1),
            false => Slice::from(0..shape[dim]),
        })
        .collect();
    let matrix = burn_backend::Shape::new([shape[rank - 2], shape[rank - 1]]);
    reshape::<B>(B::float_slice(tensor, &slices), matrix)
}
