//! Texts to tokens and back.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::config::Config;

/// The largest file that is read whole, in bytes. Vocabularies of 260,000 tokens take 35 MB.
const LIMIT: u64 = 256 << 20;

/// Reads a text file of a model's folder; none where there is no such file.
pub(crate) fn read_file(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    let size = match fs::metadata(&path) {
        Ok(file) => file.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    ensure!(size <= LIMIT, "{} has {size} bytes; at most {LIMIT} are read", path.display());
    let text = fs::read_to_string(&path);
    text.map(Some).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads a JSON file of a model's folder; none where there is no such file.
pub(crate) fn read_json(folder: &Path, name: &str) -> Result<Option<Value>> {
    let Some(text) = read_file(folder, name)? else { return Ok(None) };
    let value = serde_json::from_str(&text);
    value.map(Some).with_context(|| format!("{} is no JSON", folder.join(name).display()))
}

/// The tokenizer of a model.
#[derive(Debug)]
pub struct Tokens {
    tokenizer: Tokenizer,
}

impl Tokens {
    /// Reads `tokenizer.json` of a folder.
    ///
    /// # Errors
    /// Where there is none, or it is damaged, and where it has a token that the model's embedding has not.
    pub fn load(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let text = read_file(folder, "tokenizer.json")?;
        let text = text.with_context(|| {
            format!("{} is missing: fetch the model's tokenizer, too", path.display())
        })?;
        let tokenizer = text.parse::<Tokenizer>().map_err(|error| anyhow!("{error}"));
        let tokenizer = tokenizer.with_context(|| format!("{} is damaged", path.display()))?;
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
        let encoding = self.tokenizer.encode(text, special);
        Ok(encoding.map_err(|error| anyhow!("the prompt: {error}"))?.get_ids().to_vec())
    }

    /// The text of tokens; with `special`, tokens that stand for no text are shown.
    ///
    /// # Errors
    /// Where the tokenizer cannot.
    pub fn decode(&self, tokens: &[u32], special: bool) -> Result<String> {
        let text = self.tokenizer.decode(tokens, !special);
        text.map_err(|error| anyhow!("the tokens have no text: {error}"))
    }
}

/// A text that grows token by token, in whole characters, until one of some texts ends it.
#[derive(Debug)]
pub struct Writer<'a> {
    tokens: &'a Tokens,
    stops: &'a [String],
    /// Tokens whose text is not settled, after those that the decoder must see before them.
    recent: Vec<u32>,
    /// The text of `recent` that was taken.
    taken: String,
    /// What may be the beginning of a text that ends it.
    held: String,
    text: String,
    stopped: bool,
}

/// Characters that are not whole yet.
const INCOMPLETE: char = '\u{FFFD}';

impl<'a> Writer<'a> {
    /// A text that ends before any of `stops`, none of them empty.
    pub fn new(tokens: &'a Tokens, stops: &'a [String]) -> Self {
        let (recent, taken, held, text) = Default::default();
        Self { tokens, stops, recent, taken, held, text, stopped: false }
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
        // A decoder may trim the first token, so the last one stays.
        self.recent = vec![token];
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
