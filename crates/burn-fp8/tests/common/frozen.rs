//! Frozen layers with numbers that are known.

use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{ActivationScale, FrozenLinear};

use super::{Random, tensor, values};

/// A layer with its weight and bias.
pub fn layer<B: Fp8Matmul>(
    random: &mut Random,
    [k, n]: [usize; 2],
    activation: ActivationScale,
) -> (FrozenLinear<B>, Vec<f32>, Vec<f32>) {
    let (weight, bias) = (random.spread(k * n), random.spread(n));
    let layer =
        FrozenLinear::from_weight(tensor(&weight, [k, n]), Some(tensor(&bias, [n])), activation);
    (layer.expect("a good layer"), weight, bias)
}

/// The layer without what it lies on.
pub fn parts<B: Backend>(
    layer: &FrozenLinear<B>,
) -> (Vec<u8>, f32, Option<Vec<f32>>, ActivationScale) {
    let bias = layer.bias().map(|bias| values(bias.clone()));
    (layer.codes().to_bytes(), layer.weight_scale(), bias, layer.activation())
}
