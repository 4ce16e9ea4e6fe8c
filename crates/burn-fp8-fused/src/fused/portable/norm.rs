//! The gradients of layer normalization, in tensor operations.

use burn_backend::{Backend, Shape, TensorMetadata, tensor::FloatTensor};

use crate::engine::tensor::reshape;

/// The gradients of `x` `[…, N]`, of gamma and of beta `[N]`, given that of the result.
pub(crate) fn backward<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    grad: FloatTensor<B>,
    epsilon: f64,
) -> [FloatTensor<B>; 3] {
    let shape = x.shape();
    let (last, width) = (shape.num_dims() - 1, shape[shape.num_dims() - 1]);
    let mean = |x: FloatTensor<B>| B::float_mean_dim(x, last);
    let centered = B::float_sub(x.clone(), mean(x));
    let variance = mean(B::float_mul(centered.clone(), centered.clone()));
    let deviation = B::float_sqrt(B::float_add_scalar(variance, epsilon.into()));
    let normed = B::float_div(centered, deviation.clone());

    let mut of_row = vec![1; shape.num_dims()];
    of_row[last] = width;
    let scaled = B::float_mul(grad.clone(), reshape::<B>(gamma, Shape::from(of_row)));
    let along = mean(B::float_mul(scaled.clone(), normed.clone()));
    let rest = B::float_sub(scaled.clone(), mean(scaled));
    let rest = B::float_sub(rest, B::float_mul(normed.clone(), along));
    let of_x = B::float_div(rest, deviation);

    let of_rows = |terms: FloatTensor<B>| {
        let rows = shape.num_elements() / width.max(1);
        let sums = B::float_sum_dim(reshape::<B>(terms, Shape::new([rows, width])), 0);
        reshape::<B>(sums, Shape::new([width]))
    };
    [of_x, of_rows(B::float_mul(grad.clone(), normed)), of_rows(grad)]
}
