//! JSON objects of tensors by name, read within limits: the header of a safetensors file, and the map of an index.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

use arrayvec::ArrayVec;
use serde::de::{DeserializeOwned, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::dtype::Dtype;
use crate::text;

/// The most tensors of all files of a checkpoint: each takes some hundreds of bytes of memory. DeepSeek-V3 has 92 thousand.
pub(crate) const MAX_TENSORS: usize = 1 << 19;

/// The longest name of a tensor, in bytes: time to look for parts of names stays small.
pub(crate) const MAX_NAME: usize = 1024;

/// The most dimensions of a tensor: PyTorch has at most 64, models a handful.
const MAX_DIMENSIONS: usize = 16;

/// A tensor as a header has it, unchecked.
#[derive(Deserialize)]
pub(super) struct Described {
    pub(super) dtype: Dtype,
    pub(super) shape: Shape,
    /// Begin and end, from the end of the header on.
    #[serde(rename = "data_offsets")]
    pub(super) range: (u64, u64),
}

/// Sizes, no more than a tensor can have: a header may hold millions of numbers.
#[derive(Deserialize)]
#[serde(from = "ArrayVec<usize, MAX_DIMENSIONS>")]
pub(super) struct Shape(pub(super) Vec<usize>);

impl From<ArrayVec<usize, MAX_DIMENSIONS>> for Shape {
    fn from(sizes: ArrayVec<usize, MAX_DIMENSIONS>) -> Self {
        Self(sizes.to_vec())
    }
}

/// What an object has for each name. Names that occur twice are in it twice.
pub(crate) struct Named<T> {
    /// As many as a checkpoint may have.
    pub(crate) values: Vec<(String, T)>,
    /// How many there are in the object.
    pub(crate) count: usize,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NamedVisitor(PhantomData))
    }
}

struct NamedVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for NamedVisitor<T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut values, mut count, mut metadata) = (vec![], 0, false);
        while let Some(name) = map.next_key::<String>()? {
            let of_name =
                |error: A::Error| A::Error::custom(format!("{}: {error}", text::name(&name)));
            if name.len() > MAX_NAME {
                let reason = format!("a name of {} bytes, of at most {MAX_NAME}", name.len());
                return Err(of_name(A::Error::custom(reason)));
            }
            if name == "__metadata__" {
                if metadata {
                    return Err(of_name(A::Error::custom("it is there twice")));
                }
                metadata = true;
                map.next_value::<Option<HashMap<Text, Text>>>().map_err(of_name)?;
                continue;
            }
            count += 1;
            match count > MAX_TENSORS {
                true => drop(map.next_value::<IgnoredAny>()?),
                false => {
                    let value = map.next_value().map_err(of_name)?;
                    values.push((name, value));
                }
            }
        }
        Ok(Named { values, count })
    }
}

/// A text that is not kept: of a map of them one is.
#[derive(Deserialize, PartialEq, Eq, Hash)]
#[serde(from = "String")]
struct Text;

impl From<String> for Text {
    fn from(_: String) -> Self {
        Self
    }
}
