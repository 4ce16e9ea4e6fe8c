//! Where the amax of a scale comes from.

use core::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::granularity::Granularity;
use crate::json::Object;

/// Where the amax of a scale comes from.
///
/// As JSON `"current"`, `"delayed"`, or with options: `{"current": "per_row"}`, `{"current": "mxfp8"}`,
/// `{"delayed": {"history_length": 16, "amax_choice": "most_recent"}}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// From the tensor that is about to be quantized.
    Current(Granularity),
    /// From the amax history of earlier steps. One scale per tensor.
    Delayed(Delayed),
}

impl Default for Scaling {
    fn default() -> Self {
        Self::Current(Granularity::PerTensor)
    }
}

/// Delayed scaling: the options of the amax history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delayed {
    /// How many steps the history holds. Between 1 and [`MAX_HISTORY_LENGTH`](crate::Recipe::MAX_HISTORY_LENGTH).
    pub history_length: usize,
    /// Which amax of the history counts.
    pub amax_choice: AmaxChoice,
}

impl Delayed {
    /// The maximum of 1024 steps, as in Flax and TransformerEngine.
    pub const DEFAULT: Self = Self { history_length: 1024, amax_choice: AmaxChoice::Maximum };
}

impl Default for Delayed {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which amax of a history counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AmaxChoice {
    /// The largest.
    #[default]
    Maximum,
    /// That of the step before.
    MostRecent,
}

/// Not derived: `"current"` and `"delayed"` by themselves stand for the default options.
impl<'de> Deserialize<'de> for Scaling {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalingVisitor;

        const NAMES: &[&str] = &["current", "delayed"];

        impl<'de> Visitor<'de> for ScalingVisitor {
            type Value = Scaling;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"current\", \"delayed\", {{\"current\": …}} or {{\"delayed\": {{…}}}}")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Scaling, E> {
                match name {
                    "current" => Ok(Scaling::default()),
                    "delayed" => Ok(Scaling::Delayed(Delayed::DEFAULT)),
                    name => Err(E::unknown_variant(name, NAMES)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scaling, A::Error> {
                let name: Option<String> = map.next_key()?;
                let scaling = match name.as_deref() {
                    Some("current") => Scaling::Current(map.next_value()?),
                    Some("delayed") => Scaling::Delayed(map.next_value::<Object<_>>()?.0),
                    Some(name) => return Err(A::Error::unknown_variant(name, NAMES)),
                    None => return Err(A::Error::invalid_length(0, &self)),
                };
                match map.next_key::<String>()? {
                    Some(name) if NAMES.contains(&name.as_str()) => {
                        Err(A::Error::custom("scaling is either current or delayed"))
                    }
                    Some(name) => Err(A::Error::unknown_field(&name, &[])),
                    None => Ok(scaling),
                }
            }
        }

        deserializer.deserialize_any(ScalingVisitor)
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Current(granularity) => granularity.fmt(f),
            Self::Delayed(Delayed { history_length, amax_choice }) => {
                write!(f, "delayed scaling ({amax_choice} of {history_length})")
            }
        }
    }
}

impl fmt::Display for AmaxChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Maximum => "maximum amax",
            Self::MostRecent => "most recent amax",
        })
    }
}
