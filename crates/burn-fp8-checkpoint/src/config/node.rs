//! A value of a configuration that knows its file and its key, so that errors can say them.

use std::path::Path;

use serde_json::Value;

use crate::error::CheckpointError;
use crate::safetensors::read_small;
use crate::{json, text};

/// The largest configuration, in bytes.
const MAX_CONFIG: u64 = 16 << 20;

/// The most values in a configuration: each takes tens of bytes of memory, whatever its length in the file.
const MAX_VALUES: usize = 1 << 20;

/// Reads a file as JSON.
pub(super) fn read(path: &Path) -> Result<(String, Value), CheckpointError> {
    let error = |found: String| {
        CheckpointError::file(path, found, "a JSON object of UTF-8 text", "fetch the file again")
    };
    let json = String::from_utf8(read_small(path, MAX_CONFIG)?)
        .map_err(|_| error("bytes that are not UTF-8".into()))?;
    // Values are separated or begun by one of these.
    if json.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() > MAX_VALUES {
        let (found, expected) = ("too many values", format!("at most {MAX_VALUES}"));
        return Err(CheckpointError::file(path, found, expected, ""));
    }
    match serde_json::from_str(&json::marked(&json, "")) {
        Ok(value @ Value::Object(_)) => Ok((json, value)),
        Ok(_) => Err(error("JSON that is no object".into())),
        Err(reason) => Err(error(format!("JSON that cannot be read ({})", text::reason(reason)))),
    }
}

/// A value and where it is.
#[derive(Clone)]
pub(super) struct Node<'a> {
    file: &'a Path,
    key: String,
    value: &'a Value,
}

impl<'a> Node<'a> {
    /// A whole file.
    pub(super) fn new(file: &'a Path, value: &'a Value) -> Self {
        Self { file, key: String::new(), value }
    }

    fn below(&self, key: &str) -> String {
        match self.key.as_str() {
            "" => key.to_owned(),
            above => format!("{above}.{key}"),
        }
    }

    /// The value of a key. Null is as good as absent, and where there is no object, nothing is in it.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key).filter(|value| !value.is_null())?;
        Some(Self { file: self.file, key: self.below(key), value })
    }

    /// Whether a key is there, be it null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some()
    }

    /// The value of a key that has to be there.
    pub(super) fn need(
        &self,
        key: &str,
        expected: impl Into<String>,
    ) -> Result<Self, CheckpointError> {
        self.get(key).ok_or_else(|| self.wrong(key, expected))
    }

    /// The values of an object, by their keys.
    pub(super) fn entries(&self) -> Result<Vec<Self>, CheckpointError> {
        let object = self.value.as_object().ok_or_else(|| self.error("an object"))?;
        let node =
            |(key, value): (&String, _)| Self { file: self.file, key: self.below(key), value };
        Ok(object.iter().map(node).collect())
    }

    /// Whether there is something in it: an object or a list that is not empty, or another value that is not `false`.
    pub(super) fn says_something(&self) -> bool {
        match self.value {
            Value::Object(object) => !object.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Null | Value::Bool(false) => false,
            _ => true,
        }
    }

    /// A warning about keys that say something and are none of these.
    pub(super) fn others(&self, known: &[&str]) -> Option<String> {
        let keys = self.value.as_object()?.keys().map(|key| &key[..]);
        let says_something = |key: &&str| self.get(key).is_some_and(|value| value.says_something());
        let mut others = keys.filter(|key| !known.contains(key)).filter(says_something).peekable();
        others.peek()?;
        let others = text::some_names(others);
        Some(self.warning(&format!(
            "keys that are not known here are not used, and may change what is meant: {others}"
        )))
    }

    /// The object that this is, or an error.
    pub(super) fn object(self) -> Result<Self, CheckpointError> {
        match self.value {
            Value::Object(_) => Ok(self),
            _ => Err(self.error("an object")),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str, CheckpointError> {
        self.value.as_str().ok_or_else(|| self.error("a text"))
    }

    pub(super) fn boolean(&self) -> Option<bool> {
        self.value.as_bool()
    }

    pub(super) fn integer(&self) -> Option<i64> {
        self.value.as_i64()
    }

    pub(super) fn positive(&self) -> Option<usize> {
        positive(self.value)
    }

    /// Rows and columns of a block.
    pub(super) fn block(&self) -> Result<[usize; 2], CheckpointError> {
        let sizes = self.value.as_array().and_then(|list| list.iter().map(positive).collect());
        self.two(sizes, "[128, 128]")
    }

    /// The same as a list, or as a text of earlier versions of compressed-tensors: `128x128`.
    pub(super) fn block_structure(&self) -> Result<[usize; 2], CheckpointError> {
        let Some(text) = self.value.as_str() else { return self.block() };
        let size = |size: &str| size.parse().ok().filter(|size| *size > 0);
        self.two(text.split('x').map(size).collect(), "[128, 128] or \"128x128\"")
    }

    fn two(&self, sizes: Option<Vec<usize>>, example: &str) -> Result<[usize; 2], CheckpointError> {
        let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
        let expected = "two positive integers, rows and columns of a block, such as";
        sizes.ok_or_else(|| self.error(format!("{expected} {example}")))
    }

    pub(super) fn texts(&self) -> Result<Vec<&'a str>, CheckpointError> {
        let texts = self.value.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| self.error("a list of texts"))
    }

    /// That this is not what was expected.
    pub(super) fn error(&self, expected: impl Into<String>) -> CheckpointError {
        self.error_with(expected, "")
    }

    /// That this is not what was expected, and what to do.
    pub(super) fn error_with(&self, expected: impl Into<String>, advice: &str) -> CheckpointError {
        self.about(&self.key, text::text(&self.value.to_string()), expected, advice)
    }

    /// That the value of a key is not what was expected, or absent.
    pub(super) fn wrong(&self, key: &str, expected: impl Into<String>) -> CheckpointError {
        match self.get(key) {
            Some(value) => value.error(expected),
            None => self.about(&self.below(key), "no such key, or null".into(), expected, ""),
        }
    }

    fn about(
        &self,
        key: &str,
        found: String,
        expected: impl Into<String>,
        advice: &str,
    ) -> CheckpointError {
        let (path, key, expected) = (self.file.into(), key.into(), expected.into());
        CheckpointError::Config { path, key, found, expected, advice: advice.into() }
    }

    /// A warning that it asks for a cache in FP8, which whoever runs the model holds.
    pub(super) fn cache_warning(&self) -> String {
        self.warning("scales of a quantized KV cache are left as plain tensors")
    }

    /// A warning about it.
    pub(super) fn warning(&self, message: &str) -> String {
        format!("{}: {}: {message}", text::path(self.file), text::name(&self.key))
    }
}

fn positive(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok().filter(|number| *number > 0)
}
