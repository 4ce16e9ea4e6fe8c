//! What is read from the device: samples of inputs, and a bias.

use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, FloatDType, Tensor};

use crate::Fp8Error;
use crate::engine::portable;
use crate::engine::tensor::read;
use crate::host::{constant, primitive};
use crate::product::ActivationScale;

impl ActivationScale {
    /// A static scale with which no finite element of the sample inputs saturates. Elements that are not finite are left out.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which tells these apart, where there are no samples or no elements in them, where none is finite, and where all finite ones
    /// are 0.
    pub fn from_samples<B: Backend, const D: usize>(
        samples: impl IntoIterator<Item = Tensor<B, D>>,
    ) -> Result<Self, Fp8Error> {
        let (mut amax, mut count, mut elements, mut is_finite) = (0f32, 0, 0, false);
        for sample in samples {
            count += 1;
            elements += sample.shape().num_elements();
            if sample.shape().num_elements() > 0 {
                let sample = constant(sample).cast(FloatDType::F32);
                let largest = portable::scale::amax::<B>(primitive(sample.clone()));
                amax = amax.max(read::<B>(largest)[0]);
                is_finite |= amax > 0.0 || sample.is_finite().any().into_scalar().elem::<bool>();
            }
        }
        Self::from_seen([count, elements], is_finite, amax)
    }
}

/// The bias on the host. Waits for the device.
pub(super) fn read_bias<B: Backend>(bias: &Option<Tensor<B, 1>>) -> Option<Vec<f32>> {
    let bias = constant(bias.clone()?).cast(FloatDType::F32);
    Some(bias.into_data().to_vec().expect("it is f32"))
}
