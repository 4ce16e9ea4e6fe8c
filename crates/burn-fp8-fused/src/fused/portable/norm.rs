//! Normalization of rows, in tensor operations.

use burn_backend::{Backend, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Norm;

use crate::engine::tensor::reshape;

/// [`Norm::Rms`] of `x` `[…, N]`.
pub(crate) fn by_root<B: Backend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    epsilon: f64,
) -> FloatTensor<B> {
    let deviation = deviation::<B>(x.clone(), epsilon);
    let gamma = of_row::<B>(gamma, x.shape().num_dims());
    B::float_mul(B::float_div(x, deviation), gamma)
}

/// The root of the mean of the squares of each row.
fn deviation<B: Backend>(x: FloatTensor<B>, epsilon: f64) -> FloatTensor<B> {
    let last = x.shape().num_dims() - 1;
    let variance = B::float_mean_dim(B::float_mul(x.clone(), x), last);
    B::float_sqrt(B::float_add_scalar(variance, epsilon.into()))
}

/// `[N]` as `[1, …, N]`.
fn of_row<B: Backend>(gamma: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let mut shape = vec![1; rank];
    shape[rank - 1] = gamma.shape()[0];
    reshape::<B>(gamma, Shape::from(shape))
}

/// The gradients of `x` `[…, N]`, of gamma and of beta `[N]`, given that of the result.
pub(crate) fn backward<B: Backend>(
    norm: Norm,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    grad: FloatTensor<B>,
    epsilon: f64,
) -> [FloatTensor<B>; 3] {
    let shape = x.shape();
    let (last, width) = (shape.num_dims() - 1, shape[shape.num_dims() - 1]);
    let mean = |x: FloatTensor<B>| B::float_mean_dim(x, last);
    let centre = |x: FloatTensor<B>| match norm {
        Norm::Layer => B::float_sub(x.clone(), mean(x)),
        Norm::Rms => x,
    };
    let centered = centre(x);
    let deviation = deviation::<B>(centered.clone(), epsilon);
    let normed = B::float_div(centered, deviation.clone());

    let scaled = B::float_mul(grad.clone(), of_row::<B>(gamma, shape.num_dims()));
    let along = mean(B::float_mul(scaled.clone(), normed.clone()));
    let rest = B::float_sub(centre(scaled), B::float_mul(normed.clone(), along));
    let of_x = B::float_div(rest, deviation);

    let of_rows = |terms: FloatTensor<B>| {
        let rows = shape.num_elements() / width.max(1);
        let sums = B::float_sum_dim(reshape::<B>(terms, Shape::new([rows, width])), 0);
        reshape::<B>(sums, Shape::new([width]))
    };
    [of_x, of_rows(B::float_mul(grad.clone(), normed)), of_rows(grad)]
}
