//! One number, a scale or an amax, on the host or on the device.

use burn_backend::{Backend, DType, FloatDType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::scale;

use super::tensor::read;

/// One number: the scale of a tensor (the dequantization multiplier, `x ≈ code × scale`), or its amax.
///
/// `F` is how a backend holds a float tensor; [`ScalarOf<B>`] names the type by its backend.
#[derive(Clone, Copy, Debug)]
pub enum Scalar<F> {
    /// Known on the host.
    Host(f32),
    /// In a tensor on the device: f32, shape `[1]`. Never read back while products run.
    Device(F),
}

/// A [`Scalar`] of a backend.
pub type ScalarOf<B> = Scalar<FloatTensor<B>>;

impl<F> Scalar<F> {
    /// The same number, its tensor handed through `tensor`.
    pub fn map<G>(self, tensor: impl FnOnce(F) -> G) -> Scalar<G> {
        match self {
            Self::Host(value) => Scalar::Host(value),
            Self::Device(number) => Scalar::Device(tensor(number)),
        }
    }

    /// Reads the number, waiting for the device where it lies there.
    pub fn read<B: Backend<FloatTensorPrimitive = F>>(self) -> f32 {
        match self {
            Self::Host(value) => value,
            Self::Device(tensor) => read::<B>(tensor)[0],
        }
    }
}

impl<F: TensorMetadata + Clone> Scalar<F> {
    /// The number in a tensor `[1]`, f32.
    pub fn on_device<B: Backend<FloatTensorPrimitive = F>>(&self, device: &B::Device) -> F {
        match self {
            Self::Host(value) => {
                B::float_full(Shape::new([1]), (*value).into(), device, FloatDType::F32)
            }
            Self::Device(tensor) => tensor.clone(),
        }
    }

    /// Whether this can be a scale, else why not. A number on the device is not read: only its shape and type are checked.
    pub fn check_scale(&self, name: &str) -> Result<(), String> {
        match self {
            Self::Host(scale) => check_scale(name, *scale),
            Self::Device(tensor) => {
                let (shape, dtype) = (tensor.shape(), tensor.dtype());
                match shape.as_slice() == [1] && dtype == DType::F32 {
                    true => Ok(()),
                    false => {
                        let shape = shape.as_slice();
                        Err(format!("{name} is a tensor {dtype:?} {shape:?}; it must be F32 [1]"))
                    }
                }
            }
        }
    }
}

impl<F> From<f32> for Scalar<F> {
    fn from(value: f32) -> Self {
        Self::Host(value)
    }
}

/// Whether a scale can be used, else why not.
pub fn check_scale(name: &str, scale: f32) -> Result<(), String> {
    match scale.is_finite() && scale >= scale::MIN_SCALE {
        true => Ok(()),
        false => Err(format!("{name} is {scale:e}; it must be a finite number of at least 2^-126")),
    }
}
