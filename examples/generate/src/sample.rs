//! The next token, from logits.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;

use crate::config::Keys;
use crate::tokens::read_json;

/// How a token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; with 0 the likeliest token is taken.
    pub temperature: f64,
    /// How many of the likeliest tokens there are to choose from; all with 0.
    pub top_k: usize,
    /// The likeliest tokens that have this much of the probability together.
    pub top_p: f64,
    /// Tokens at least this likely, as a part of the likeliest one.
    pub min_p: f64,
    /// By how much tokens that were there before are less likely: 1 is not at all.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repetition_penalty: 1.0 }
    }
}

impl Sampling {
    /// What a model's `generation_config.json` says, and the tokens that end a text; the likeliest token where it says nothing.
    ///
    /// # Errors
    /// Where the file is damaged, or has a number that is out of range.
    pub fn load(folder: &Path) -> Result<(Self, Vec<u32>)> {
        let json = read_json(folder, "generation_config.json")?.unwrap_or(Value::Null);
        let keys = Keys { of: "generation_config.json", value: &json };
        let number = |key: &str, otherwise: f64| -> Result<f64> {
            // 0 is a number that says "not at all".
            let zero = keys.get(key).and_then(Value::as_f64) == Some(0.0);
            Ok(if zero { 0.0 } else { keys.positive(key)?.unwrap_or(otherwise) })
        };
        let sampled = keys.flag("do_sample")?;
        let sampling = Self {
            temperature: if sampled { number("temperature", 1.0)? } else { 0.0 },
            top_k: number("top_k", 0.0)? as usize,
            top_p: number("top_p", 1.0)?,
            min_p: number("min_p", 0.0)?,
            repetition_penalty: number("repetition_penalty", 1.0)?,
        };
        anyhow::Context::context(sampling.check(), "generation_config.json")?;
        Ok((sampling, keys.tokens("eos_token_id")?))
    }

    /// Whether all numbers are in range.
    ///
    /// # Errors
    /// Where one is not.
    pub fn check(&self) -> Result<()> {
        let Self { temperature, top_p, min_p, repetition_penalty, .. } = *self;
        let finite = |x: f64| x.is_finite() && x >= 0.0;
        ensure!(finite(temperature), "the temperature is {temperature}; it must be 0 or more");
        ensure!(top_p > 0.0 && top_p <= 1.0, "top-p is {top_p}; it must be over 0 and at most 1");
        ensure!((0.0..=1.0).contains(&min_p), "min-p is {min_p}; it must be from 0 to 1");
        ensure!(
            finite(repetition_penalty) && repetition_penalty > 0.0,
            "the repetition penalty is {repetition_penalty}; it must be over 0"
        );
        Ok(())
    }
}

/// Chooses tokens of one text. The same seed gives the same ones.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    random: StdRng,
    seen: BTreeSet<u32>,
}

impl Sampler {
    /// A sampler of a text that begins with a prompt.
    pub fn new(sampling: Sampling, seed: u64, prompt: &[u32]) -> Self {
        let seen = prompt.iter().copied().collect();
        Self { sampling, random: StdRng::seed_from_u64(seed), seen }
    }

    /// Chooses the token after `logits` `[vocabulary]`.
    ///
    /// The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p.
    ///
    /// # Errors
    /// Where a logit is not a number.
    pub fn choose(&mut self, mut logits: Vec<f32>) -> Result<u32> {
        let wrong = logits.iter().position(|logit| logit.is_nan());
        ensure!(
            wrong.is_none(),
            "a logit is NaN: a weight of the model is too large, or its file is damaged"
        );
        let penalty = self.sampling.repetition_penalty as f32;
        if penalty != 1.0 {
            for token in &self.seen {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        let token = match self.sampling.temperature {
            0.0 => likeliest(&logits),
            _ => self.draw(&logits),
        };
        self.seen.insert(token);
        Ok(token)
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        let by_logit = |a: &u32, b: &u32| order(logits, *a, *b);
        if top_k > 0 && top_k < tokens.len() {
            tokens.select_nth_unstable_by(top_k, by_logit);
            tokens.truncate(top_k);
        }
        tokens.sort_unstable_by(by_logit);
        let largest = f64::from(logits[tokens[0] as usize]);
        let weight =
            |token: &u32| ((f64::from(logits[*token as usize]) - largest) / temperature).exp();
        let mut weights: Vec<f64> = tokens.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut before = 0.0;
        let in_top = weights.iter().take_while(|weight| {
            let taken = before < top_p * total;
            before += **weight;
            taken
        });
        // The likeliest has the weight 1.
        let likely = weights.iter().take_while(|weight| **weight >= min_p).count();
        weights.truncate(in_top.count().min(likely).max(1));
        let total: f64 = weights.iter().sum();
        let mut place = self.random.random::<f64>() * total;
        let chosen = weights.iter().position(|weight| {
            place -= weight;
            place < 0.0
        });
        tokens[chosen.unwrap_or(weights.len() - 1)]
    }
}

/// The likelier first; of two that are as likely, the one with the smaller number.
fn order(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

fn likeliest(logits: &[f32]) -> u32 {
    let tokens = 0..logits.len() as u32;
    tokens.min_by(|a, b| order(logits, *a, *b)).expect("a vocabulary has tokens")
}
