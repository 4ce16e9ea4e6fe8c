//! How the inputs of a frozen layer are scaled.

use burn_fp8_checkpoint::Activations;
use burn_fp8_core::{Fp8Format, Granularity, Operand, Recipe, scale};
use serde::{Deserialize, Serialize};

use crate::Fp8Error;
use crate::engine::{WHOLE, check_scale};

/// How the inputs of a frozen layer are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationScale {
    /// By this scale, the dequantization multiplier: `x ≈ code × scale`. Finite values beyond 448 times the scale become
    /// that; infinite ones and NaN become NaN.
    Static(f32),
    /// By the amax of each input, which takes one more read of it.
    Current,
    /// By the amax of each row of an input: a scale for each token.
    PerToken,
    /// By the amax of each `size` elements of a row.
    Blocks {
        /// The elements of a block.
        size: usize,
        /// Whether scales are rounded up to powers of two.
        power_of_two: bool,
    },
    /// MXFP8: by the amax of each 32 elements of a row, rounded to a power of two.
    Mx,
    /// Not at all: inputs are multiplied as they are, in f32.
    Unquantized,
}

/// As checkpoints declare it.
impl From<Activations> for ActivationScale {
    fn from(activations: Activations) -> Self {
        match activations {
            Activations::None => Self::Unquantized,
            Activations::Static(scale) => Self::Static(scale),
            Activations::PerTensor => Self::Current,
            Activations::PerToken => Self::PerToken,
            Activations::Blocks { size, power_of_two } => Self::Blocks { size, power_of_two },
            Activations::Mx => Self::Mx,
            other => unreachable!("{other:?} is no scheme of this version"),
        }
    }
}

/// As [`Export`](burn_fp8_checkpoint::Export) declares it: [`ActivationScale::Current`] becomes a scale for each row, what loaders call dynamic.
impl From<ActivationScale> for Activations {
    fn from(activation: ActivationScale) -> Self {
        match activation {
            ActivationScale::Unquantized => Self::None,
            ActivationScale::Static(scale) => Self::Static(scale),
            ActivationScale::Current | ActivationScale::PerToken => Self::PerToken,
            ActivationScale::Blocks { size, power_of_two } => Self::Blocks { size, power_of_two },
            ActivationScale::Mx => Self::Mx,
        }
    }
}

/// How the input of one product is quantized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InputScale {
    pub(crate) activation: ActivationScale,
    pub(crate) format: Fp8Format,
    /// How its scales follow from amaxes.
    pub(crate) recipe: Recipe,
}

impl From<ActivationScale> for InputScale {
    fn from(activation: ActivationScale) -> Self {
        Self { activation, format: Fp8Format::E4M3, recipe: activation.recipe() }
    }
}

/// As a recipe of training quantizes inputs; always by the numbers themselves.
impl From<Recipe> for InputScale {
    fn from(recipe: Recipe) -> Self {
        let power_of_two = recipe.has_powers_of_two();
        let along = recipe.granularity().block(Operand::Input).along;
        let activation = match (recipe.granularity(), along) {
            (Granularity::PerTensor, _) => ActivationScale::Current,
            (Granularity::PerRow, _) => ActivationScale::PerToken,
            (Granularity::Mx(_), _) => ActivationScale::Mx,
            (_, size) => ActivationScale::Blocks { size, power_of_two },
        };
        Self { activation, format: recipe.formats.input, recipe }
    }
}

impl ActivationScale {
    /// A static scale with which magnitudes up to `amax` do not saturate: `amax / 448`.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where `amax` is not finite or not positive.
    pub fn from_amax(amax: f32) -> Result<Self, Fp8Error> {
        if !(amax.is_finite() && amax > 0.0) {
            let reason =
                format!("the amax of the samples is {amax}; it must be finite and positive");
            return Err(invalid(reason));
        }
        Ok(Self::Static(scale::from_amax(amax, Fp8Format::E4M3, Recipe::current())))
    }

    /// The scale of so many samples of so many elements, of which some are finite, the largest `amax`.
    pub(crate) fn from_seen(
        [count, elements]: [usize; 2],
        is_finite: bool,
        amax: f32,
    ) -> Result<Self, Fp8Error> {
        let reason = match (count, elements) {
            (0, _) => "there are no samples; give some inputs of the layer".into(),
            (_, 0) => {
                format!("the samples ({count}) have no elements; give some inputs of the layer")
            }
            _ if !is_finite => {
                format!(
                    "none of the {elements} elements of the samples is finite: all are NaN or infinite"
                )
            }
            _ if amax == 0.0 => {
                format!("all finite elements of the samples ({elements} elements) are 0")
            }
            _ => return Self::from_amax(amax),
        };
        Err(invalid(reason))
    }

    /// Whether the scale can be used, else why not.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            Self::Static(scale) => check_scale("input_scale", scale),
            Self::Blocks { size: 0, .. } => Err("blocks of 0 elements share no scale".into()),
            _ => Ok(()),
        }
    }

    /// The elements of an input `[M, K]` that share a scale.
    pub(crate) fn block(self) -> [usize; 2] {
        match self {
            Self::Static(_) | Self::Current | Self::Unquantized => WHOLE,
            Self::PerToken => [1, usize::MAX],
            Self::Blocks { size, .. } => [1, size],
            Self::Mx => [1, 32],
        }
    }

    /// How its scales follow from amaxes.
    pub(crate) fn recipe(self) -> Recipe {
        match self {
            Self::Static(_) | Self::Current | Self::Unquantized => Recipe::current(),
            Self::PerToken => Recipe::rowwise(),
            Self::Blocks { power_of_two, .. } => {
                Recipe::blockwise().with_power_of_two(power_of_two)
            }
            Self::Mx => Recipe::mxfp8(),
        }
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "calibrated activation scale", reason }
}
