//! What a run trains with: f32, or one of the ways to FP8.

use anyhow::{Result, ensure};
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::{Delayed, Fp8Config, Recipe, Scaling};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What a run trains with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecipeName {
    /// No FP8
    #[value(name = "f32")]
    F32,
    /// The backend decorated, each scale from the tensor itself
    Fp8Current,
    /// The same, and only products that FP8 makes faster on this machine: measured once, in about a minute
    Fp8Measured,
    /// The backend decorated, each scale from the amaxes of earlier steps
    Fp8Delayed,
    /// The backend decorated, a scale for each row
    Fp8Row,
    /// The backend decorated, scales of blocks of 32 that are powers of two, all in E4M3
    Mxfp8,
    /// The backend decorated, scales of blocks of 128, all in E4M3
    Fp8Block,
    /// The backend as it is, the linear layers replaced by Fp8Linear
    Fp8Layers,
}

impl RecipeName {
    /// The name that `--recipe` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Fp8Current => "fp8-current",
            Self::Fp8Measured => "fp8-measured",
            Self::Fp8Delayed => "fp8-delayed",
            Self::Fp8Row => "fp8-row",
            Self::Mxfp8 => "mxfp8",
            Self::Fp8Block => "fp8-block",
            Self::Fp8Layers => "fp8-layers",
        }
    }

    /// The configuration of `--config` with the scaling of this recipe; its other options stay.
    ///
    /// # Errors
    /// Where the recipe cannot do what the configuration asks for.
    pub fn config(self, config: Fp8Config) -> Result<Fp8Config> {
        let recipe = config.recipe;
        let delayed = match recipe.scaling {
            Scaling::Current(_) => Recipe::delayed().scaling,
            given @ Scaling::Delayed(_) => given,
        };
        let scaling = match self {
            Self::F32 => return Ok(Fp8Config::off()),
            Self::Fp8Current | Self::Fp8Measured => Scaling::default(),
            Self::Fp8Delayed => delayed,
            Self::Fp8Row => Recipe::rowwise().scaling,
            Self::Mxfp8 | Self::Fp8Block => {
                ensure!(
                    recipe == Recipe::current(),
                    "--config: {} is a recipe of its own; leave it or the key `recipe` out",
                    self.as_str()
                );
                let is_mx = self == Self::Mxfp8;
                let blocks = if is_mx { Recipe::mxfp8() } else { Recipe::blockwise() };
                return Ok(config.with_recipe(blocks));
            }
            Self::Fp8Layers => {
                let plain =
                    Recipe { scaling: recipe.scaling, margin: recipe.margin, ..Recipe::current() };
                ensure!(
                    recipe == plain,
                    "--config: FP8 layers scale as Flax does and know the margin and the amax history only; \
                     leave fp8-layers out with --recipe f32,fp8-current,fp8-delayed"
                );
                delayed
            }
        };
        Ok(config.with_recipe(Recipe { scaling, ..recipe }))
    }
}

/// The options of FP8 layers that a configuration of [`RecipeName::Fp8Layers`] amounts to.
pub fn layers(config: &Fp8Config) -> Fp8DotGeneralConfig {
    let delayed = match config.recipe.scaling {
        Scaling::Delayed(delayed) => delayed,
        Scaling::Current(_) => Delayed::DEFAULT,
    };
    Fp8DotGeneralConfig::new()
        .with_amax_history_length(delayed.history_length)
        .with_amax_choice(delayed.amax_choice)
        .with_margin(config.recipe.margin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_the_options_that_a_configuration_has() {
        let given = Fp8Config::default().with_recipe(Recipe::delayed().with_margin(1));
        let recipe = RecipeName::Fp8Row.config(given).expect("valid").recipe;
        assert_eq!(recipe, Recipe::rowwise().with_margin(1));
    }
}
