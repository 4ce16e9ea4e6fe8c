//! Frozen layers as they are published.

use burn::tensor::backend::Backend;

use crate::checkpoint::{Activations, CheckpointError, QuantizedLinear, Scales};
use crate::nn::frozen::{ActivationScale, FrozenLinear};

impl<B: Backend> FrozenLinear<B> {
    /// The layer as checkpoints hold it, `[d_output, d_input]`, for [`Export`](crate::checkpoint::Export). Reads codes and bias from the device.
    ///
    /// [`ActivationScale::Current`] becomes [`Activations::PerToken`], what loaders call dynamic: a scale for each row of the input instead of one for all.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a code of the weight is NaN: no loader could use it.
    pub fn to_published(&self) -> Result<QuantizedLinear, CheckpointError> {
        let [d_input, d_output] = self.dims();
        let codes = self.codes().to_bytes();
        let codes = (0..codes.len()).map(|at| codes[at % d_input * d_output + at / d_input]);
        let shape = [d_output, d_input];
        let scales = Scales::new(shape, shape, vec![self.weight_scale()])?;
        let bias = self.bias().map(|bias| bias.to_data().to_vec().expect("a bias is f32"));
        let activations = match self.activation() {
            ActivationScale::Static(scale) => Activations::Static(scale),
            ActivationScale::Current => Activations::PerToken,
        };
        QuantizedLinear::new(shape, codes.collect(), scales, bias, activations)
    }
}
