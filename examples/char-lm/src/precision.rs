//! What a run computes with: a policy in the grammar of [`burn_fp8::policy`], which gets two keys more, and what stays out of FP8.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::sums::Accumulations;
use burn_fp8::{
    Accumulation, DelayedState, Filter, Fp8Config, Fp8Matmul, Precision as ProductPrecision, Saved,
    Scaling, Sums,
};
use burn_fp8_train::Wire;
use burn_fp8_train::peers::{SharedPeers, Threads};
use burn_fp8_train::policy::{LossScale, MatmulPolicy, Policy};
use serde::{Deserialize, Serialize};

use crate::high::High;
use crate::model::Gpt;

/// Joins batch and rows before the products of linear layers in f32, as those of all other policies do that have `m` or `a`.
const JOIN: &str = "join=on";
/// Linear layers are `Fp8Linear`.
const LAYERS: &str = "layers=fp8";

/// Operations are not fused, which they are by default where something runs in FP8.
const APART: &str = "fused=off";

/// What the backward passes of operations between products take is kept in FP8.
const SAVED: &str = "saved=fp8";

/// Whose sums emulated products have: `sums=hopper`; with `-fast` or `-split` behind it in all three products of training, else as in TransformerEngine.
const SUMS: &str = "sums=";

/// Names that earlier versions wrote into the files of runs.
const OLD: [(&str, &str); 13] = [
    ("f32-joined", JOIN),
    ("f32-fused", "a=high"),
    ("bf16", "c=bf16,o=f32"),
    ("fp8-current", "m=fp8,fused=off"),
    ("fp8-current-e4m3", "m=fp8_e4m3,fused=off"),
    ("fp8-delayed", "m=fp8_delayed,fused=off"),
    ("fp8-delayed-e4m3", "m=fp8_delayed_e4m3,fused=off"),
    ("fp8-row", "m=fp8_rowwise,fused=off"),
    ("fp8-row-e4m3", "m=fp8_rowwise_e4m3,fused=off"),
    ("mxfp8", "m=mxfp8,fused=off"),
    ("fp8-block", "m=fp8_block,fused=off"),
    ("fp8-block-f32", "m=fp8_block_f32,fused=off"),
    ("fp8-layers", "layers=fp8,fused=off"),
];

/// What a run computes with. In JSON it is its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Precision {
    /// Without `m`, no product in FP8.
    policy: Policy,
    join: bool,
    layers: bool,
    apart: bool,
    saved: Saved,
    sums: Sums,
    /// Of all three products.
    accumulation: Option<Accumulation>,
}

impl Precision {
    /// f32, no FP8.
    pub const F32: Self = Self {
        policy: Policy {
            param: FloatDType::F32,
            compute: FloatDType::F32,
            output: FloatDType::F32,
            matmul: None,
            attention: None,
        },
        join: false,
        layers: false,
        apart: false,
        saved: Saved::Whole,
        sums: Sums::F32,
        accumulation: None,
    };

    /// Whether products run in FP8.
    pub fn is_fp8(self) -> bool {
        let config = self.config();
        config.enabled && config.recipe.products.any_in_fp8()
    }

    /// Whether it is f32, in whatever order of sums and with whatever elements dropped.
    pub fn is_f32(self) -> bool {
        !self.config().enabled && self.dtypes() == Self::F32.policy
    }

    /// The ambient configuration of a run.
    fn config(self) -> Fp8Config {
        let Policy { matmul, attention, .. } = self.policy;
        let config = match matmul {
            // Layers follow no filter, and the products of attention are none of theirs.
            None if self.layers => Fp8Config::default().with_filter(Filter::linear_only()),
            None => Fp8Config::off().with_join(self.join || attention.is_some()),
            Some(matmul) => matmul.configure(Fp8Config::default()),
        };
        let config = config.with_attention(attention).with_sums(self.sums);
        let config = config.with_fused(!self.apart).with_saved(self.saved);
        match self.accumulation {
            Some(all) => Fp8Config { accumulation: Accumulations::all(all), ..config },
            None => config,
        }
    }

    /// The types of parameters, of what is computed, and of the logits. The keys `m` and `a` are in [`config`](Self::config) already.
    fn dtypes(self) -> Policy {
        Policy { matmul: None, attention: None, ..self.policy }
    }
}

/// Without what is f32: `m=fp8`, `c=bf16,o=f32,m=fp8,a=bf16`; `f32` where nothing else is left.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_all = match self.accumulation {
            Some(Accumulation::Fast) => "-fast",
            Some(Accumulation::Split) => "-split",
            None => "",
        };
        let sums = format!("{SUMS}{}{of_all}", self.sums.name());
        let policy = self.policy.to_string();
        let policy = policy.strip_prefix("p=f32,").unwrap_or(&policy);
        let policy = policy.strip_prefix("c=f32,o=f32").unwrap_or(policy).trim_start_matches(',');
        let parts = [
            Some(policy).filter(|policy| !policy.is_empty()),
            self.join.then_some(JOIN),
            self.layers.then_some(LAYERS),
            self.apart.then_some(APART),
            (self.saved == Saved::Fp8).then_some(SAVED),
            (self.sums != Sums::F32).then_some(&sums),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&if parts.is_empty() { "f32".into() } else { parts.join(",") })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (own, parts): (Vec<_>, Vec<_>) = text.split(',').partition(|part| {
            [JOIN, LAYERS, APART, SAVED].contains(part) || part.starts_with(SUMS)
        });
        let (sums, accumulation) = match own.iter().find_map(|part| part.strip_prefix(SUMS)) {
            Some(text) => sums(text)?,
            None => (Sums::F32, None),
        };
        let [join, layers, apart, saved] =
            [JOIN, LAYERS, APART, SAVED].map(|key| own.contains(&key));
        let mut policy = match parts[..] {
            [] => Self::F32.policy,
            _ => Policy::parse(&parts.join(",")).map_err(|error| {
                format!("{error}; char-lm also knows {JOIN}, {LAYERS}, {APART}, {SAVED} and {SUMS}")
            })?,
        };
        if policy.param != FloatDType::F32 {
            return Err(format!(
                "parameters in {:?}: checkpoints of char-lm hold master weights in f32; write p=f32 and choose c=",
                policy.param
            ));
        }
        policy.matmul = policy.matmul.filter(|matmul| *matmul != MatmulPolicy::High);
        if layers && policy.matmul.is_some() {
            return Err(format!("{LAYERS} has scales of its own: leave out m"));
        }
        if join && (layers || policy.matmul.is_some() || policy.attention.is_some()) {
            return Err(format!(
                "with m, a or {LAYERS} batch and rows are joined: leave out {JOIN}"
            ));
        }
        let in_fp8 = layers || policy.matmul.is_some();
        if let (false, Some(key)) = (in_fp8, own.iter().find(|key| [APART, SAVED].contains(key))) {
            return Err(format!("{key} changes what is fused with FP8: write m=fp8"));
        }
        if apart && saved {
            return Err(format!("{SAVED} is of what is fused: leave out {APART}"));
        }
        if sums != Sums::F32 && !layers && policy.matmul.is_none() {
            return Err(format!("{SUMS} is of products in FP8: write m=fp8"));
        }
        let saved = if saved { Saved::Fp8 } else { Saved::Whole };
        Ok(Self { policy, join, layers, apart, saved, sums, accumulation })
    }
}

/// Whose sums, and the accumulation of all products where one is named.
fn sums(text: &str) -> Result<(Sums, Option<Accumulation>), String> {
    let (name, accumulation) = match text.split_once('-') {
        None => (text, None),
        Some((name, "fast")) => (name, Some(Accumulation::Fast)),
        Some((name, "split")) => (name, Some(Accumulation::Split)),
        Some((_, other)) => {
            return Err(format!("{SUMS}{text}: \"{other}\" is neither fast nor split"));
        }
    };
    let sums = name.parse().map_err(|error| format!("{SUMS}{text}: {error}"))?;
    Ok((sums, accumulation))
}

impl From<Precision> for String {
    fn from(precision: Precision) -> Self {
        precision.to_string()
    }
}

/// Of a file, which may have an old name.
impl TryFrom<String> for Precision {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let old = OLD.into_iter().find(|(old, _)| *old == name);
        old.map_or(&name[..], |(_, text)| text).parse()
    }
}

/// Between the precision and the part.
const WITHOUT: &str = "-without-";

/// What all runs of an arm of a comparison compute with. In JSON it is its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Arm {
    /// What products run in, and all else.
    pub precision: Precision,
    /// What stays out of FP8.
    pub high: Option<High>,
}

impl Arm {
    fn parse(
        name: &str,
        precision: impl Fn(&str) -> Result<Precision, String>,
    ) -> Result<Self, String> {
        let Some((begin, high)) = name.rsplit_once(WITHOUT) else {
            return precision(name).map(Into::into);
        };
        let part = high.parse().map_err(|error| format!("{high}: {error}"))?;
        let arm = Self { precision: precision(begin)?, high: Some(part) };
        Setup::new(arm.precision, arm.high).map_err(|error| error.to_string())?;
        Ok(arm)
    }
}

impl From<Precision> for Arm {
    fn from(precision: Precision) -> Self {
        Self { precision, high: None }
    }
}

/// `m=fp8`, or `m=fp8-without-head`.
impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.precision)?;
        self.high.map_or(Ok(()), |high| write!(f, "{WITHOUT}{high}"))
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::parse(name, str::parse)
    }
}

impl From<Arm> for String {
    fn from(arm: Arm) -> Self {
        arm.to_string()
    }
}

/// Of a file, which may have an old name.
impl TryFrom<String> for Arm {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::parse(&name, |name| name.to_owned().try_into())
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
            ensure!(
                !precision.layers,
                "--high {role}: FP8 layers run all three products in FP8; take m=fp8 or m=fp8_delayed"
            );
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
        let model = match self.precision.layers {
            true => model.with_fp8_layers(&Fp8DotGeneralConfig::new()),
            false => model,
        };
        match self.high {
            Some(High::Layers(layers)) => {
                model.with_high_precision(layers).with_context(|| format!("--high {layers}"))
            }
            _ => Ok(model),
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
    use burn_fp8::{AttentionPrecision, Formats, Recipe};

    fn precision(text: &str) -> Precision {
        text.parse().expect("a precision")
    }

    #[test]
    fn texts_lead_back() {
        let head = "head".parse().expect("a part");
        for (text, short) in [
            ("f32", "f32"),
            ("p=f32,c=f32,o=f32,m=high", "f32"),
            ("p=f32,c=f32,o=f32,m=mxfp8,a=fp8", "m=mxfp8,a=fp8"),
            ("c=bf16,o=f32,m=fp8_delayed", "c=bf16,o=f32,m=fp8_delayed"),
            ("join=on", "join=on"),
            ("layers=fp8,c=bf16", "c=bf16,o=bf16,layers=fp8"),
            ("m=fp8,sums=Hopper", "m=fp8,sums=hopper"),
            ("sums=ada-fast,m=fp8,a=high", "m=fp8,a=high,sums=ada-fast"),
            ("layers=fp8,sums=blackwell-split", "layers=fp8,sums=blackwell-split"),
            ("m=fp8,sums=f32", "m=fp8"),
        ] {
            let arm = Arm::from(precision(text));
            assert_eq!((arm.to_string().as_str(), short.parse()), (short, Ok(arm)));
            let without = Arm { high: Some(head), ..arm };
            match arm.precision.is_fp8() {
                true => assert_eq!(without.to_string().parse(), Ok(without)),
                false => assert!(without.to_string().parse::<Arm>().is_err()),
            }
        }
        for (text, words) in [
            ("fp4", "join=on"),
            ("p=bf16", "p=f32"),
            ("bf16", "p=f32"),
            ("fp8-current", "fp8-current"),
            ("m=fp8,layers=fp8", "leave out m"),
            ("m=fp8,join=on", "leave out join=on"),
            ("m=mxfp8-without-tail", "tail"),
            ("sums=hopper", "m=fp8"),
            ("saved=fp8", "m=fp8"),
            ("m=fp8,saved=fp8,fused=off", "leave out fused=off"),
            ("m=fp8,sums=volta", "hopper"),
            ("m=fp8,sums=hopper-slow", "split"),
        ] {
            let error = text.parse::<Arm>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_policy_says_what_is_in_fp8() {
        let setup = |text| Setup::new(precision(text), None).expect("a setup");
        assert!(!setup("c=bf16,o=f32").config.enabled, "without m there is no FP8");
        assert!(setup("c=bf16,o=f32,m=fp8").config.enabled);
        assert!(
            setup("c=bf16,m=fp8").delayed().is_none()
                && setup("c=bf16,m=fp8_delayed").delayed().is_some()
        );
        assert_eq!(setup("c=bf16").loss_scale().loss_scale(), 1.0);
        assert_eq!(setup("c=f16").loss_scale().loss_scale(), 32768.0);
    }

    /// What each old name meant when it was written.
    #[test]
    fn old_names_of_files_compute_what_they_did() {
        let fp8 = |recipe| Fp8Config::default().with_fused(false).with_recipe(recipe);
        let off = Fp8Config::off();
        let e4m3 = |recipe: Recipe| fp8(recipe.with_formats(Formats::E4M3));
        let expected = [
            ("f32", off),
            ("f32-joined", off.with_join(true)),
            ("f32-fused", off.with_join(true).with_attention(Some(AttentionPrecision::High))),
            ("bf16", off),
            ("fp8-current", fp8(Recipe::current())),
            ("fp8-current-e4m3", e4m3(Recipe::current())),
            ("fp8-delayed", fp8(Recipe::delayed())),
            ("fp8-delayed-e4m3", e4m3(Recipe::delayed())),
            ("fp8-row", fp8(Recipe::rowwise())),
            ("fp8-row-e4m3", e4m3(Recipe::rowwise())),
            ("mxfp8", fp8(Recipe::mxfp8())),
            ("fp8-block", fp8(Recipe::blockwise())),
            ("fp8-block-f32", fp8(Recipe::blockwise().with_power_of_two(false))),
            (
                "fp8-layers",
                Fp8Config::default().with_fused(false).with_filter(Filter::linear_only()),
            ),
        ];
        for (name, config) in expected {
            let json = format!("\"{name}\"");
            let precision: Precision = serde_json::from_str(&json).expect(name);
            assert_eq!(precision.config(), config, "{name}");
            assert_eq!(precision.layers, name == "fp8-layers");
            let compute = if name == "bf16" { FloatDType::BF16 } else { FloatDType::F32 };
            assert_eq!(precision.policy.compute, compute, "{name}");
            assert_eq!(name.parse::<Precision>().is_ok(), name == "f32", "only files have {name}");
        }
        let arm: Arm = serde_json::from_str("\"fp8-row-e4m3-without-head\"").expect("an arm");
        assert_eq!(arm.to_string(), "m=fp8_rowwise_e4m3,fused=off-without-head");
    }
}
