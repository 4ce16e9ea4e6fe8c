//! How scales are chosen, and which operands and products they are chosen for.

mod granularity;
mod operands;
mod scaling;

use core::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

pub use granularity::{Block, Granularity, ScaleRounding};
pub use operands::{Formats, Precision, Products};
pub use scaling::{AmaxChoice, Delayed, Scaling};

use crate::json::{Object, object};
use crate::{Fp8Format, GemmRole, Operand};

/// How matrix products run in FP8: where scales come from, their options, the format of each operand, and which of the three
/// products of training run in FP8 at all.
///
/// As JSON an object of these fields, of which those that are missing take their defaults, or the name of a function that makes one: `"current"`, `"rowwise"`,
/// `"torchao_rowwise"`, `"mxfp8"`, `"blockwise"`, `"delayed"`, `"bf16"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Recipe {
    /// The scaling rule.
    pub scaling: Scaling,
    /// Headroom in powers of two: the scale is multiplied by `2^margin`. Between -64 and 64.
    pub margin: i32,
    /// Whether scales are rounded up to a power of two, so that scaling itself loses nothing and, with current scaling and a
    /// margin of at least 0, nothing saturates.
    pub power_of_two: bool,
    /// The formats of the operands.
    pub formats: Formats,
    /// Which of the three products run in FP8, and what the others multiply.
    pub products: Products,
}

/// The fields as they are read: each is checked where it stands, then all of them together.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    #[serde(deserialize_with = "valid_scaling")]
    scaling: Scaling,
    #[serde(deserialize_with = "valid_margin")]
    margin: i32,
    power_of_two: bool,
    #[serde(deserialize_with = "valid_formats")]
    formats: Formats,
    #[serde(deserialize_with = "object")]
    products: Products,
}

impl TryFrom<Fields> for Recipe {
    type Error = RecipeError;

    fn try_from(fields: Fields) -> Result<Self, RecipeError> {
        let Fields { scaling, margin, power_of_two, formats, products } = fields;
        let recipe = Self { scaling, margin, power_of_two, formats, products };
        recipe.validate().map(|()| recipe)
    }
}

const NAMES: &[&str] =
    &["current", "rowwise", "torchao_rowwise", "mxfp8", "blockwise", "delayed", "bf16"];

fn named<E: Error>(name: &str) -> Result<Recipe, E> {
    match name {
        "current" => Ok(Recipe::current()),
        "rowwise" => Ok(Recipe::rowwise()),
        "torchao_rowwise" => Ok(Recipe::torchao_rowwise()),
        "mxfp8" => Ok(Recipe::mxfp8()),
        "blockwise" => Ok(Recipe::blockwise()),
        "delayed" => Ok(Recipe::delayed()),
        "bf16" => Ok(Recipe::bf16()),
        name => Err(E::unknown_variant(name, NAMES)),
    }
}

/// Not derived: a recipe has a name, too.
impl<'de> Deserialize<'de> for Recipe {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RecipeVisitor;

        impl<'de> Visitor<'de> for RecipeVisitor {
            type Value = Recipe;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a recipe: one of {}, or an object of its fields", NAMES.join(", "))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Recipe, E> {
                named(name)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Recipe, A::Error> {
                let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
                fields.try_into().map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(RecipeVisitor)
    }
}

fn valid<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    recipe: impl FnOnce(T) -> Recipe,
) -> Result<Recipe, D::Error> {
    let recipe = recipe(T::deserialize(deserializer)?);
    recipe.validate().map_err(D::Error::custom)?;
    Ok(recipe)
}

fn valid_scaling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scaling, D::Error> {
    Ok(valid(deserializer, |scaling| Recipe { scaling, ..Recipe::current() })?.scaling)
}

fn valid_margin<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    Ok(valid(deserializer, |margin| Recipe::current().with_margin(margin))?.margin)
}

fn valid_formats<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Formats, D::Error> {
    let recipe = |Object(formats)| Recipe::current().with_formats(formats);
    Ok(valid(deserializer, recipe)?.formats)
}

impl Recipe {
    /// The longest amax history.
    pub const MAX_HISTORY_LENGTH: usize = 1 << 16;

    /// Current scaling without margin: each tensor is measured just before it is quantized.
    pub const fn current() -> Self {
        Self {
            scaling: Scaling::Current(Granularity::PerTensor),
            margin: 0,
            power_of_two: false,
            formats: Formats::HYBRID,
            products: Products::ALL,
        }
    }

    /// Current scaling without margin, with a scale for each row of the left operand of a product and each column of the right one:
    /// for tensors with outliers, which cost all other elements their precision under a scale that they share.
    ///
    /// Gradients are E5M2, scales any f32; what torchao calls `rowwise` is [`torchao_rowwise`](Self::torchao_rowwise).
    pub const fn rowwise() -> Self {
        Self::current().with_granularity(Granularity::PerRow)
    }

    /// What torchao calls `rowwise`: scales as of [`rowwise`](Self::rowwise), but powers of two, and E4M3 for all operands
    /// (`Float8LinearConfig.from_recipe_name` of torchao 0.18).
    ///
    /// Its `rowwise_with_gw_hp` also has [`with_precision(GemmRole::GradWeight, Precision::High)`](Self::with_precision), and quantizes the weight of
    /// `grad_input` with one scale, which no recipe does here.
    pub const fn torchao_rowwise() -> Self {
        Self::rowwise().with_power_of_two(true).with_formats(Formats::E4M3)
    }

    /// MXFP8, as Blackwell's tensor cores multiply it: blocks of 32 along the dimension that a product sums over, scales that are powers of two,
    /// rounded so that nothing saturates, and E4M3 for all operands.
    pub const fn mxfp8() -> Self {
        Self::current()
            .with_granularity(Granularity::Mx(ScaleRounding::Rceil))
            .with_formats(Formats::E4M3)
    }

    /// Blocks of 128, as DeepSeek-V3 was trained: 1 × 128 for inputs and output gradients, 128 × 128 for weights, E4M3 for all operands, and
    /// scales that are powers of two (TransformerEngine's default). [`with_power_of_two(false)`](Self::with_power_of_two) has f32 scales.
    pub const fn blockwise() -> Self {
        Self::current()
            .with_granularity(Granularity::Blockwise)
            .with_power_of_two(true)
            .with_formats(Formats::E4M3)
    }

    /// Delayed scaling without margin: the largest amax of the last 1024 steps.
    ///
    /// Needs `Fp8Backend<Autodiff<B>>`: a product has a history only where gradients are tracked. Validation and inference
    /// use current scaling.
    pub const fn delayed() -> Self {
        Self { scaling: Scaling::Delayed(Delayed::DEFAULT), ..Self::current() }
    }

    /// No FP8: the products that the filter takes run in bf16, forward and backward, summed in f32. What FP8 is to be compared with.
    ///
    /// On a CPU's matrix unit they run on it; elsewhere operands are rounded to bf16 and multiplied in f32.
    pub const fn bf16() -> Self {
        Self { products: Products::BF16, ..Self::current() }
    }

    /// The same recipe with current scaling of this granularity.
    pub const fn with_granularity(self, granularity: Granularity) -> Self {
        Self { scaling: Scaling::Current(granularity), ..self }
    }

    /// The same recipe with delayed scaling over `history_length` steps, at most [`MAX_HISTORY_LENGTH`](Self::MAX_HISTORY_LENGTH).
    pub const fn with_history_length(self, history_length: usize) -> Self {
        let delayed = Delayed { history_length, ..self.delayed_or_default() };
        Self { scaling: Scaling::Delayed(delayed), ..self }
    }

    /// The same recipe with delayed scaling that takes this amax of the history.
    pub const fn with_amax_choice(self, amax_choice: AmaxChoice) -> Self {
        let delayed = Delayed { amax_choice, ..self.delayed_or_default() };
        Self { scaling: Scaling::Delayed(delayed), ..self }
    }

    /// How many elements share a scale.
    #[inline]
    pub const fn granularity(&self) -> Granularity {
        match self.scaling {
            Scaling::Current(granularity) => granularity,
            Scaling::Delayed(_) => Granularity::PerTensor,
        }
    }

    /// Whether scales are those of blocks.
    pub const fn is_in_blocks(&self) -> bool {
        self.granularity().block(Operand::Input).along != usize::MAX
    }

    /// Whether all scales are powers of two.
    #[inline]
    pub const fn has_powers_of_two(&self) -> bool {
        self.power_of_two || matches!(self.granularity(), Granularity::Mx(_))
    }

    const fn delayed_or_default(&self) -> Delayed {
        match self.scaling {
            Scaling::Current(_) => Delayed::DEFAULT,
            Scaling::Delayed(delayed) => delayed,
        }
    }

    /// The same recipe with `margin` powers of two of headroom.
    pub const fn with_margin(self, margin: i32) -> Self {
        Self { margin, ..self }
    }

    /// The same recipe with scales rounded up to powers of two, or not. Those of MXFP8 always are.
    pub const fn with_power_of_two(self, power_of_two: bool) -> Self {
        Self { power_of_two, ..self }
    }

    /// The same recipe with other formats.
    pub const fn with_formats(self, formats: Formats) -> Self {
        Self { formats, ..self }
    }

    /// The same recipe with the product of the given role in FP8, in bf16, or in high precision.
    pub const fn with_precision(self, role: GemmRole, precision: Precision) -> Self {
        Self { products: self.products.with(role, precision), ..self }
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`RecipeError::Margin`] where the margin is outside -64..=64; [`RecipeError::MarginOfMx`] where there is one with MXFP8; [`RecipeError::HistoryLength`] where the history is empty
    /// or longer than [`MAX_HISTORY_LENGTH`](Self::MAX_HISTORY_LENGTH); [`RecipeError::Formats`] where a product would
    /// multiply E5M2 by E5M2.
    pub fn validate(&self) -> Result<(), RecipeError> {
        if !(-64..=64).contains(&self.margin) {
            return Err(RecipeError::Margin { margin: self.margin });
        }
        if let Granularity::Mx(_) = self.granularity()
            && self.margin != 0
        {
            return Err(RecipeError::MarginOfMx { margin: self.margin });
        }
        if let Scaling::Delayed(Delayed { history_length, .. }) = self.scaling
            && !(1..=Self::MAX_HISTORY_LENGTH).contains(&history_length)
        {
            return Err(RecipeError::HistoryLength { history_length });
        }
        let is_e5m2 = |operand| self.formats.of(operand) == Fp8Format::E5M2;
        let e5m2_twice = |role: &GemmRole| role.operands().into_iter().all(is_e5m2);
        match GemmRole::ALL.into_iter().find(e5m2_twice) {
            Some(role) => Err(RecipeError::Formats { role }),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.products == Products::BF16 {
            return write!(f, "no FP8, products in bf16");
        }
        write!(f, "{}", self.scaling)?;
        if self.margin != 0 {
            write!(f, ", margin {}", self.margin)?;
        }
        if self.power_of_two {
            write!(f, ", powers of two")?;
        }
        if self.formats != Formats::HYBRID {
            write!(f, ", {}", self.formats)?;
        }
        for role in GemmRole::ALL {
            match self.products.of(role) {
                Precision::Fp8 => {}
                Precision::Bf16 => write!(f, ", {role} in bf16")?,
                Precision::High => write!(f, ", {role} in high precision")?,
            }
        }
        Ok(())
    }
}

/// A recipe that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// The margin is out of range.
    #[error("margin = {margin} is outside -64..=64; 0 is usual, each step doubles the scale")]
    Margin {
        /// The margin given.
        margin: i32,
    },
    /// MXFP8 has no margin: its scales follow from its rounding alone.
    #[error("margin = {margin} with MXFP8, which has none; leave it 0, or choose another rounding")]
    MarginOfMx {
        /// The margin given.
        margin: i32,
    },
    /// The amax history is empty or too long.
    #[error(
        "history_length = {history_length} is outside 1..={}; 1024 is usual",
        Recipe::MAX_HISTORY_LENGTH
    )]
    HistoryLength {
        /// The length given.
        history_length: usize,
    },
    /// A product would multiply E5M2 by E5M2, which no hardware does.
    #[error(
        "formats: {role} would multiply E5M2 by E5M2, which FP8 hardware cannot; make one of its operands E4M3"
    )]
    Formats {
        /// The product.
        role: GemmRole,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_e5m2_operands_are_refused_everything_else_is_legal() {
        use Fp8Format::{E4M3, E5M2};
        for input in [E4M3, E5M2] {
            for weight in [E4M3, E5M2] {
                for output_grad in [E4M3, E5M2] {
                    let formats = Formats { input, weight, output_grad };
                    let e5m2 = [input, weight, output_grad].iter().filter(|f| **f == E5M2).count();
                    let valid = Recipe::current().with_formats(formats).validate();
                    assert_eq!(valid.is_ok(), e5m2 <= 1, "{formats}");
                }
            }
        }
    }

    #[test]
    fn histories_have_a_length() {
        for (length, valid) in [(0, false), (1, true), (1 << 16, true), ((1 << 16) + 1, false)] {
            assert_eq!(Recipe::delayed().with_history_length(length).validate().is_ok(), valid);
        }
    }

    #[test]
    fn recipes_have_names() {
        assert_eq!(Recipe::current().to_string(), "current scaling");
        assert_eq!(Recipe::bf16().to_string(), "no FP8, products in bf16");
        let forward = Recipe::bf16().with_precision(GemmRole::Output, Precision::Fp8);
        assert_eq!(forward.to_string(), "current scaling, grad_input in bf16, grad_weight in bf16");
        let recipe = Recipe::delayed()
            .with_history_length(16)
            .with_amax_choice(AmaxChoice::MostRecent)
            .with_margin(1)
            .with_power_of_two(true)
            .with_formats(Formats::E4M3)
            .with_precision(GemmRole::GradWeight, Precision::High);
        assert_eq!(
            recipe.to_string(),
            "delayed scaling (most recent amax of 16), margin 1, powers of two, \
             E4M3 × E4M3, gradients E4M3, grad_weight in high precision"
        );
    }
}
