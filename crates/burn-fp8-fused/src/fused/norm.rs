//! Normalization of rows in f32, whatever the type of its tensors, and what its backward step needs.

use burn_backend::{FloatDType, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::Norm;

#[cfg(feature = "flex")]
use super::flex;
use super::kept::Kept;
use super::portable;
use crate::engine::tensor::cast;
use crate::engine::{Fp8Engine, Step, in_f32};

/// What the backward step takes. Mean and variance are computed again.
#[derive(Clone, Debug)]
pub(super) struct Saved<B: Fp8Engine> {
    norm: Norm,
    x: Kept<B>,
    gamma: FloatTensor<B>,
    epsilon: f64,
}

/// The result, of the type of `x`.
///
/// # Panics
/// Where gamma or beta is not `[N]`, as many as there are elements in a row, or of another type than `x`.
#[track_caller]
pub(super) fn forward<B: Fp8Engine>(
    norm: Norm,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
    as_asked: burn_fp8_core::Saved,
) -> (FloatTensor<B>, Saved<B>) {
    let (dtype, rows) = (x.dtype(), x.shape());
    let width = rows.last().copied().unwrap_or_default();
    for (name, tensor) in [("gamma", Some(&gamma)), ("beta", beta.as_ref())] {
        let Some(tensor) = tensor else { continue };
        let (shape, own) = (tensor.shape(), tensor.dtype());
        assert!(
            own == dtype,
            "{}: the input is {dtype:?} and {name} {own:?}: cast one of them",
            norm.name()
        );
        assert!(
            shape[..] == [width],
            "{}: rows of {:?} have {width} elements; {name} is {:?}, and must be [{width}]",
            norm.name(),
            &rows[..],
            &shape[..]
        );
    }
    let kept = Kept::new(x.clone(), as_asked);
    let saved = Saved { norm, x: kept, gamma: gamma.clone(), epsilon };
    let [x, gamma] = [x, gamma].map(in_f32::<B>);
    let output = normalize::<B>(norm, x, gamma, beta.map(in_f32::<B>), epsilon);
    (cast::<B>(output, dtype.into()), saved)
}

/// The gradients of input, gamma and, where there is one, beta, all of the type of the input.
impl<B: Fp8Engine, const N: usize> Step<B, N> for Saved<B> {
    fn backward(self, grad: FloatTensor<B>, _wanted: [bool; N]) -> [Option<FloatTensor<B>>; N] {
        let Self { norm, x, gamma, epsilon } = self;
        let x = x.restore();
        let dtype = FloatDType::from(x.dtype());
        let [x, gamma, grad] = [x, gamma, grad].map(in_f32::<B>);
        let gradients = gradients::<B>(norm, x, gamma, grad, epsilon);
        let mut gradients = gradients.into_iter().map(|grad| cast::<B>(grad, dtype));
        [(); N].map(|()| gradients.next())
    }
}

fn normalize<B: Fp8Engine>(
    norm: Norm,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> FloatTensor<B> {
    #[cfg(feature = "flex")]
    let (x, gamma, beta) = match flex::run((x, gamma, beta), |(x, gamma, beta)| {
        flex::normalize(norm, x, gamma, beta, epsilon)
    }) {
        Ok(output) => return output,
        Err(given) => given,
    };
    match norm {
        Norm::Layer => B::layer_norm(x, gamma, beta, epsilon),
        Norm::Rms => portable::norm::by_root::<B>(x, gamma, epsilon),
    }
}

fn gradients<B: Fp8Engine>(
    norm: Norm,
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    grad: FloatTensor<B>,
    epsilon: f64,
) -> [FloatTensor<B>; 3] {
    #[cfg(feature = "flex")]
    let (x, gamma, grad) = match flex::run((x, gamma, grad), |(x, gamma, grad)| {
        flex::normalize_backward(norm, x, gamma, grad, epsilon)
    }) {
        Ok(gradients) => return gradients,
        Err(given) => given,
    };
    portable::norm::backward::<B>(norm, x, gamma, grad, epsilon)
}
