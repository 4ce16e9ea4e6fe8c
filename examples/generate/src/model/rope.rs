//! Rotary embeddings.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

use crate::config::{Config, RopeScaling};

/// The frequencies of a model: half as many as a head is wide.
#[derive(Clone, Debug)]
pub(crate) struct Frequencies(Vec<f32>);

impl Frequencies {
    pub(crate) fn new(config: &Config) -> Self {
        let width = config.head_width as f64;
        let frequency = |pair: usize| config.rope_theta.powf(-2.0 * pair as f64 / width);
        let scaled = |frequency: f64| scale(frequency, config.rope_scaling) as f32;
        Self((0..config.head_width / 2).map(frequency).map(scaled).collect())
    }

    /// Cosines and sines `[batch, 1, positions, head width / 2]` of positions `[batch][positions]`.
    ///
    /// An angle is a product in f32, as models are trained with it.
    pub(crate) fn turns<B: Backend>(
        &self,
        positions: &[Vec<usize>],
        device: &B::Device,
    ) -> Turns<B> {
        let angles = positions.iter().flatten();
        let angles = angles.flat_map(|position| self.0.iter().map(move |f| *position as f32 * f));
        let angles: Vec<f32> = angles.collect();
        let shape = [positions.len(), 1, positions[0].len(), self.0.len()];
        let table = |of: fn(f64) -> f64| {
            let values = angles.iter().map(|angle| of(f64::from(*angle)) as f32).collect();
            Tensor::from_data(TensorData::new(values, shape), device)
        };
        Turns { cos: table(f64::cos), sin: table(f64::sin) }
    }
}

fn scale(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Default => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low, high, positions } => {
            // How many waves the original positions had: few where a wave is long.
            let waves = positions * frequency / std::f64::consts::TAU;
            let smooth = ((waves - low) / (high - low)).clamp(0.0, 1.0);
            frequency / factor * (1.0 - smooth) + frequency * smooth
        }
    }
}

/// By how much heads are turned.
#[derive(Clone, Debug)]
pub(crate) struct Turns<B: Backend> {
    cos: Tensor<B, 4>,
    sin: Tensor<B, 4>,
}

impl<B: Backend> Turns<B> {
    /// Turns `[batch, heads, positions, width]`: element `i` with element `i + width / 2`.
    pub(super) fn turn(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let half = x.dims()[3] / 2;
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let first = a.clone() * self.cos.clone() - b.clone() * self.sin.clone();
        let second = b * self.cos.clone() + a * self.sin.clone();
        Tensor::cat(vec![first, second], 3)
    }
}
