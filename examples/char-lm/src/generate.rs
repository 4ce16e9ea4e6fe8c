//! Text from a trained model.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Int, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8_train::policy::cast_module_to_compute;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::args::Sampling;
use crate::model::Gpt;
use crate::precision::Setup;
use crate::text::Vocabulary;

impl Sampling {
    /// The prompt in numbers.
    ///
    /// # Errors
    /// Where it is empty or holds a character that the model does not know.
    pub fn encode_prompt(&self, vocabulary: &Vocabulary) -> Result<Vec<u8>> {
        ensure!(
            !self.prompt.is_empty(),
            "it is empty: the model goes on from at least one character"
        );
        vocabulary.encode(&self.prompt)
    }
}

/// The prompt and what the model goes on with.
///
/// # Errors
/// Where the prompt is empty or holds a character that the model does not know.
pub fn generate<B: Fp8Matmul>(
    model: &Gpt<B>,
    setup: &Setup,
    vocabulary: &Vocabulary,
    context: usize,
    sampling: &Sampling,
) -> Result<String> {
    let mut characters = sampling.encode_prompt(vocabulary).context("--prompt")?;
    let mut random = StdRng::seed_from_u64(sampling.sampling_seed);
    let device = B::Device::default();
    setup.scope(|| {
        let model = cast_module_to_compute(model);
        for _ in 0..sampling.length {
            let seen = &characters[characters.len().saturating_sub(context)..];
            let logits = next_logits(&model, seen, &device);
            ensure!(
                logits.iter().all(|logit| logit.is_finite()),
                "the model gives no numbers: its training has diverged, or its weights are damaged"
            );
            characters.push(draw(&logits[..vocabulary.len()], sampling.temperature, &mut random));
        }
        Ok(())
    })?;
    Ok(characters.into_iter().filter_map(|number| vocabulary.character(number.into())).collect())
}

/// The logits of the character after these.
fn next_logits<B: Fp8Matmul>(model: &Gpt<B>, seen: &[u8], device: &B::Device) -> Vec<f32> {
    let numbers: Vec<i32> = seen.iter().map(|number| (*number).into()).collect();
    let inputs = Tensor::<B, 2, Int>::from_data(TensorData::new(numbers, [1, seen.len()]), device);
    let logits = model.forward(inputs);
    let last = logits.slice([0..1, seen.len() - 1..seen.len()]);
    last.into_data().convert::<f32>().to_vec().expect("f32 now")
}

/// A number drawn from softmax(logits / temperature).
fn draw(logits: &[f32], temperature: f32, random: &mut StdRng) -> u8 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (f64::from(logit - max) / f64::from(temperature)).exp())
        .collect();
    let mut left = random.random_range(0.0..1.0) * weights.iter().sum::<f64>();
    for (number, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return number as u8;
        }
    }
    // Rounding.
    (weights.len() - 1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_drawn_as_often_as_they_are_likely() {
        let mut random = StdRng::seed_from_u64(1);
        let logits = [0.0, 3.0f32.ln(), -100.0];
        let draws: Vec<u8> = (0..4000).map(|_| draw(&logits, 1.0, &mut random)).collect();
        let ones = draws.iter().filter(|number| **number == 1).count();
        assert!((2850..3150).contains(&ones), "three of four: {ones}");
        assert!(draws.iter().all(|number| *number < 2));
        assert!((0..100).all(|_| draw(&logits, 1e-3, &mut random) == 1), "cold");
    }
}
