//! The next token, from logits.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
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

/// What a model's `generation_config.json` says.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// How tokens are chosen: the likeliest one where it says nothing.
    pub sampling: Sampling,
    /// Tokens that end a text.
    pub ends: Vec<u32>,
    /// New tokens, at most.
    pub tokens: Option<usize>,
    /// New tokens before one that ends a text may come.
    pub at_least: usize,
    /// Tokens of a text with its prompt, at most.
    pub length: Option<usize>,
}

/// What is read here.
const READ: [&str; 10] = [
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "eos_token_id",
    "max_new_tokens",
    "min_new_tokens",
    "max_length",
];

/// Keys of transformers 5.24 that change nothing of the text of a decoder that no beam and no second model helps to write: memory, speed, what is returned.
const OF_NO_MATTER: &str = "\
    _commit_hash _from_model_config assistant_confidence_threshold assistant_early_exit \
    assistant_ensemble_weight assistant_lookbehind bos_token_id cache_config \
    cache_implementation compile_config continuous_batching_config decoder_start_token_id \
    disable_compile diversity_penalty early_stopping is_assistant length_penalty low_memory \
    max_cache_len max_matching_ngram_size num_assistant_tokens num_assistant_tokens_schedule \
    num_beam_groups output_attentions output_hidden_states output_logits output_scores \
    pad_token_id prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values \
    renormalize_logits return_dict_in_generate speculation_type target_lookbehind \
    transformers_version use_cache use_mtp";

/// Keys that change what is written, and the number that changes nothing.
const NEUTRAL: [(&str, f64); 11] = [
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("num_return_sequences", 1.0),
    ("penalty_alpha", 0.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
];

/// Whether a key asks for something that is not done here. What is off or empty asks for nothing.
fn is_ignored(key: &str, value: &Value) -> bool {
    let is_neutral = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        value => NEUTRAL.iter().any(|(own, number)| *own == key && value.as_f64() == Some(*number)),
    };
    !is_neutral && !READ.contains(&key) && !OF_NO_MATTER.split(' ').any(|known| known == key)
}

impl Defaults {
    /// Reads the file of a folder, if there is one. Keys that are not known here and may change what transformers writes are told to `ignored`.
    ///
    /// # Errors
    /// Where the file is damaged, or has a number that is out of range.
    pub fn load(folder: &Path, mut ignored: impl FnMut(&str)) -> Result<Self> {
        let json = read_json(folder, "generation_config.json")?;
        let json = json.unwrap_or_else(|| Value::Object(Default::default()));
        let object = json.as_object().context("generation_config.json is no object")?;
        for (key, _) in object.iter().filter(|(key, value)| is_ignored(key, value)) {
            ignored(key);
        }
        let keys = Keys { of: "generation_config.json", value: &json };
        let number = |key: &str, otherwise: f64| -> Result<f64> {
            // 0 is a number that says "not at all".
            let zero = keys.get(key).and_then(Value::as_f64) == Some(0.0);
            Ok(if zero { 0.0 } else { keys.positive(key)?.unwrap_or(otherwise) })
        };
        let sampled = keys.flag("do_sample")?;
        let sampling = Sampling {
            temperature: if sampled { number("temperature", 1.0)? } else { 0.0 },
            // Without the key, transformers samples from 50.
            top_k: keys.count("top_k")?.unwrap_or(if sampled { 50 } else { 0 }),
            top_p: number("top_p", 1.0)?,
            min_p: number("min_p", 0.0)?,
            repetition_penalty: number("repetition_penalty", 1.0)?,
        };
        sampling.check().context("generation_config.json")?;
        Ok(Self {
            sampling,
            ends: keys.tokens("eos_token_id")?,
            tokens: keys.count("max_new_tokens")?,
            at_least: keys.count("min_new_tokens")?.unwrap_or(0),
            length: keys.count("max_length")?,
        })
    }
}

impl Sampling {
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

    /// Chooses the token after `logits` `[vocabulary]`, in which a repetition penalty stays.
    ///
    /// The order is that of transformers: repetition penalty, temperature, top-k, top-p, min-p.
    ///
    /// # Errors
    /// Where a logit is not a number.
    pub fn choose(&mut self, logits: &mut [f32]) -> Result<u32> {
        let wrong = logits.iter().position(|logit| logit.is_nan());
        ensure!(
            wrong.is_none(),
            "a logit is NaN: a weight of the model is too large, or its file is damaged"
        );
        self.penalize(logits);
        let token = match self.sampling.temperature {
            0.0 => likeliest(logits),
            _ => {
                let (tokens, weights) = self.candidates(logits);
                tokens[place(&weights, self.random.random())]
            }
        };
        self.seen.insert(token);
        Ok(token)
    }

    /// Makes tokens that were there before less likely.
    fn penalize(&self, logits: &mut [f32]) {
        let penalty = self.sampling.repetition_penalty as f32;
        if penalty != 1.0 {
            for token in &self.seen {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
    }

    /// The tokens to choose from, the likeliest first, and how likely each is as a part of that one.
    fn candidates(&self, logits: &[f32]) -> (Vec<u32>, Vec<f64>) {
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
        // A token that may not come has no weight at all.
        let likely =
            weights.iter().take_while(|weight| **weight >= min_p && **weight > 0.0).count();
        weights.truncate(in_top.count().min(likely).max(1));
        tokens.truncate(weights.len());
        (tokens, weights)
    }
}

/// Where the part `at` of the sum of weights is reached.
fn place(weights: &[f64], at: f64) -> usize {
    let mut left = at * weights.iter().sum::<f64>();
    let reached = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    reached.unwrap_or(weights.len() - 1)
}

/// The likelier first; of two that are as likely, the one with the smaller number.
fn order(logits: &[f32], a: u32, b: u32) -> Ordering {
    logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
}

fn likeliest(logits: &[f32]) -> u32 {
    let tokens = 0..logits.len() as u32;
    tokens.min_by(|a, b| order(logits, *a, *b)).expect("a vocabulary has tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(sampling: Sampling, seed: u64) -> Sampler {
        sampling.check().expect("in range");
        Sampler::new(sampling, seed, &[])
    }

    /// `tests/golden/sampling.py`.
    #[test]
    fn probabilities_are_those_of_transformers() {
        let golden = include_str!("../tests/golden/sampling.json");
        let golden: Value = serde_json::from_str(golden).expect("JSON");
        let cases = golden["cases"].as_array().expect("cases");
        assert_eq!(cases.len(), 9);
        for case in cases {
            let list = |key: &str| {
                let numbers = case[key].as_array().expect("a list").iter();
                numbers.map(|number| number.as_f64().expect("a number")).collect::<Vec<_>>()
            };
            let settings = &case["settings"];
            let number = |key: &str, otherwise: f64| settings[key].as_f64().unwrap_or(otherwise);
            let sampling = Sampling {
                temperature: number("temperature", f64::NAN),
                top_k: number("top_k", 0.0) as usize,
                top_p: number("top_p", 1.0),
                min_p: number("min_p", 0.0),
                repetition_penalty: number("repetition_penalty", 1.0),
            };
            let seen: Vec<u32> = list("seen").into_iter().map(|token| token as u32).collect();
            let sampler = Sampler::new(sampling, 0, &seen);
            let mut logits: Vec<f32> = list("logits").into_iter().map(|x| x as f32).collect();
            sampler.penalize(&mut logits);
            let (tokens, weights) = sampler.candidates(&logits);
            let total: f64 = weights.iter().sum();
            let mut found = vec![0.0; logits.len()];
            for (token, weight) in tokens.iter().zip(&weights) {
                found[*token as usize] = weight / total;
            }
            for (found, expected) in found.iter().zip(list("probabilities")) {
                assert_eq!(*found == 0.0, expected == 0.0, "{settings}");
                assert!((found - expected).abs() < 1e-6, "{settings}: {found} for {expected}");
            }
        }
    }

    /// As often as it is likely: within five standard deviations.
    #[test]
    fn tokens_come_as_often_as_they_are_likely() {
        let probabilities: [f64; 4] = [0.1, 0.5, 0.15, 0.25];
        let logits = probabilities.map(|p| p.ln() as f32).to_vec();
        let mut sampler = sampler(Sampling { temperature: 1.0, ..Sampling::default() }, 5);
        let (mut count, draws) = ([0; 4], 20_000);
        for _ in 0..draws {
            count[sampler.choose(&mut logits.clone()).expect("a token") as usize] += 1;
        }
        for (count, p) in count.into_iter().zip(probabilities) {
            let deviation = (f64::from(draws) * p * (1.0 - p)).sqrt();
            assert!((f64::from(count) - f64::from(draws) * p).abs() < 5.0 * deviation);
        }
        assert_eq!([0.0, 0.099, 0.101, 0.999].map(|at| place(&probabilities, at)), [0, 0, 1, 3]);
    }

    #[test]
    fn the_likeliest_token_is_the_first_of_equals() {
        let mut sampler = sampler(Sampling::default(), 0);
        assert_eq!(sampler.choose(&mut [1.0, 3.0, -2.0, 3.0]).expect("a token"), 1);
        assert_eq!(sampler.choose(&mut [f32::NEG_INFINITY, -5.0]).expect("a token"), 1);
        let error = sampler.choose(&mut [0.0, f32::NAN]).expect_err("no number");
        assert!(error.to_string().contains("NaN"), "{error}");
    }

    #[test]
    fn files_say_how_tokens_are_chosen() {
        let folder = tempfile::tempdir().expect("a folder");
        let load = |json: &str| {
            std::fs::write(folder.path().join("generation_config.json"), json).expect("written");
            let mut ignored = vec![];
            let loaded = Defaults::load(folder.path(), |key| ignored.push(key.to_owned()));
            loaded.map(|defaults| (defaults, ignored))
        };
        let json = r#"{"eos_token_id": [7, 2], "top_k": 3, "max_new_tokens": 9, "min_new_tokens": 4, "max_length": 20}"#;
        let (defaults, ignored) = load(json).expect("read");
        assert_eq!((defaults.sampling.temperature, defaults.sampling.top_k), (0.0, 3));
        assert_eq!((defaults.ends, ignored.len()), (vec![7, 2], 0));
        assert_eq!((defaults.tokens, defaults.at_least, defaults.length), (Some(9), 4, Some(20)));
        // transformers' own default.
        let json = r#"{"do_sample": true, "temperature": 0.6, "num_beams": 1, "typical_p": 0.9, "suppress_tokens": [5]}"#;
        let (Defaults { sampling, tokens, at_least, length, .. }, ignored) =
            load(json).expect("read");
        assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.6, 50, 1.0));
        assert_eq!((tokens, at_least, length), (None, 0, None));
        assert_eq!(ignored, ["suppress_tokens", "typical_p"]);
        for (json, word) in [
            ("[1]", "no object"),
            (r#"{"top_k": 0.5}"#, "top_k"),
            (r#"{"top_p": "x"}"#, "top_p"),
            (r#"{"max_length": -1}"#, "max_length"),
        ] {
            let error = format!("{:#}", load(json).expect_err(word));
            assert!(error.contains(word), "{error}");
        }
    }

    /// The keys of `GenerationConfig.__init__` of transformers 5.24 that change what one text becomes, with a value that does, and one key of a program that nobody knows.
    #[test]
    fn keys_that_are_not_known_are_told() {
        let keys = r#"{"min_length": 9, "sequence_bias": [[[5], -1.0]], "begin_suppress_tokens": [5], "max_time": 2.5, "stop_strings": "x", "top_h": 0.4,
            "bad_words_ids": [[5]], "forced_bos_token_id": 5, "forced_eos_token_id": [5], "exponential_decay_length_penalty": [5, 1.1],
            "token_healing": true, "watermarking_config": {"bias": 2.5}, "dola_layers": "high", "constraints": [5], "force_words_ids": [[5]],
            "num_return_sequences": 3, "encoder_no_repeat_ngram_size": 2, "guidance_scale": 2.0, "chat_format": "chatml"}"#;
        let keys: Value = serde_json::from_str(keys).expect("JSON");
        let folder = tempfile::tempdir().expect("a folder");
        let told = |json: &Value| {
            let path = folder.path().join("generation_config.json");
            std::fs::write(path, json.to_string()).expect("written");
            let mut told = vec![];
            Defaults::load(folder.path(), |key| told.push(key.to_owned())).expect("read");
            told.sort_unstable();
            told
        };
        let mut names: Vec<&String> = keys.as_object().expect("an object").keys().collect();
        names.sort_unstable();
        assert_eq!(told(&keys).iter().collect::<Vec<_>>(), names);
        // What is off, empty, or as it is without the key. Beams are what some keys are for alone.
        let nothing = r#"{"suppress_tokens": [], "begin_suppress_tokens": null, "sequence_bias": {}, "token_healing": false, "min_length": 0,
            "num_beams": 1, "typical_p": 1.0, "guidance_scale": 1, "no_repeat_ngram_size": 0, "use_cache": true, "pad_token_id": 5,
            "bos_token_id": 5, "length_penalty": 2.0, "transformers_version": "5.24.0", "_from_model_config": true, "something_new": null}"#;
        assert!(told(&serde_json::from_str(nothing).expect("JSON")).is_empty());
    }
}
