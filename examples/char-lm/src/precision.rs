//! What a run computes with. This is the only place that knows what a name of `--precision` stands for.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::{
    DelayedState, Filter, Fp8Config, Fp8Matmul, GemmRole, Precision as Formats, Recipe,
};

use crate::model::{Gpt, LayerKind, Layers};

/// What a run computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32, no FP8.
    F32,
    /// bf16 with master weights in f32, no FP8.
    Bf16,
    /// f32, products in FP8, each scale from the tensor itself.
    Fp8Current,
    /// f32, products in FP8, each scale from the amaxes of earlier steps.
    Fp8Delayed,
    /// f32, the linear layers replaced by `Fp8Linear`.
    Fp8Layers,
}

impl Precision {
    /// All that have a name.
    pub const ALL: [Self; 5] =
        [Self::F32, Self::Bf16, Self::Fp8Current, Self::Fp8Delayed, Self::Fp8Layers];

    /// The name that `--precision` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp8Current => "fp8-current",
            Self::Fp8Delayed => "fp8-delayed",
            Self::Fp8Layers => "fp8-layers",
        }
    }

    /// Whether products run in FP8.
    pub fn is_fp8(self) -> bool {
        !matches!(self, Self::F32 | Self::Bf16)
    }

    /// The ambient configuration of a run.
    fn config(self) -> Fp8Config {
        match self {
            Self::F32 | Self::Bf16 => Fp8Config::off(),
            Self::Fp8Current => Fp8Config::default().with_recipe(Recipe::current()),
            Self::Fp8Delayed => Fp8Config::default().with_recipe(Recipe::delayed()),
            // Layers follow no filter, and the products of attention are none of theirs.
            Self::Fp8Layers => Fp8Config::default().with_filter(Filter::linear_only()),
        }
    }

    /// The type that the model computes in, where it is not that of its weights.
    pub fn compute(self) -> Option<FloatDType> {
        match self {
            Self::Bf16 => Some(FloatDType::BF16),
            _ => None,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::as_str);
        let found = Self::ALL.into_iter().find(|precision| precision.as_str() == name);
        found.ok_or_else(|| format!("no such precision; there are {}", names.join(", ")))
    }
}

/// What stays in high precision although the rest runs in FP8: what a sensitivity run asks about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum High {
    /// All products of one role.
    Role(GemmRole),
    /// All products of some layers.
    Layers(Layers),
}

impl High {
    /// What there is to ask about in a model of so many blocks.
    pub fn all(blocks: usize) -> Vec<Self> {
        let roles = [GemmRole::Output, GemmRole::GradInput, GemmRole::GradWeight].map(Self::Role);
        let kinds = LayerKind::ALL.map(|kind| Self::Layers(Layers::Kind(kind)));
        let blocks = (0..blocks).map(|index| Self::Layers(Layers::Block(index)));
        roles.into_iter().chain(kinds).chain(blocks).collect()
    }
}

impl fmt::Display for High {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Role(role) => write!(f, "{role}"),
            Self::Layers(layers) => write!(f, "{layers}"),
        }
    }
}

impl FromStr for High {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let block = name.strip_prefix("block").and_then(|index| index.parse().ok());
        let named = Self::all(0).into_iter().find(|high| high.to_string() == name);
        named.or(block.map(|index| Self::Layers(Layers::Block(index)))).ok_or_else(|| {
            let names = Self::all(0).iter().map(Self::to_string).collect::<Vec<_>>().join(", ");
            format!("no such role or layer; there are {names}, block0, block1, …")
        })
    }
}

/// A precision with what it leaves out: all that a run needs to know of it.
#[derive(Clone)]
pub struct Setup {
    precision: Precision,
    high: Option<High>,
    config: Fp8Config,
    delayed: Option<DelayedState>,
}

impl Setup {
    /// The setup of one run; its state of delayed scaling has seen nothing.
    ///
    /// # Errors
    /// Where something is to be left out that is not in it.
    pub fn new(precision: Precision, high: Option<High>) -> Result<Self> {
        ensure!(
            high.is_none() || precision.is_fp8(),
            "--high leaves something out of FP8, and nothing of {precision} is in FP8"
        );
        let mut config = precision.config();
        if let Some(High::Role(role)) = high {
            if precision == Precision::Fp8Layers {
                bail!(
                    "--high {role}: FP8 layers run all three products in FP8; take fp8-current or fp8-delayed"
                );
            }
            config.recipe = config.recipe.with_precision(role, Formats::High);
        }
        let delayed = (precision == Precision::Fp8Delayed).then(DelayedState::new);
        Ok(Self { precision, high, config, delayed })
    }

    /// The state of delayed scaling, which checkpoints must hold.
    pub fn delayed(&self) -> Option<&DelayedState> {
        self.delayed.as_ref()
    }

    /// Checks that the device can do it.
    ///
    /// # Errors
    /// Those of [`Fp8Config::check`].
    pub fn check<B: Fp8Matmul>(&self, device: &B::Device) -> Result<()> {
        Ok(self.config.check::<B>(device)?)
    }

    /// The model with the layers of this setup.
    ///
    /// # Errors
    /// Where layers are to be left out that the model does not have.
    pub fn layers<B: Fp8Matmul>(&self, model: Gpt<B>) -> Result<Gpt<B>> {
        let model = match self.precision {
            Precision::Fp8Layers => model.with_fp8_layers(&Fp8DotGeneralConfig::new()),
            _ => model,
        };
        match self.high {
            Some(High::Layers(layers)) => model.with_high_precision(layers),
            _ => Ok(model),
        }
    }

    /// The model as it computes: with its parameters in the compute type. Gradients pass through to the parameters.
    pub fn for_compute<B: Backend, M: burn::module::Module<B>>(&self, model: M) -> M {
        match self.precision.compute() {
            Some(dtype) => model.map(&mut Cast(dtype)),
            None => model,
        }
    }

    /// Runs `f` in this precision, on this thread.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        match &self.delayed {
            Some(state) => state.scope(|| self.config.scope(f)),
            None => self.config.scope(f),
        }
    }
}

struct Cast(FloatDType);

impl<B: Backend> burn::module::ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(
        &mut self,
        param: burn::module::Param<burn::tensor::Tensor<B, D>>,
    ) -> burn::module::Param<burn::tensor::Tensor<B, D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        let all = High::all(2);
        assert_eq!(all.len(), 3 + 5 + 2);
        for high in all {
            assert_eq!(high.to_string().parse(), Ok(high));
        }
        assert!("fp4".parse::<Precision>().is_err() && "blocks".parse::<High>().is_err());
    }

    #[test]
    fn what_is_not_in_fp8_cannot_be_left_out() {
        let role = Some(High::Role(GemmRole::Output));
        assert!(Setup::new(Precision::F32, role).is_err());
        assert!(Setup::new(Precision::Fp8Layers, role).is_err());
        assert!(Setup::new(Precision::Fp8Current, role).is_ok());
    }
}
