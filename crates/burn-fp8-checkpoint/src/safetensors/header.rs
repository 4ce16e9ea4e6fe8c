//! The JSON header of a safetensors file.

use std::fmt;
use std::path::Path;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::CheckpointError;
use crate::text;

/// The longest header, in bytes: safetensors' own limit.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// The longest name of a tensor, in bytes: time to look for parts of names stays small.
pub(crate) const MAX_NAME: usize = 1024;

/// The most dimensions of a tensor: PyTorch has at most 64, models a handful.
const MAX_DIMENSIONS: usize = 16;

/// A tensor as the header has it, unchecked.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) shape: Vec<usize>,
    /// Begin and end, from the end of the header on.
    pub(super) range: (u64, u64),
}

/// Reads a header. Names that occur twice are in it twice.
pub(super) fn parse(path: &Path, json: &[u8]) -> Result<Vec<Described>, CheckpointError> {
    const EXPECTED: &str =
        "a JSON object with dtype, shape and data_offsets of each tensor, as safetensors has it";
    if json.first() != Some(&b'{') {
        let start = String::from_utf8_lossy(&json[..json.len().min(16)]);
        let found = format!("a header that begins with \"{}\", not {{", text::text(&start));
        return Err(CheckpointError::file(path, found, EXPECTED, "fetch the file again"));
    }
    let header: Header = serde_json::from_slice(json).map_err(|error| {
        let found = format!("a header that cannot be read ({})", text::reason(error));
        CheckpointError::file(path, found, EXPECTED, "fetch the file again")
    })?;
    Ok(header.0)
}

struct Header(Vec<Described>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor).map(Self)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<Described>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = vec![];
        while let Some(name) = map.next_key::<String>()? {
            let of_tensor =
                |error: A::Error| A::Error::custom(format!("{}: {error}", text::name(&name)));
            if name.len() > MAX_NAME {
                let reason = format!("a name of {} bytes, of at most {MAX_NAME}", name.len());
                return Err(of_tensor(A::Error::custom(reason)));
            }
            if name == "__metadata__" {
                map.next_value::<Metadata>().map_err(of_tensor)?;
                continue;
            }
            let Fields { dtype, shape, data_offsets: range } =
                map.next_value().map_err(of_tensor)?;
            tensors.push(Described { name, dtype, shape: shape.0, range });
        }
        Ok(tensors)
    }
}

/// Texts by names. Nothing in them matters here; that they are such matters to other readers.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(Metadata)
            }

            fn visit_unit<E>(self) -> Result<Metadata, E> {
                Ok(Metadata)
            }
        }
        deserializer.deserialize_any(Texts)
    }
}

#[derive(Deserialize)]
struct Fields {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

/// Sizes, no more than a tensor can have: a header may hold millions of numbers.
struct Shape(Vec<usize>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Sizes;
        impl<'de> Visitor<'de> for Sizes {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_DIMENSIONS} sizes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut sizes = vec![];
                while sizes.len() < MAX_DIMENSIONS {
                    match list.next_element()? {
                        Some(size) => sizes.push(size),
                        None => return Ok(Shape(sizes)),
                    }
                }
                match list.next_element::<IgnoredAny>()? {
                    Some(_) => Err(A::Error::invalid_length(MAX_DIMENSIONS + 1, &self)),
                    None => Ok(Shape(sizes)),
                }
            }
        }
        deserializer.deserialize_seq(Sizes)
    }
}
