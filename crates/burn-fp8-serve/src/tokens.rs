//! Texts to tokens and back.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::config::{Config, folder_of};

/// The largest file that is read whole, in bytes. Vocabularies of 260,000 tokens take 35 MB.
const LIMIT: u64 = 256 << 20;

/// Reads a text file of the folder of a model, which may be given as a file in it; none where there is no such file.
pub(crate) fn read_file(model: &Path, name: &str) -> Result<Option<String>> {
    let path = folder_of(model).join(name);
    let shown = path.display();
    match fs::metadata(&path) {
        Ok(file) => ensure!(file.is_file(), "{shown} is no file"),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    }
    let mut text = String::new();
    let file = File::open(&path).with_context(|| format!("cannot read {shown}"))?;
    let read = file.take(LIMIT + 1).read_to_string(&mut text);
    read.with_context(|| format!("cannot read {shown}"))?;
    ensure!(
        text.len() as u64 <= LIMIT,
        "{shown} is longer than {LIMIT} bytes; no file of its kind is"
    );
    Ok(Some(text))
}

/// Reads a JSON file, likewise.
pub(crate) fn read_json(model: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = read_file(model, name)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).with_context(|| format!("{} is no JSON", folder_of(model).join(name).display()))
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokens {
    tokenizer: Tokenizer,
}

impl Tokens {
    /// Reads `tokenizer.json` of a model's folder.
    ///
    /// # Errors
    /// Where there is none, or it is damaged, and where it has a token that the model's embedding has not.
    pub fn load(model: &Path, config: &Config) -> Result<Self> {
        let path = folder_of(model).join("tokenizer.json");
        let text = read_file(model, "tokenizer.json")?;
        let text = text.with_context(|| {
            format!("{} is missing: fetch the model's tokenizer, too", path.display())
        })?;
        let tokenizer = guarded(|| text.parse::<Tokenizer>());
        let mut tokenizer = tokenizer.with_context(|| format!("{} is damaged", path.display()))?;
        // What a training left there: a prompt is neither cut nor filled.
        tokenizer.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        tokenizer.with_padding(None);
        let vocabulary = tokenizer.get_vocab(true);
        let largest = vocabulary.iter().max_by_key(|(_, token)| **token);
        let (text, token) = largest.with_context(|| format!("{} has no tokens", path.display()))?;
        ensure!(
            (*token as usize) < config.vocabulary,
            "{} has token {token}, {text:?}; the model's embedding ends at {}: they do not belong together",
            path.display(),
            config.vocabulary - 1
        );
        Ok(Self { tokenizer })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a text; with `special`, what a text begins and ends with is added.
    ///
    /// # Errors
    /// Where the tokenizer cannot: a text with characters that it has no token for.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = guarded(|| self.tokenizer.encode(text, special));
        Ok(encoding.context("the prompt has no tokens")?.get_ids().to_vec())
    }

    /// The text of tokens; with `special`, tokens that stand for no text are shown.
    ///
    /// # Errors
    /// Where the tokenizer cannot.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String> {
        let text = guarded(|| self.tokenizer.decode(tokens, !special));
        text.context("the tokens have no text")
    }
}

/// What a tokenizer gives. Some of those that a file can describe panic.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| anyhow!("{error}")),
        Err(_) => bail!("the tokenizer fails: its file is damaged"),
    }
}

/// A text that grows token by token, in whole characters, until one of some texts ends it.
#[derive(Debug)]
pub struct Writer<'a> {
    tokens: &'a Tokens,
    stops: &'a [String],
    /// Tokens whose text is not settled, after those of the piece before, which the decoder must see: it may trim the first token, or make a character of
    /// several.
    recent: Vec<u32>,
    /// Tokens of the piece before.
    before: usize,
    /// Their text.
    taken: String,
    /// What may be the beginning of a text that ends it.
    held: String,
    text: String,
    stopped: bool,
}

/// Characters that are not whole yet.
const INCOMPLETE: char = '\u{FFFD}';

impl<'a> Writer<'a> {
    /// A text that ends before any of `stops`, none of them empty. It goes on after the text of `prompt`, or begins anew where that is empty.
    ///
    /// # Errors
    /// Where the tokenizer has no text for the tokens.
    pub fn new(tokens: &'a Tokens, stops: &'a [String], prompt: &[u32]) -> Result<Self> {
        let recent: Vec<u32> = prompt.last().copied().into_iter().collect();
        let taken = tokens.decode(&recent, false)?;
        let (before, held, text) = (recent.len(), String::new(), String::new());
        Ok(Self { tokens, stops, recent, before, taken, held, text, stopped: false })
    }

    /// Adds a token, and gives what is new of the text.
    ///
    /// # Errors
    /// Where the tokenizer has no text for the tokens.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.recent.push(token);
        let text = self.tokens.decode(&self.recent, false)?;
        if text.ends_with(INCOMPLETE) || text.len() <= self.taken.len() {
            return Ok(String::new());
        }
        let new = match text.strip_prefix(&self.taken[..]) {
            Some(new) => new.to_owned(),
            // Tokens that changed what was before them: what was printed stays.
            None => text.chars().skip(self.taken.chars().count()).collect(),
        };
        self.recent.drain(..self.before);
        self.before = self.recent.len();
        self.taken = self.tokens.decode(&self.recent, false)?;
        Ok(self.settle(new))
    }

    /// What is held back, where no token follows.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.held);
        self.text += &rest;
        rest
    }

    /// Whether one of the texts ended it.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn settle(&mut self, new: String) -> String {
        self.held += &new;
        let stop = self.stops.iter().filter_map(|stop| self.held.find(&stop[..])).min();
        let settled = match stop {
            Some(place) => {
                self.stopped = true;
                let mut held = std::mem::take(&mut self.held);
                held.truncate(place);
                held
            }
            None => {
                let is_beginning = |place: &usize| {
                    self.stops.iter().any(|stop| stop.starts_with(&self.held[*place..]))
                };
                let place = self.held.char_indices().map(|(place, _)| place).find(is_beginning);
                let held = self.held.split_off(place.unwrap_or(self.held.len()));
                std::mem::replace(&mut self.held, held)
            }
        };
        self.text += &settled;
        settled
    }
}
