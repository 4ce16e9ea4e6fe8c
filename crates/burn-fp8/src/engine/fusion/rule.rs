//! Requests without their tensors, which travel as inputs of the operation.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{Overflow, Recipe};

use crate::engine::quantize::ScaleRule;
use crate::engine::scalar::Scalar;

/// A [`Scalar`], without the tensor where it lies on the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Host(f32),
    Device,
}

/// A [`ScaleRule`], without the tensor of its number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    Current(Recipe),
    Delayed(Number, Recipe),
    Given(Number, Overflow),
}

impl Number {
    pub(super) fn split<B: Backend>(scalar: &Scalar<B>) -> (Self, Option<FloatTensor<B>>) {
        match scalar {
            Scalar::Host(value) => (Self::Host(*value), None),
            Scalar::Device(tensor) => (Self::Device, Some(tensor.clone())),
        }
    }

    /// The scalar again; `tensor` is asked for where it lies on the device.
    pub(super) fn join<B: Backend>(self, tensor: impl FnOnce() -> FloatTensor<B>) -> Scalar<B> {
        match self {
            Self::Host(value) => Scalar::Host(value),
            Self::Device => Scalar::Device(tensor()),
        }
    }
}

impl Rule {
    pub(super) fn split<B: Backend>(rule: &ScaleRule<B>) -> (Self, Option<FloatTensor<B>>) {
        match rule {
            ScaleRule::Current(recipe) => (Self::Current(*recipe), None),
            ScaleRule::Delayed(amax, recipe) => {
                let (amax, tensor) = Number::split(amax);
                (Self::Delayed(amax, *recipe), tensor)
            }
            ScaleRule::Given(scale, overflow) => {
                let (scale, tensor) = Number::split(scale);
                (Self::Given(scale, *overflow), tensor)
            }
        }
    }

    pub(super) fn join<B: Backend>(self, tensor: Option<FloatTensor<B>>) -> ScaleRule<B> {
        let tensor = || tensor.expect("a number on the device is an input");
        match self {
            Self::Current(recipe) => ScaleRule::Current(recipe),
            Self::Delayed(amax, recipe) => ScaleRule::Delayed(amax.join(tensor), recipe),
            Self::Given(scale, overflow) => ScaleRule::Given(scale.join(tensor), overflow),
        }
    }
}
