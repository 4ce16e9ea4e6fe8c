//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::CheckpointError;
use crate::safetensors::{MAX_NAME, read_small};
use crate::text;

/// The largest index, in bytes. That of DeepSeek-V3, with 92 thousand tensors, has 9 MB.
const MAX_INDEX: u64 = 64 << 20;

/// The most shards. The largest models have some hundreds.
const MAX_SHARDS: usize = 10_000;

/// An index.
pub(super) struct Index {
    /// Names of files, each once, in the order in which they occur.
    pub(super) shards: Vec<String>,
    /// Tensors and the places of their shards in `shards`, by name.
    pub(super) tensors: Vec<(String, u32)>,
}

impl Index {
    /// Reads an index. Names of shards are checked: they lie beside it.
    pub(super) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let json = read_small(path, MAX_INDEX)?;
        let parsed: Parsed = serde_json::from_slice(&json).map_err(|error| {
            let found = format!("JSON that cannot be read ({})", text::reason(error));
            let expected = "an object with `weight_map`, the name of a file for each tensor";
            CheckpointError::file(path, found, expected, "fetch the file again")
        })?;
        let mut index = parsed.weight_map.0;
        if let Some(shard) = index.shards.iter().find(|shard| !is_plain(shard)) {
            let found = format!("the shard {}", text::name(shard));
            let expected = "plain names of files in the same folder";
            let advice = "do not trust this checkpoint: its index points elsewhere";
            return Err(CheckpointError::file(path, found, expected, advice));
        }
        index.tensors.sort();
        if let Some(twice) = index.tensors.windows(2).find(|two| two[0].0 == two[1].0) {
            let advice = "the index is damaged: fetch it again";
            let name = &twice[0].0;
            return Err(CheckpointError::tensor(path, name, "it twice", "it once", advice));
        }
        Ok(index)
    }
}

/// Whether a name is one of a file in a folder, on every system.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}

#[derive(Deserialize)]
struct Parsed {
    weight_map: WeightMap,
}

struct WeightMap(Index);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor).map(Self)
    }
}

/// Keeps the name of each shard once, not once for each tensor.
struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of names of files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let mut places = HashMap::new();
        let mut index = Index { shards: vec![], tensors: vec![] };
        while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
            if tensor.len().max(shard.len()) > MAX_NAME {
                let reason =
                    format!("{}: a name of more than {MAX_NAME} bytes", text::name(&tensor));
                return Err(A::Error::custom(reason));
            }
            let place = *places.entry(shard).or_insert_with_key(|shard| {
                index.shards.push(shard.clone());
                index.shards.len() - 1
            });
            if place >= MAX_SHARDS {
                return Err(A::Error::custom(format!("more than {MAX_SHARDS} shards")));
            }
            index.tensors.push((tensor, place as u32));
        }
        Ok(index)
    }
}
