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

    /// Cosines and sines of positions, `[positions, pairs]`, of one row after the other.
    ///
    /// An angle is a product in f32, as models are trained with it.
    pub(super) fn tables(&self, positions: &[Vec<usize>]) -> [Vec<f32>; 2] {
        let angles = positions.iter().flatten();
        let angles = angles.flat_map(|position| self.0.iter().map(move |f| *position as f32 * f));
        let angles: Vec<f32> = angles.collect();
        [f64::cos, f64::sin]
            .map(|of| angles.iter().map(|angle| of(f64::from(*angle)) as f32).collect())
    }

    /// The same of positions `[batch][positions]`, as tensors.
    pub(crate) fn turns<B: Backend>(
        &self,
        positions: &[Vec<usize>],
        device: &B::Device,
    ) -> Turns<B> {
        let shape = [positions.len(), positions[0].len(), 1, self.0.len()];
        let tensor = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, shape), device);
        Turns(self.tables(positions).map(tensor))
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

/// By how much heads are turned: cosines and sines, `[batch, positions, 1, pairs]`.
#[derive(Clone, Debug)]
pub(crate) struct Turns<B: Backend>([Tensor<B, 4>; 2]);

impl<B: Backend> Turns<B> {
    /// Turns `[batch, positions, heads, width]`: element `i` with element `i + width / 2`.
    pub(super) fn turn(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [cos, sin] = &self.0;
        let half = x.dims()[3] / 2;
        let (a, b) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        let second = b * cos.clone() + a * sin.clone();
        Tensor::cat(vec![first, second], 3)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Each setting gives the frequencies of transformers, or is refused by its name: `tests/golden/rope.py`.
    #[test]
    fn settings_are_read_as_by_transformers_or_refused() {
        let golden = include_str!("../../tests/golden/rope.json");
        let golden: Value = serde_json::from_str(golden).expect("JSON");
        let cases = golden["cases"].as_array().expect("cases");
        let line = format!("read {} settings", cases.len());
        assert!(include_str!("../../README.md").contains(&line), "README does not say: {line}");
        for case in cases {
            let settings = case["config"].to_string();
            let found = Config::parse(&settings);
            let (read, refused) = (&case["read"], case["refused"].as_str());
            match (found, refused) {
                (Ok(config), None) if read.is_object() => {
                    let (kind, factor) = match config.rope_scaling {
                        RopeScaling::Default => ("default", None),
                        RopeScaling::Linear { factor } => ("linear", Some(factor)),
                        RopeScaling::Llama3 { factor, .. } => ("llama3", Some(factor)),
                    };
                    assert_eq!(read["rope_type"], kind, "{settings}");
                    assert_eq!(read["rope_theta"].as_f64(), Some(config.rope_theta), "{settings}");
                    assert!(factor.is_none() || factor == read["factor"].as_f64(), "{settings}");
                    assert_eq!(read["attention_scaling"], 1.0, "{settings}");
                    let frequencies = Frequencies::new(&config).0;
                    let expected = read["inv_freq"].as_array().expect("frequencies");
                    assert_eq!(frequencies.len(), expected.len(), "{settings}");
                    for (found, expected) in frequencies.iter().zip(expected) {
                        let expected = expected.as_f64().expect("a number");
                        let error = (f64::from(*found) / expected - 1.0).abs();
                        // A power in f32 is off by that much.
                        assert!(error < 2e-6, "{found} for {expected}: {settings}");
                    }
                }
                (Err(error), Some(word)) => {
                    let error = format!("{error:#}");
                    assert!(error.contains(word), "{error}: {settings}");
                }
                (Err(_), None) if read.is_null() => (),
                (found, _) => panic!("{settings}: {found:?}, transformers {read}"),
            }
        }
    }
}
