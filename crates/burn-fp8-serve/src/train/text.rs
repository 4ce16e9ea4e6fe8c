//! The text that a model learns from, and its tokenizer.

use anyhow::{Result, anyhow, ensure};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// Lines of a block, at most; every twentieth block is held out.
const BLOCK: usize = 100;
const HELD_OUT_EVERY: usize = 20;

/// What a text begins and ends with.
pub(super) const END: &str = "<|endoftext|>";

/// A text in tokens, in two parts of the same kind.
pub(super) struct Text {
    pub(super) tokenizer: Tokenizer,
    /// What the model learns from.
    pub(super) seen: Vec<u32>,
    /// What it never sees.
    pub(super) held_out: Vec<u32>,
}

impl Text {
    /// Trains a byte-level BPE of so many tokens on the part that the model learns from.
    pub(super) fn load(text: &str, vocabulary: usize) -> Result<Self> {
        Self::of(text, |seen| tokenizer(seen, vocabulary))
    }

    /// For a tokenizer that may be made of the part that the model learns from.
    pub(super) fn of(
        text: &str,
        tokenizer: impl FnOnce(&[&str]) -> Result<Tokenizer>,
    ) -> Result<Self> {
        let [seen, held_out] = split(text)?;
        let tokenizer = tokenizer(&seen)?;
        let (seen, held_out) = (encode(&tokenizer, &seen)?, encode(&tokenizer, &held_out)?);
        Ok(Self { tokenizer, seen, held_out })
    }
}

/// The lines that a model learns from, and those that it never sees.
fn split(text: &str) -> Result<[Vec<&str>; 2]> {
    let (mut seen, mut held_out) = (vec![], vec![]);
    let block = (text.lines().count() / HELD_OUT_EVERY).clamp(1, BLOCK);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match index / block % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 {
            true => held_out.push(line),
            false => seen.push(line),
        }
    }
    ensure!(
        !held_out.is_empty(),
        "the text has {} lines; {HELD_OUT_EVERY} are needed, so that some can be held out",
        seen.len()
    );
    Ok([seen, held_out])
}

/// The tokens of lines, one line after the other.
fn encode(tokenizer: &Tokenizer, lines: &[&str]) -> Result<Vec<u32>> {
    let mut tokens = vec![];
    for line in lines {
        let encoding = tokenizer.encode(*line, false);
        tokens.extend(encoding.map_err(|error| anyhow!("the tokenizer: {error}"))?.get_ids());
    }
    Ok(tokens)
}

/// A byte-level BPE as GPT-2's: a blank belongs to the word after it, and any text has tokens.
fn tokenizer(lines: &[&str], vocabulary: usize) -> Result<Tokenizer> {
    let failed = |error| anyhow!("the tokenizer: {error}");
    let mut tokenizer = Tokenizer::new(BPE::default());
    let byte_level = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(byte_level)).with_decoder(Some(byte_level));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(END, true)]);
    let mut trainer = TrainerWrapper::from(trainer.build());
    tokenizer.train(&mut trainer, lines.iter()).map_err(failed)?;
    Ok(tokenizer)
}
