//! Layer normalization in f32, whatever the type of its tensors, and what its backward step needs.

use burn_backend::{FloatDType, TensorMetadata, tensor::FloatTensor};

use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, in_f32};

/// What the backward step takes. Mean and variance are computed again.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    epsilon: f64,
}

/// The result, of the type of `x`.
///
/// # Panics
/// Where gamma or beta is not `[N]`, as many as there are elements in a row, or of another type than `x`.
#[track_caller]
pub(super) fn forward<B: Fp8Engine>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> (FloatTensor<B>, Saved<B>) {
    let (dtype, rows) = (x.dtype(), x.shape());
    let width = rows.last().copied().unwrap_or_default();
    for (name, tensor) in [("gamma", Some(&gamma)), ("beta", beta.as_ref())] {
        let Some(tensor) = tensor else { continue };
        let (shape, own) = (tensor.shape(), tensor.dtype());
        assert!(
            own == dtype,
            "layer normalization: the input is {dtype:?} and {name} {own:?}: cast one of them"
        );
        assert!(
            shape[..] == [width],
            "layer normalization: rows of {:?} have {width} elements; {name} is {:?}, and must be [{width}]",
            &rows[..],
            &shape[..]
        );
    }
    let saved = Saved { x: x.clone(), gamma: gamma.clone(), epsilon };
    let [x, gamma] = [x, gamma].map(in_f32::<B>);
    let output = B::fp8_layer_norm(x, gamma, beta.map(in_f32::<B>), epsilon);
    (cast::<B>(output, dtype.into()), saved)
}

/// The gradients of input, gamma and beta, all of the type of the input.
pub(super) fn backward<B: Fp8Engine>(
    grad: FloatTensor<B>,
    Saved { x, gamma, epsilon }: Saved<B>,
) -> [FloatTensor<B>; 3] {
    let dtype = FloatDType::from(x.dtype());
    let [x, gamma, grad] = [x, gamma, grad].map(in_f32::<B>);
    B::fp8_layer_norm_backward(x, gamma, grad, epsilon).map(|grad| cast::<B>(grad, dtype))
}
