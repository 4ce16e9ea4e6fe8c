//! Small operations on tensors that Burn has no function for.

use burn_backend::{
    Backend, Element, FloatDType, Shape, TensorData, TensorMetadata, tensor::FloatTensor,
};

use crate::host;

pub fn reshape<B: Backend>(tensor: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    match tensor.shape() == shape {
        true => tensor,
        false => B::float_reshape(tensor, shape),
    }
}

pub fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    match tensor.dtype() == dtype.into() {
        true => tensor,
        false => B::float_cast(tensor, dtype),
    }
}

/// Joins all dimensions but the last.
pub fn join<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let [rows, columns] = matrix_shape(&tensor);
    reshape::<B>(tensor, Shape::new([rows, columns]))
}

/// Rows and columns of a tensor `[…, C]` whose leading dimensions are joined.
pub fn matrix_shape(tensor: &impl TensorMetadata) -> [usize; 2] {
    let shape = tensor.shape();
    let columns = shape[shape.num_dims() - 1];
    [shape.num_elements() / columns, columns]
}

/// Adds a bias `[N]` to `[…, N]`.
pub fn add_bias<B: Backend>(
    output: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    match bias {
        Some(bias) => {
            let bias = unsqueeze::<B>(bias, output.rank());
            B::float_add(output, bias)
        }
        None => output,
    }
}

/// Prepends dimensions of size 1 until the tensor has `rank` dimensions.
fn unsqueeze<B: Backend>(tensor: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let shape = tensor.shape();
    let mut dims = vec![1; rank.saturating_sub(shape.num_dims())];
    dims.extend(shape.iter());
    reshape::<B>(tensor, Shape::from(dims))
}

/// Reads a small f32 tensor, waiting for the device.
pub fn read<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    read_as::<B, f32>(tensor)
}

/// The same of a tensor of type `E`.
pub fn read_as<B: Backend, E: Element>(tensor: FloatTensor<B>) -> Vec<E> {
    let data: TensorData = burn_backend::try_read_sync(B::float_into_data(tensor))
        .expect("scales are read where blocking on the device is possible")
        .expect("a scale can be read from its device");
    host::numbers(data)
}
