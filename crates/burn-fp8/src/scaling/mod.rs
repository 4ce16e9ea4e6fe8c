//! Scales of tensors: the arithmetic of [`burn_fp8_core::scale`] on the host or on the device, and the state of delayed scaling.

pub(crate) mod delayed;
pub(crate) mod device;

use burn::tensor::TensorData;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

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
}

/// Reads a small f32 tensor, waiting for the device.
pub(crate) fn read<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    let data: TensorData = burn::tensor::try_read_sync(B::float_into_data(tensor))
        .expect("scales are read where blocking on the device is possible")
        .expect("a scale can be read from its device");
    data.to_vec::<f32>().expect("scales are f32")
}
