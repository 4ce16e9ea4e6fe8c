//! The products in FP8, as operations of Burn's tensors: `(x, weight, bias)` goes to the backend that the tensors are on, which asks the
//! configuration as [`Fp8Config`](crate::Fp8Config) says.
#![cfg_attr(
    not(any(feature = "flex", feature = "cube", feature = "remote")),
    expect(unused_variables, reason = "without a backend there is none to hand them to")
)]

#[cfg(feature = "cube")]
use burn::backend::Cube;
#[cfg(feature = "remote")]
use burn::backend::Remote;
use burn::backend::{Backend, Dispatch, DispatchDevice, backend_extension};
use burn::tensor::{Device, Gradients, Tensor, module};
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::strategy::CheckpointStrategy;
use burn_backend::Shape;
use burn_backend::tensor::{FloatTensor, IntTensor};
#[cfg(feature = "flex")]
use burn_flex::Flex;
use burn_fp8_core::Fp8Format;

use crate::engine::{Codes, Fp8Engine, Matrix, MatrixOf, Scalar, ScaleKind, Scales};
use crate::product::{ActivationScale, delayed, frozen_layer, route};

/// What a product with a frozen weight has to know beside its tensors.
#[derive(Clone, Copy, Debug)]
pub struct FrozenForm {
    /// Rows and columns of the weight that share a scale; none where all do.
    pub(crate) block: Option<[usize; 2]>,
    pub(crate) kind: ScaleKind,
    pub(crate) activation: ActivationScale,
}

impl FrozenForm {
    /// The weight of these codes and scales.
    fn matrix<B: Backend>(self, codes: IntTensor<B>, scales: FloatTensor<B>) -> MatrixOf<B> {
        let scales = match self.block {
            None => Scales::One(Scalar::Device(B::float_reshape(scales, Shape::new([1])))),
            Some(block) => Scales::Grid { scales, block, kind: self.kind },
        };
        Matrix::new(Codes::Bytes(codes), scales, Fp8Format::E4M3)
    }
}

/// The products of a backend that runs them in FP8 where the configuration says so. Users call [`matmul`] and [`linear`].
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cube"),
    Remote: cfg(feature = "remote"),
    Autodiff
)]
pub trait Fp8Ops: Backend {
    /// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`.
    fn fp8_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x` `[…, K]` times `weight` `[K, N]`.
    fn fp8_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`.
    fn fp8_linear_with_bias(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// `x` `[…, K]` times a weight whose codes are u8 `[K, N]`, with their scales. [`nn::FrozenLinear`](crate::nn::FrozenLinear) calls it.
    fn fp8_frozen(
        x: FloatTensor<Self>,
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        form: FrozenForm,
    ) -> FloatTensor<Self>;
}

/// The same way for each backend.
macro_rules! routed {
    ($(#[$attribute:meta])* impl[$($parameters:tt)*] $backend:ty) => {
        $(#[$attribute])*
        impl<$($parameters)*> Fp8Ops for $backend {
            fn fp8_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
                route::matmul::<Self>(lhs, rhs)
            }

            fn fp8_linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
                route::linear::<Self>(x, weight, None)
            }

            fn fp8_linear_with_bias(
                x: FloatTensor<Self>,
                weight: FloatTensor<Self>,
                bias: FloatTensor<Self>,
            ) -> FloatTensor<Self> {
                route::linear::<Self>(x, weight, Some(bias))
            }

            fn fp8_frozen(
                x: FloatTensor<Self>,
                codes: IntTensor<Self>,
                scales: FloatTensor<Self>,
                form: FrozenForm,
            ) -> FloatTensor<Self> {
                let weight = form.matrix::<Self>(codes, scales);
                frozen_layer::forward::<Self>(x, weight.clone(), None, form.activation, |_| weight)
            }
        }
    };
}
routed!(#[cfg(feature = "flex")] impl[] Flex);
#[cfg(feature = "cube")]
crate::fp8_backend!(Cube);
routed!(#[cfg(feature = "cube")] impl[] Cube);
#[cfg(feature = "remote")]
crate::fp8_backend!(Remote);
routed!(#[cfg(feature = "remote")] impl[] Remote);
routed!(impl[B: Fp8Ops + Fp8Engine, C: CheckpointStrategy] Autodiff<B, C>);

/// Whether the products of a device are made here: on a device of ours they are in FP8 by themselves. Panics on backends without FP8 products.
pub(crate) fn is_here(device: &Device) -> bool {
    #[cfg(feature = "device")]
    if crate::device::is_ours(device) {
        return false;
    }
    match device.clone().without_autodiff().as_dispatch() {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        #[cfg(feature = "cube")]
        DispatchDevice::Cube(_) => true,
        #[cfg(feature = "remote")]
        DispatchDevice::Remote(_) => true,
        #[allow(
            unreachable_patterns,
            reason = "the application may have turned on further backends of Burn"
        )]
        _ => panic!(
            "burn-fp8-next has no FP8 products for {device:?}: turn on its feature of that backend's name, or move model and inputs to Device::flex()"
        ),
    }
}

/// `lhs` `[…, M, K]` times `rhs` `[…, K, N]`, in FP8 where the configuration says so.
///
/// # Panics
/// Where the shapes do not multiply, and on devices of backends whose feature is off.
pub fn matmul<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    if !is_here(&lhs.device()) {
        return lhs.matmul(rhs);
    }
    Tensor::from_dispatch(Dispatch::fp8_matmul(lhs.into_dispatch(), rhs.into_dispatch()))
}

/// `x` `[…, K]` times `weight` `[K, N]`, plus `bias` `[N]`, in FP8 where the configuration says so.
///
/// # Panics
/// Where the shapes do not multiply, and on devices of backends whose feature is off.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    if !is_here(&x.device()) {
        return module::linear(x, weight, bias);
    }
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => Dispatch::fp8_linear_with_bias(x, weight, bias.into_dispatch()),
        None => Dispatch::fp8_linear(x, weight),
    })
}

/// `loss.backward()`, with which a step of delayed scaling ends that no [`DelayedState::step`](crate::DelayedState::step) is around, and which tells a
#[cfg_attr(feature = "device", doc = "[served device](crate::device)")]
#[cfg_attr(not(feature = "device"), doc = "served device")]
/// that its products are gradients from here on.
///
/// Layers elsewhere need nothing but `loss.backward()` under every other recipe.
pub fn backward<const D: usize>(loss: Tensor<D>) -> Gradients {
    #[cfg(feature = "device")]
    let device = loss.device();
    let run = || delayed::backward(|| loss.backward());
    #[cfg(feature = "device")]
    let run = || crate::device::backward(&device, run);
    run()
}
