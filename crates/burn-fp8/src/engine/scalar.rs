//! One number, a scale or an amax, on the host or on the device.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorMetadata, TensorPrimitive};
use burn_fp8_core::scale;

use super::tensor::{constant, primitive, read};

/// One number: the scale of a tensor (the dequantization multiplier, `x ≈ code × scale`), or its amax.
#[derive(Clone, Debug)]
pub enum Scalar<B: Backend> {
    /// Known on the host.
    Host(f32),
    /// In a tensor on the device: f32, shape `[1]`. Never read back while products run.
    Device(FloatTensor<B>),
}

impl<B: Backend> Scalar<B> {
    /// Reads the number, waiting for the device where it lies there.
    pub fn read(self) -> f32 {
        match self {
            Self::Host(value) => value,
            Self::Device(tensor) => read::<B>(tensor)[0],
        }
    }

    /// The number as a tensor of shape `[1]`, f32.
    pub(crate) fn to_tensor(&self, device: &B::Device) -> Tensor<B, 1> {
        Tensor::from_primitive(TensorPrimitive::Float(self.on_device(device)))
    }

    /// The same as a primitive.
    pub(crate) fn on_device(&self, device: &B::Device) -> FloatTensor<B> {
        match self {
            Self::Host(value) => {
                B::float_full(Shape::new([1]), (*value).into(), device, FloatDType::F32)
            }
            Self::Device(tensor) => tensor.clone(),
        }
    }

    /// The same number for use with tensors of this device.
    pub(crate) fn moved_to(self, device: &B::Device) -> Self {
        match self {
            Self::Host(value) => Self::Host(value),
            Self::Device(tensor) => Self::Device(B::float_to_device(tensor, device)),
        }
    }

    /// Whether this can be a scale, else why not. A number on the device is not read: only its shape and type are checked.
    pub(crate) fn check_scale(&self, name: &str) -> Result<(), String> {
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

impl<B: AutodiffBackend> Scalar<B> {
    /// The number without autodiff.
    pub(crate) fn inner(self) -> Scalar<B::InnerBackend> {
        match self {
            Self::Host(value) => Scalar::Host(value),
            Self::Device(tensor) => Scalar::Device(B::inner(tensor)),
        }
    }

    /// A number of the inner backend on this one.
    pub(crate) fn from_inner(scalar: Scalar<B::InnerBackend>) -> Self {
        match scalar {
            Scalar::Host(value) => Self::Host(value),
            Scalar::Device(tensor) => Self::Device(B::from_inner(tensor)),
        }
    }
}

impl<B: Backend> From<f32> for Scalar<B> {
    fn from(value: f32) -> Self {
        Self::Host(value)
    }
}

/// The number stays on the device; gradients end here.
impl<B: Backend> From<Tensor<B, 1>> for Scalar<B> {
    fn from(tensor: Tensor<B, 1>) -> Self {
        Self::Device(primitive(constant(tensor).cast(FloatDType::F32)))
    }
}

/// Whether a scale can be used, else why not.
pub(crate) fn check_scale(name: &str, scale: f32) -> Result<(), String> {
    match scale.is_finite() && scale >= scale::MIN_SCALE {
        true => Ok(()),
        false => Err(format!("{name} is {scale:e}; it must be a finite number of at least 2^-126")),
    }
}
