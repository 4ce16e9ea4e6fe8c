//! What a run computes with. This is the only place that knows what a name of `--precision` stands for.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::{
    AttentionPrecision, DelayedState, Filter, Formats, Fp8Config, Fp8Matmul,
    Precision as ProductPrecision, Recipe, Scaling,
};
use burn_fp8_train::Wire;
use burn_fp8_train::peers::{SharedPeers, Threads};
use burn_fp8_train::policy::{LossScale, MatmulPolicy, Policy};
use serde::{Deserialize, Serialize};

use crate::high::High;
use crate::model::Gpt;

/// What a run computes with. In JSON it is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Precision {
    /// f32, no FP8.
    F32,
    /// f32, no FP8, batch and rows joined before the products of linear layers, as those in FP8 do.
    F32Joined,
    /// The same, with attention, LayerNorm, GELU and dropout as one operation each.
    F32Fused,
    /// bf16 with master weights in f32, no FP8.
    Bf16,
    /// f32, products in FP8 by this recipe.
    Fp8(Recipe),
    /// f32, the linear layers replaced by `Fp8Linear`.
    Fp8Layers,
    /// What a policy says; without its key `m`, no FP8.
    Policy(Policy),
}

impl Precision {
    /// Each scale from the tensor itself.
    pub const FP8_CURRENT: Self = Self::Fp8(Recipe::current());
    /// Each scale from the amaxes of earlier steps.
    pub const FP8_DELAYED: Self = Self::Fp8(Recipe::delayed());

    /// All that have a name.
    pub const NAMED: [(Self, &'static str); 14] = [
        (Self::F32, "f32"),
        (Self::F32Joined, "f32-joined"),
        (Self::F32Fused, "f32-fused"),
        (Self::Bf16, "bf16"),
        (Self::FP8_CURRENT, "fp8-current"),
        (Self::Fp8(Recipe::current().with_formats(Formats::E4M3)), "fp8-current-e4m3"),
        (Self::FP8_DELAYED, "fp8-delayed"),
        (Self::Fp8(Recipe::delayed().with_formats(Formats::E4M3)), "fp8-delayed-e4m3"),
        (Self::Fp8(Recipe::rowwise()), "fp8-row"),
        (Self::Fp8(Recipe::rowwise().with_formats(Formats::E4M3)), "fp8-row-e4m3"),
        (Self::Fp8(Recipe::mxfp8()), "mxfp8"),
        (Self::Fp8(Recipe::blockwise()), "fp8-block"),
        (Self::Fp8(Recipe::blockwise().with_power_of_two(false)), "fp8-block-f32"),
        (Self::Fp8Layers, "fp8-layers"),
    ];

    /// Whether products run in FP8.
    pub fn is_fp8(self) -> bool {
        let config = self.config();
        config.enabled && config.recipe.products.any_in_fp8()
    }

    /// Whether it is f32, in whatever order of sums and with whatever elements dropped.
    pub fn is_f32(self) -> bool {
        matches!(self, Self::F32 | Self::F32Joined | Self::F32Fused)
    }

    /// The same without FP8: what FP8 is measured against.
    pub fn without_fp8(self) -> Self {
        match self {
            Self::Policy(policy) => Self::Policy(policy.with_matmul(MatmulPolicy::High)),
            Self::Bf16 | Self::F32Joined | Self::F32Fused => self,
            _ => Self::F32,
        }
    }

    /// Whether both train to the same bits, whatever they are called.
    pub fn is_same(self, other: Self) -> bool {
        let computed = |precision: Self| {
            let layers = precision == Self::Fp8Layers;
            let config = precision.config();
            let high = (config.join, config.attention);
            (layers, precision.dtypes(), high, config.enabled.then_some(config))
        };
        computed(self) == computed(other)
    }

    /// The ambient configuration of a run.
    fn config(self) -> Fp8Config {
        match self {
            Self::F32 | Self::Bf16 => Fp8Config::off(),
            Self::F32Joined => Fp8Config::off().with_join(true),
            Self::F32Fused => {
                Fp8Config::off().with_join(true).with_attention(Some(AttentionPrecision::High))
            }
            Self::Fp8(recipe) => Fp8Config::default().with_recipe(recipe),
            // Layers follow no filter, and the products of attention are none of theirs.
            Self::Fp8Layers => Fp8Config::default().with_filter(Filter::linear_only()),
            Self::Policy(policy) => {
                let matmul = policy.matmul.unwrap_or(MatmulPolicy::High);
                policy.with_matmul(matmul).configure(Fp8Config::default())
            }
        }
    }

    /// The types of parameters, of what is computed, and of the logits. The keys `m` and `a` are in [`config`](Self::config) already.
    fn dtypes(self) -> Policy {
        match self {
            Self::Bf16 => Policy::new(FloatDType::F32, FloatDType::BF16, FloatDType::F32),
            Self::Policy(policy) => Policy { matmul: None, attention: None, ..policy },
            _ => Policy::uniform(FloatDType::F32),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(policy) => write!(f, "{policy}"),
            named => {
                let found = Self::NAMED.iter().find(|(precision, _)| precision == named);
                f.write_str(found.map_or("unnamed", |(_, name)| name))
            }
        }
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if let Some((precision, _)) = Self::NAMED.iter().find(|(_, known)| *known == name) {
            return Ok(*precision);
        }
        let names = Self::NAMED.map(|(_, name)| name).join(", ");
        if !name.contains('=') {
            return Err(format!(
                "no such precision; there are {names}, and policies as p=f32,c=bf16,o=f32,m=fp8"
            ));
        }
        let policy = Policy::parse(name).map_err(|error| error.to_string())?;
        match policy.param {
            FloatDType::F32 => Ok(Self::Policy(policy)),
            other => Err(format!(
                "parameters in {other:?}: checkpoints of char-lm hold master weights in f32; write p=f32 and choose c="
            )),
        }
    }
}

impl From<Precision> for String {
    fn from(precision: Precision) -> Self {
        precision.to_string()
    }
}

impl TryFrom<String> for Precision {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

/// A precision with what it leaves out: all that a run needs to know of it.
#[derive(Clone, Debug)]
pub struct Setup {
    precision: Precision,
    high: Option<High>,
    config: Fp8Config,
    delayed: Option<DelayedState>,
    loss_scale: LossScale,
    peers: SharedPeers,
    wire: Wire,
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
            config.recipe = config.recipe.with_precision(role, ProductPrecision::High);
        }
        let is_delayed = config.enabled && matches!(config.recipe.scaling, Scaling::Delayed(_));
        // bf16 has the range of f32; gradients in f16 need help.
        let loss_scale = match precision.dtypes().compute {
            FloatDType::F16 => LossScale::dynamic(),
            _ => LossScale::none(),
        };
        let delayed = is_delayed.then(DelayedState::new);
        let alone = Threads::new(1, Duration::ZERO).pop().expect("there is one");
        Ok(Self {
            precision,
            high,
            config,
            delayed,
            loss_scale,
            peers: Arc::new(alone),
            wire: Wire::F32,
        })
    }

    /// The setup of one of several peers.
    pub fn among(self, peers: SharedPeers, wire: Wire) -> Self {
        if let Some(state) = &self.delayed {
            state.share(peers.clone());
        }
        Self { peers, wire, ..self }
    }

    /// Those that train together.
    pub fn peers(&self) -> &SharedPeers {
        &self.peers
    }

    /// What their gradients travel as.
    pub fn wire(&self) -> Wire {
        self.wire
    }

    /// Which of so many sequences are this peer's: no two have one in common.
    pub fn part(&self, sequences: usize) -> Range<usize> {
        let [start, end] =
            [0, 1].map(|next| (self.peers.rank() + next) * sequences / self.peers.size());
        start..end
    }

    /// The same setup, with state of its own that has seen nothing.
    pub fn anew(&self) -> Result<Self> {
        Self::new(self.precision, self.high)
    }

    /// The state of delayed scaling, which checkpoints must hold.
    pub fn delayed(&self) -> Option<&DelayedState> {
        self.delayed.as_ref()
    }

    /// What the loss is multiplied by before its gradients are taken.
    pub fn loss_scale(&self) -> &LossScale {
        &self.loss_scale
    }

    /// Checks that the device can do it.
    ///
    /// # Errors
    /// Those of [`Fp8Config::check`], and types that the device cannot compute with.
    pub fn check<B: Fp8Matmul>(&self, device: &B::Device) -> Result<()> {
        self.config.check::<B>(device)?;
        let Policy { compute, output, .. } = self.precision.dtypes();
        for dtype in [compute, output] {
            ensure!(
                B::supports_dtype(device, dtype.into()),
                "--precision {}: {} cannot compute in {dtype:?}",
                self.precision,
                <B as Backend>::name(device)
            );
        }
        Ok(())
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
            Some(High::Layers(layers)) => {
                model.with_high_precision(layers).with_context(|| format!("--high {layers}"))
            }
            _ => Ok(model),
        }
    }

    /// As [`scope`](Self::scope); `f` is one step of delayed scaling, whether it ends in a backward pass or not.
    pub fn step<R>(&self, f: impl FnOnce() -> R) -> R {
        let f = || self.scope(f);
        match &self.delayed {
            Some(state) => state.step(f),
            None => f(),
        }
    }

    /// Runs `f` in this precision, on this thread.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        let f = || self.config.scope(|| self.precision.dtypes().scope(f));
        match &self.delayed {
            Some(state) => state.scope(f),
            None => f(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        let policy = "p=f32,c=bf16,o=f32,m=fp8_delayed".parse::<Precision>().expect("a policy");
        for precision in
            Precision::NAMED.map(|(precision, _)| precision).into_iter().chain([policy])
        {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        assert!("fp4".parse::<Precision>().is_err());
    }

    #[test]
    fn a_policy_says_what_is_in_fp8() {
        let setup =
            |text: &str| Setup::new(text.parse().expect("a policy"), None).expect("a setup");
        assert!(!setup("c=bf16,o=f32").config.enabled, "without m there is no FP8");
        assert!(setup("c=bf16,o=f32,m=fp8").config.enabled);
        assert!(
            setup("c=bf16,m=fp8").delayed().is_none()
                && setup("c=bf16,m=fp8_delayed").delayed().is_some()
        );
        assert_eq!(setup("c=bf16").loss_scale().loss_scale(), 1.0);
        assert_eq!(setup("c=f16").loss_scale().loss_scale(), 32768.0);
        assert!("p=bf16".parse::<Precision>().unwrap_err().contains("p=f32"));
    }

    #[test]
    fn one_computation_may_have_several_names() {
        let is_same = |a: &str, b: &str| {
            let [a, b] = [a, b].map(|name| name.parse::<Precision>().expect("a precision"));
            a.is_same(b)
        };
        for (named, policy) in [
            ("f32", "p=f32,c=f32,o=f32"),
            ("f32", "p=f32,c=f32,o=f32,m=high"),
            ("bf16", "p=f32,c=bf16,o=f32"),
            ("fp8-current", "p=f32,c=f32,o=f32,m=fp8"),
            ("fp8-delayed", "p=f32,c=f32,o=f32,m=fp8_delayed"),
            ("fp8-current-e4m3", "p=f32,c=f32,o=f32,m=fp8_e4m3"),
            ("fp8-row", "p=f32,c=f32,o=f32,m=fp8_rowwise"),
            ("fp8-row-e4m3", "p=f32,c=f32,o=f32,m=fp8_rowwise_e4m3"),
            ("mxfp8", "p=f32,c=f32,o=f32,m=mxfp8"),
            ("fp8-block", "p=f32,c=f32,o=f32,m=fp8_block"),
            ("c=bf16,o=f32,m=fp8", "p=f32,c=bf16,o=f32,m=fp8"),
        ] {
            assert!(is_same(named, policy) && is_same(policy, named), "{named} and {policy}");
        }
        let others = Precision::NAMED.map(|(_, name)| name);
        let others = [&others[..], &["c=bf16,m=fp8"]].concat();
        for (index, a) in others.iter().enumerate() {
            for b in &others[index + 1..] {
                assert!(!is_same(a, b), "{a} and {b}");
            }
        }
    }
}
