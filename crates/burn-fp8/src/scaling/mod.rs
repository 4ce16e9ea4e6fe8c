//! Scales of tensors: the arithmetic of [`burn_fp8_core::scale`] on the host or on the device.

pub(crate) mod device;

use burn::tensor::TensorData;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

/// The scale of a tensor, the dequantization multiplier: `x ≈ code × scale`.
#[derive(Clone, Debug)]
pub enum Scale<B: Backend> {
    /// Known on the host.
    Host(f32),
    /// In a tensor on the device: f32, shape `[1]`. Never read back while products run.
    Device(FloatTensor<B>),
}

impl<B: Backend> Scale<B> {
    /// Reads the scale, waiting for the device where it lies there.
    pub fn read(self) -> f32 {
        match self {
            Self::Host(scale) => scale,
            Self::Device(tensor) => {
                let data: TensorData = burn::tensor::try_read_sync(B::float_into_data(tensor))
                    .expect("scales are read where blocking on the device is possible")
                    .expect("a scale can be read from its device");
                data.to_vec::<f32>().expect("scales are f32")[0]
            }
        }
    }
}
