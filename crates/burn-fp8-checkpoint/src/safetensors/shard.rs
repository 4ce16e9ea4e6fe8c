//! One safetensors file.

use std::path::Path;

use super::dtype::Dtype;
use super::header::{self, MAX_HEADER};
use super::ranges;
use super::source::Source;
use crate::error::CheckpointError;

/// A tensor of a file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Where its data begin, from the start of the file.
    pub(crate) begin: u64,
    pub(crate) bytes: u64,
}

/// A file and what its header says.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) source: Source,
    /// By name.
    pub(crate) entries: Vec<Entry>,
}

impl Shard {
    /// Reads and checks the header: its length, its JSON, and the ranges of its tensors against the length of the file.
    pub(crate) fn open(path: &Path) -> Result<Self, CheckpointError> {
        const AGAIN: &str = "the file is damaged or cut off: fetch it again";
        let source = Source::open(path)?;
        let error = |found: String, expected: String| {
            Err(CheckpointError::file(path, found, expected, AGAIN))
        };
        if source.length < 8 {
            let expected = "a safetensors file, which begins with 8 bytes, the header's length";
            return error(format!("{} bytes", source.length), expected.into());
        }
        let mut length = [0; 8];
        source.read_at(&mut length, 0)?;
        let header = u64::from_le_bytes(length);
        if header > MAX_HEADER {
            let expected = format!("at most {MAX_HEADER} in a safetensors file");
            return error(format!("a header of {header} bytes"), expected);
        }
        if header > source.length - 8 {
            let found = format!("a header of {header} bytes");
            return error(found, format!("at most {}, the rest of the file", source.length - 8));
        }
        let mut json = vec![0; header as usize];
        source.read_at(&mut json, 8)?;
        let data = header + 8;
        let tensors = ranges::check(path, header::parse(path, &json)?, source.length - data)?;
        let entries = tensors.into_iter().map(|tensor| Entry {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            begin: data + tensor.begin,
            bytes: tensor.bytes,
        });
        Ok(Self { entries: entries.collect(), source })
    }
}
