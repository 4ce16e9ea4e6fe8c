//! The loop: prompts in, tokens out.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use burn_fp8::{Fp8Matmul, ProductKind, trace};

use crate::model::{Cache, CacheType, Decoder};
use crate::sample::{Sampler, Sampling};

/// What is decided for a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Where choices start from; each row of a batch has its own.
    pub seed: u64,
    /// New tokens of a row, at most.
    pub tokens: usize,
    /// New tokens of a row before one that ends it may come: transformers' `min_new_tokens`.
    pub at_least: usize,
    /// Tokens of a row with its prompt, at most: transformers' `max_length`.
    pub length: Option<usize>,
    /// Tokens of a prompt that go through the model at a time.
    pub piece: usize,
    /// In which numbers keys and values are held.
    pub cache: CacheType,
    /// Tokens that end a row; they are no part of it.
    pub ends: Vec<u32>,
}

/// Why a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The model wrote a token that ends a text.
    Token,
    /// Who takes the tokens wanted no more.
    Stopped,
    /// There are as many as were asked for.
    Tokens,
    /// The model has no more positions.
    Positions,
}

/// The new tokens of a row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Without the one that ended it.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub ended: Ended,
}

/// Tokens and the time that they took.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Speed {
    /// Tokens of all rows.
    pub tokens: usize,
    /// The time for all of them.
    pub seconds: f64,
}

impl Speed {
    fn add(&mut self, tokens: usize, time: Duration) {
        self.tokens += tokens;
        self.seconds += time.as_secs_f64();
    }

    /// Tokens a second.
    pub fn per_second(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One for each prompt.
    pub rows: Vec<Row>,
    /// The prompts.
    pub prefill: Speed,
    /// The tokens after the first of each row.
    pub decode: Speed,
    /// Bytes of keys and values, when there were most.
    pub cache_bytes: usize,
    /// In which numbers they are held: not in those that were asked for, where the backend does not hold such.
    pub cache: CacheType,
    /// What ran the products of quantized layers for the first tokens, each once.
    pub kernels: Vec<String>,
}

/// Continues prompts, all at once. `take` gets the row and the token as soon as it is there, and says whether the row goes on.
///
/// A row that has ended leaves the others, and the cache, which is given back. `seen` is a cache that holds the beginning of the only prompt, if there is one.
///
/// # Errors
/// Where a prompt is empty or longer than the model has positions, and what the model and `take` give.
pub fn generate<B: Fp8Matmul>(
    decoder: &Decoder<B>,
    prompts: &[Vec<u32>],
    options: &Options,
    seen: Option<Cache<B>>,
    mut take: impl FnMut(usize, u32) -> Result<bool>,
) -> Result<(Outcome, Cache<B>)> {
    options.sampling.check()?;
    let positions = decoder.config().positions;
    for prompt in prompts {
        ensure!(!prompt.is_empty(), "the prompt is empty: there is nothing to go on from");
        ensure!(
            prompt.len() <= positions,
            "the prompt has {} tokens; the model has {positions} positions",
            prompt.len()
        );
        let length = options.length.unwrap_or(usize::MAX);
        ensure!(
            prompt.len() < length,
            "the prompt has {} tokens, and a text with its prompt has at most {length} (max_length of generation_config.json): say with --tokens how many are new",
            prompt.len()
        );
    }
    let longest = prompts.iter().map(Vec::len).max().context("there is no prompt")?;
    let padding = prompts.iter().map(|prompt| longest - prompt.len());
    // Padding is seen by no token: any token will do.
    let padded: Vec<Vec<u32>> = prompts
        .iter()
        .zip(padding.clone())
        .map(|(row, pad)| [vec![0; pad], row.clone()].concat())
        .collect();
    let mut cache = match seen {
        Some(seen) => seen,
        None => decoder.cache(options.cache, padding.collect()),
    };

    let mut outcome = Outcome {
        rows: vec![],
        prefill: Speed::default(),
        decode: Speed::default(),
        cache_bytes: 0,
        cache: cache.kind(),
        kernels: vec![],
    };
    let start = Instant::now();
    let mut logits = None;
    let first = cache.length();
    for at in (first..longest).step_by(options.piece.max(1)) {
        let end = longest.min(at.saturating_add(options.piece.max(1)));
        let piece: Vec<_> = padded.iter().map(|row| row[at..end].to_vec()).collect();
        let mut forward = || decoder.forward(&piece, &mut cache, true);
        let (new, report) = match at == first {
            true => trace(forward),
            false => (forward(), Default::default()),
        };
        for product in report.products.iter().filter(|product| product.kind == ProductKind::Linear)
        {
            let ran = product.ran.to_string();
            if !outcome.kernels.contains(&ran) {
                outcome.kernels.push(ran);
            }
        }
        logits = Some(new?);
    }
    let mut logits = logits.context("all of the prompt is in the cache already")?;
    let mut samplers: Vec<Sampler> = (0..)
        .zip(prompts)
        .map(|(row, prompt)| {
            Sampler::new(options.sampling.clone(), options.seed.wrapping_add(row), prompt)
        })
        .collect();
    let mut rows: Vec<(Vec<u32>, Option<Ended>)> = prompts.iter().map(|_| (vec![], None)).collect();
    // Those that go on, in the order of the cache.
    let mut going: Vec<usize> = (0..rows.len()).collect();
    let mut last = start;
    for step in 0.. {
        let numbers = logits.into_data();
        let mut numbers = numbers.into_vec::<f32>().context("the backend's logits are not f32")?;
        let vocabulary = numbers.len() / going.len();
        let (mut next, mut left) = (vec![], vec![]);
        for (place, logits) in numbers.chunks_mut(vocabulary).enumerate() {
            let row = going[place];
            let (tokens, ended) = &mut rows[row];
            if options.tokens == 0 {
                *ended = Some(Ended::Tokens);
                continue;
            }
            if tokens.len() < options.at_least {
                for end in &options.ends {
                    if let Some(logit) = logits.get_mut(*end as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            let token = samplers[row].choose(logits)?;
            if options.ends.contains(&token) {
                *ended = Some(Ended::Token);
                continue;
            }
            tokens.push(token);
            *ended = match take(row, token)? {
                false => Some(Ended::Stopped),
                true if tokens.len() == options.tokens => Some(Ended::Tokens),
                true if Some(prompts[row].len() + tokens.len()) == options.length => {
                    Some(Ended::Tokens)
                }
                true if prompts[row].len() + tokens.len() > positions => Some(Ended::Positions),
                true => None,
            };
            if ended.is_none() {
                next.push(vec![token]);
                left.push(place);
            }
        }
        let now = Instant::now();
        match step {
            0 => {
                outcome.prefill.add(prompts.iter().map(Vec::len).sum::<usize>() - first, now - last)
            }
            _ => outcome.decode.add(going.len(), now - last),
        }
        last = now;
        if left.is_empty() {
            break;
        }
        if left.len() < going.len() {
            outcome.cache_bytes = outcome.cache_bytes.max(cache.bytes());
            cache.keep(&left);
            going = left.into_iter().map(|place| going[place]).collect();
        }
        logits = decoder.forward(&next, &mut cache, true)?;
    }
    outcome.cache_bytes = outcome.cache_bytes.max(cache.bytes());
    outcome.rows = rows
        .into_iter()
        .map(|(tokens, ended)| Row { tokens, ended: ended.expect("all rows have ended") })
        .collect();
    Ok((outcome, cache))
}
