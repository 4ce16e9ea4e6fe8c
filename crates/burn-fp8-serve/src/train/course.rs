//! The loop of a training: batches in, a trained model out.

use anyhow::{Result, ensure};
use burn::grad_clipping::GradientClippingConfig;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn_fp8::{Fp8Matmul, high_precision};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::text::Text;
use crate::config::Config;
use crate::model::{Frequencies, Step, Weights};

/// How long and how fast a model learns.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Course {
    /// Steps of the optimizer.
    pub steps: usize,
    /// Sequences of a step.
    pub batch: usize,
    /// Tokens of a sequence.
    pub context: usize,
    /// The highest learning rate.
    pub rate: f64,
    /// Where random weights and the order of sequences start from.
    pub seed: u64,
}

/// How far a training has come.
pub(super) struct Reached<'a, B: AutodiffBackend + Fp8Matmul> {
    /// Steps that are done.
    pub(super) done: usize,
    /// The loss of the tokens of the next one.
    pub(super) loss: f64,
    pub(super) weights: &'a Weights<B>,
    optimizer: &'a Adam<B>,
}

impl<B: AutodiffBackend + Fp8Matmul> Reached<'_, B> {
    pub(super) fn moments(&self) -> Moments<B> {
        self.optimizer.to_record()
    }
}

type Adam<B> = OptimizerAdaptor<AdamW, Weights<B>, B>;

/// The state of the optimizer.
pub(super) type Moments<B> = <Adam<B> as Optimizer<Weights<B>, B>>::Record;

/// Steps over which the learning rate rises, at most; it falls to a tenth by a cosine.
const WARMUP: usize = 50;

/// Sequences that a held-out loss is the mean of, at most.
const HELD_OUT: usize = 128;

impl Course {
    /// What a report says of a training that took so long.
    pub(super) fn report(&self, text: &Text, seconds: f64) -> Value {
        let mut report = json!(self);
        report["seconds"] = json!(seconds.round());
        report["tokens"] = json!({ "seen": text.seen.len(), "held_out": text.held_out.len() });
        report
    }

    /// Whether this can be taken with a text.
    pub(super) fn check(&self, text: &Text, config: &Config) -> Result<()> {
        let Self { context, rate, .. } = *self;
        ensure!(rate.is_finite() && rate > 0.0, "the learning rate is {rate}; it must be over 0");
        ensure!(
            context <= config.positions,
            "a context of {context} tokens: the model has {} positions",
            config.positions
        );
        let (seen, held_out) = (text.seen.len(), text.held_out.len());
        ensure!(
            seen.min(held_out) > context,
            "the text has {seen} tokens and {held_out} that are held out: each part must have more than the context of {context}"
        );
        Ok(())
    }

    /// Trains what has gradients on these tokens, and gives it with the last loss; after so many steps that are done already, with the moments that they left.
    /// `progress` is told now and then how far it has come; an error of it ends the training.
    pub(super) fn fit<B>(
        &self,
        mut weights: Weights<B>,
        config: &Config,
        tokens: &[u32],
        device: &B::Device,
        from: Option<(usize, Moments<B>)>,
        mut progress: impl FnMut(Reached<'_, B>) -> Result<()>,
    ) -> Result<(Weights<B>, f64)>
    where
        B: AutodiffBackend + Fp8Matmul,
    {
        let Self { steps, batch, context, rate, seed } = *self;
        let mut optimizer = AdamWConfig::new()
            .with_beta_2(0.95)
            .with_weight_decay(0.1)
            .with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)))
            .init::<B, Weights<B>>();
        let mut random = StdRng::seed_from_u64(seed);
        let mut draw = || random.random_range(0..tokens.len() - context);
        let first = match from {
            Some((done, moments)) => {
                optimizer = optimizer.load_record(moments);
                done
            }
            None => 0,
        };
        (0..first * batch).for_each(|_| _ = draw());
        let mut last = f64::NAN;
        for step in first..steps {
            // What a step drops does not depend on the steps before it in this process.
            B::seed(device, seed.wrapping_add(step as u64));
            let starts: Vec<usize> = (0..batch).map(|_| draw()).collect();
            let batch = Batch::new(tokens, &starts, context, device);
            let loss = loss(&weights, config, batch);
            if step.is_multiple_of(10) || step + 1 == steps {
                last = number(loss.clone());
                ensure!(
                    last.is_finite(),
                    "the training diverges: the loss of step {step} is {last}; try a lower --rate"
                );
                let (weights, optimizer) = (&weights, &optimizer);
                progress(Reached { done: step, loss: last, weights, optimizer })?;
            }
            let gradients = GradientsParams::from_grads(loss.backward(), &weights);
            weights = optimizer.step(rate * schedule(step, steps), weights, gradients);
        }
        Ok((weights, last))
    }

    /// The mean loss of the tokens of a text, in nats.
    pub(super) fn mean_loss<B: Fp8Matmul>(
        &self,
        weights: &Weights<B>,
        config: &Config,
        tokens: &[u32],
        device: &B::Device,
    ) -> f64 {
        let starts = starts(tokens.len(), self.context);
        let losses = starts.chunks(self.batch).map(|starts| {
            let batch = Batch::new(tokens, starts, self.context, device);
            number(loss(weights, config, batch)) * starts.len() as f64
        });
        losses.sum::<f64>() / starts.len() as f64
    }
}

/// Sequences of tokens, one token longer than what goes in.
struct Batch<B: Backend> {
    inputs: Tensor<B, 2, Int>,
    targets: Tensor<B, 1, Int>,
    size: [usize; 2],
}

impl<B: Backend> Batch<B> {
    fn new(tokens: &[u32], starts: &[usize], context: usize, device: &B::Device) -> Self {
        let ids = |offset: usize| {
            let rows = starts.iter().map(|start| &tokens[start + offset..][..context]);
            rows.flatten().map(|token| i64::from(*token)).collect::<Vec<_>>()
        };
        let size = [starts.len(), context];
        let inputs = Tensor::from_data(TensorData::new(ids(0), size), device);
        let targets = Tensor::from_data(TensorData::new(ids(1), [size[0] * size[1]]), device);
        Self { inputs, targets, size }
    }
}

/// The mean loss of the tokens of a batch, in nats. The head stays in high precision.
fn loss<B: Fp8Matmul>(weights: &Weights<B>, config: &Config, batch: Batch<B>) -> Tensor<B, 1> {
    let [rows, context] = batch.size;
    let device = batch.inputs.device();
    let positions = vec![(0..context).collect::<Vec<_>>()];
    let step = Step {
        turns: Frequencies::new(config).turns(&positions, &device),
        padding: None,
        limit: context,
    };
    let hidden = weights.hidden(batch.inputs, &step);
    let logits = high_precision(|| weights.logits(hidden));
    let logits = logits.reshape([rows * context, config.vocabulary]);
    CrossEntropyLossConfig::new().init(&device).forward(logits, batch.targets)
}

/// Starts of sequences that a held-out loss is the mean of, spread over the text.
pub(super) fn starts(tokens: usize, context: usize) -> Vec<usize> {
    let all = (tokens - 1) / context;
    let count = all.min(HELD_OUT);
    (0..count).map(|index| index * all / count * context).collect()
}

pub(super) fn number<B: Backend>(loss: Tensor<B, 1>) -> f64 {
    loss.into_data().iter::<f64>().next().expect("a loss is a number")
}

/// The part of the highest learning rate at a step.
fn schedule(step: usize, steps: usize) -> f64 {
    let rising = (step + 1) as f64 / WARMUP.min(steps.div_ceil(10)) as f64;
    let fallen = step as f64 / steps as f64;
    let falling = 0.1 + 0.45 * (1.0 + (std::f64::consts::PI * fallen).cos());
    rising.min(1.0) * falling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_and_falls() {
        let rates: Vec<f64> = (0..1000).map(|step| schedule(step, 1000)).collect();
        assert!(rates[0] < 0.021 && rates[999] < 0.1001 && rates[999] >= 0.1);
        assert!(rates[..WARMUP].is_sorted() && rates[WARMUP..].is_sorted_by(|a, b| a >= b));
        assert!(rates.iter().copied().fold(0.0, f64::max) > 0.99);
        // A short course does not rise until its end.
        assert!(schedule(2, 30) > 0.98 && schedule(29, 30) < 0.11);
    }
}
