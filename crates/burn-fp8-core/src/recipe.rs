//! How scales are chosen.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// How scales are chosen: current scaling, and its options.
///
/// Current scaling measures the amax of each tensor just before it is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    /// The scaling rule.
    pub scaling: Scaling,
    /// Headroom in powers of two: the scale is multiplied by `2^margin`. Between -64 and 64.
    #[serde(deserialize_with = "valid_margin")]
    pub margin: i32,
    /// Whether scales are rounded up to a power of two, so that scaling itself loses nothing and, with a margin of at least 0,
    /// nothing saturates.
    pub power_of_two: bool,
}

fn valid_margin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    let margin = i32::deserialize(deserializer)?;
    Recipe::current().with_margin(margin).validate().map_err(D::Error::custom)?;
    Ok(margin)
}

/// Where the amax of a scale comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scaling {
    /// From the tensor that is about to be quantized.
    #[default]
    Current,
}

impl Recipe {
    /// Current scaling without margin.
    pub const fn current() -> Self {
        Self { scaling: Scaling::Current, margin: 0, power_of_two: false }
    }

    /// The same recipe with `margin` powers of two of headroom.
    pub const fn with_margin(self, margin: i32) -> Self {
        Self { margin, ..self }
    }

    /// The same recipe with scales rounded up to powers of two, or not.
    pub const fn with_power_of_two(self, power_of_two: bool) -> Self {
        Self { power_of_two, ..self }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`RecipeError::Margin`] where the margin is outside -64..=64.
    pub fn validate(&self) -> Result<(), RecipeError> {
        match self.margin {
            -64..=64 => Ok(()),
            margin => Err(RecipeError::Margin { margin }),
        }
    }
}

/// A recipe that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// The margin is out of range.
    #[error("margin = {margin} is outside -64..=64; 0 is usual, each step doubles the scale")]
    Margin {
        /// The margin given.
        margin: i32,
    },
}
