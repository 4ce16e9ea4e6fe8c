//! The header of a safetensors file that is to be written.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::error::CheckpointError;
use crate::safetensors::{Dtype, MAX_HEADER};

/// A tensor to be written.
pub(super) struct Part<'a> {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// Sorts tensors as safetensors does, larger elements first and then by name, so that each begins at a multiple of its element's size; and makes the
/// bytes before them: the header's length and the header, filled with spaces to a multiple of 8.
pub(super) fn header(parts: &mut [Part<'_>]) -> Result<Vec<u8>, CheckpointError> {
    parts.sort_by(|a, b| b.dtype.bits().cmp(&a.dtype.bits()).then(a.name.cmp(&b.name)));
    let mut header = Map::new();
    // transformers asks for it.
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut end = 0;
    for part in &*parts {
        let begin = end;
        end += part.bytes.len();
        let Part { name, dtype, shape, .. } = part;
        let tensor = json!({ "dtype": dtype.name(), "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), tensor);
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    if json.len() as u64 > MAX_HEADER {
        let found = format!("names and shapes of {} bytes", json.len());
        let expected = format!("at most {MAX_HEADER} in a file");
        return Err(CheckpointError::invalid("a checkpoint to write", found, expected));
    }
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}
