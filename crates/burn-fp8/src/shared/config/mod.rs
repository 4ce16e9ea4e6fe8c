//! What runs in FP8, and how: the configuration, its default and its scopes.

mod ambient;
mod except;
pub(crate) mod scope;

use std::path::Path;

use burn::config::Config;
use burn_backend::{Backend, DType};
use burn_fp8_core::json::{Object, object};
use burn_fp8_core::sums::{Accumulation, Accumulations, Sums};
use burn_fp8_core::text::shown;
use burn_fp8_core::{AttentionPrecision, Filter, Gemm, GemmRole, Precision, Recipe, Saved};
use serde::{Deserialize, Serialize};

#[allow(unused_imports, reason = "not every crate asks")]
pub(crate) use ambient::is_in_scope;
pub(crate) use ambient::{Ambient, current};
pub use ambient::{ProductInfo, high_precision};
pub(crate) use except::Weights;

use crate::Fp8Error;
use crate::engine::{
    Capability, Execution, Fp8Engine, Manner, Problem, Requirements, Target, usable,
};
use crate::file;

/// The largest configuration file read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The most characters of what is wrong with JSON that an error repeats: the names that it has may be long.
const MAX_MESSAGE: usize = 400;

/// What runs in FP8, and how.
///
/// The default runs linear layers and 2-D products with dimensions of at least 16 in FP8, with current scaling.
///
/// A product uses the configuration of the innermost scope on its thread ([`scope`](Self::scope)), else the process-wide
/// default ([`set_default`](Self::set_default)). Scopes do not cross threads.
///
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/config.md"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Object<Fields>")]
pub struct Fp8Config {
    /// Whether anything runs as the recipe says: in FP8, unless that has bf16 for all products.
    pub enabled: bool,
    /// How scales are chosen.
    pub recipe: Recipe,
    /// Which products run in FP8.
    pub filter: Filter,
    /// How they are run.
    pub execution: Execution,
    /// Whose sums emulated products have: f32 by default, which no tensor core has. Those of a card are known to the bit; [`Sums::evidence`] says on what they were checked, and the
    /// trace what is not known. They are slower: on a CPU with AVX-512 some three times as long as f32. Where the device is that card, products run natively.
    pub sums: Sums,
    /// Which products accumulate fast, with one scale for each tensor: those with several always split; `scaled_matmul` has an option of its own. Of tensor cores, and of their [`sums`](Self::sums) where these are emulated.
    pub accumulation: Accumulations,
    /// Whether tensor cores are given products with scales of blocks, off by default: no GPU has run these for this project yet. On a simulated device they give what the
    /// emulation gives. MXFP8 needs compute capability 10.0 (Blackwell), blocks of 128 need 9.0 (Hopper) and CUDA 12.9; elsewhere the products are emulated, and the trace
    /// says why. Matrix units of CPUs run such products whatever this says.
    pub native_blocks: bool,
    /// Whether operations of Burn run as one each, in f32, where the backend has kernels for them, which Flex has, while FP8 is on: attention (but for what the
    /// [`filter`](Self::filter) takes of it), layer normalization, softmax and GELU; the random bits of dropout are drawn on all threads, by another generator than that of `B`, which gives it its seed; and whether products in high precision [`join`](Self::join). On by
    /// default; without FP8 nothing is.
    pub fused: bool,
    /// How attention, normalization, softmax, GELU, SiLU and gated activations keep what their backward steps take, while FP8 is on, where they are [`fused`](Self::fused)
    /// on the host: as it is by default, or in FP8, which saves memory and costs a pass over each. Elsewhere it is kept as it is; a trace says so.
    /// Where Autodiff lies around `Fp8Backend`, this is of `fused::ops` alone.
    pub saved: Saved,
    /// Whether products in high precision join batch and rows of `[…, K]` to one matrix where it is multiplied by one weight, as those in FP8 do, forward and
    /// backward; on any backend, also where FP8 is off. Burn 0.21 multiplies the matrices of a batch one by one; which way is faster depends on
    /// CPU, threads and shapes. Where Autodiff lies around `Fp8Backend`, the gradient of the right operand of a plain `matmul` stays as Burn asks for it.
    pub join: bool,
    /// In which precision Burn's own operation `attention` runs as one: without scores in memory, forward and backward, on Flex; in f32 where FP8 is off. None by
    /// default: then it is as [`fused`](Self::fused) says. Where Autodiff lies around `Fp8Backend`, it is one in inference alone. What `burn::nn` calls
    /// attention does not call that operation; `nn::Fp8Attention` is one.
    ///
    /// With it go Burn's layer normalization (`nn::LayerNorm`) and GELU: one step of Autodiff each, in f32, which keeps its input alone. On Flex that is one pass on all threads
    /// forward and one backward; elsewhere it is several operations, more than LibTorch's own. GELU and its gradient are by the error function; Burn's gradient elsewhere than on Flex and LibTorch, and
    /// Candle's GELU, approximate it by tanh. f64 tensors keep what `B` does. Where Autodiff lies around `Fp8Backend`, layer normalization is one in inference alone.
    pub attention: Option<AttentionPrecision>,
}

/// The fields as they are read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default = "is_enabled")]
    enabled: bool,
    #[serde(default)]
    recipe: Recipe,
    #[serde(default, deserialize_with = "object")]
    filter: Filter,
    #[serde(default)]
    execution: Execution,
    #[serde(default)]
    sums: Sums,
    #[serde(default, deserialize_with = "object")]
    accumulation: Accumulations,
    #[serde(default)]
    native_blocks: bool,
    #[serde(default = "is_fused")]
    fused: bool,
    #[serde(default)]
    saved: Saved,
    #[serde(default)]
    join: bool,
    #[serde(default)]
    attention: Option<AttentionPrecision>,
}

fn is_enabled() -> bool {
    Fp8Config::default().enabled
}

fn is_fused() -> bool {
    Fp8Config::default().fused
}

impl TryFrom<Object<Fields>> for Fp8Config {
    type Error = String;

    fn try_from(Object(fields): Object<Fields>) -> Result<Self, String> {
        let Fields { enabled, recipe, filter, execution, .. } = fields;
        let Fields { sums, accumulation, native_blocks, fused, saved, join, attention, .. } =
            fields;
        let config = Self {
            enabled,
            recipe,
            filter,
            execution,
            sums,
            accumulation,
            native_blocks,
            fused,
            saved,
            join,
            attention,
        };
        match config.validate() {
            Ok(()) => Ok(config),
            Err(Fp8Error::InvalidConfig(reason)) => Err(reason),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Default for Fp8Config {
    fn default() -> Self {
        Self {
            enabled: true,
            recipe: Recipe::default(),
            filter: Filter::default(),
            execution: Execution::default(),
            sums: Sums::default(),
            accumulation: Accumulations::default(),
            native_blocks: false,
            fused: true,
            saved: Saved::default(),
            join: false,
            attention: None,
        }
    }
}

/// Burn's [`Config`], so that an `Fp8Config` can be a field of a training configuration.
impl Config for Fp8Config {}

impl Fp8Config {
    /// Nothing runs in FP8: `Fp8Backend<B>` is exactly `B`, unless products are to [`join`](Self::join) or [`attention`](Self::attention) and what goes with it are one operation each.
    pub fn off() -> Self {
        Self { enabled: false, ..Self::default() }
    }

    /// The same configuration with another recipe.
    pub fn with_recipe(self, recipe: Recipe) -> Self {
        Self { recipe, ..self }.forget_gains_of(self)
    }

    /// The same configuration with another filter.
    pub fn with_filter(self, filter: Filter) -> Self {
        Self { filter, ..self }
    }

    /// The same configuration with another execution.
    pub fn with_execution(self, execution: Execution) -> Self {
        Self { execution, ..self }.forget_gains_of(self)
    }

    /// The same configuration whose emulated products have these [`sums`](Self::sums): `Sums::Hopper` computes what an H100 does.
    pub fn with_sums(self, sums: Sums) -> Self {
        Self { sums, ..self }.forget_gains_of(self)
    }

    /// The same configuration with one of the three products accumulating fast, or split: [`accumulation`](Self::accumulation).
    pub fn with_accumulation(self, role: GemmRole, accumulation: Accumulation) -> Self {
        Self { accumulation: self.accumulation.with(role, accumulation), ..self }
            .forget_gains_of(self)
    }

    /// How its products are run.
    pub(crate) fn manner(&self) -> Manner {
        let Self { execution, native_blocks, sums, .. } = *self;
        Manner { execution, native_blocks, sums }
    }

    /// The same configuration with products with scales of blocks given to tensor cores, or not: [`native_blocks`](Self::native_blocks).
    pub fn with_native_blocks(self, native_blocks: bool) -> Self {
        Self { native_blocks, ..self }.forget_gains_of(self)
    }

    /// Without what was measured, where products run otherwise than they were measured.
    fn forget_gains_of(self, measured: Self) -> Self {
        let how = |config: Self| {
            let Self { recipe, execution, native_blocks, sums, accumulation, .. } = config;
            (recipe, execution, native_blocks, sums, accumulation)
        };
        match how(self) == how(measured) {
            true => self,
            false => Self { filter: Filter { gains: None, ..self.filter }, ..self },
        }
    }

    /// The same configuration whose operations are fused where there are kernels, or are not: [`fused`](Self::fused).
    pub fn with_fused(self, fused: bool) -> Self {
        Self { fused, ..self }
    }

    /// The same configuration that keeps what backward steps take so: [`saved`](Self::saved).
    pub fn with_saved(self, saved: Saved) -> Self {
        Self { saved, ..self }
    }

    /// Whether operations on a backend's tensors are fused without being asked for each.
    pub(crate) fn fuses<B: Fp8Engine>(&self) -> bool {
        self.enabled && self.fused && B::FP8_ON_HOST
    }

    /// In which precision attention of this backend is one operation, if it is: for code of your own that has a way of its own beside.
    pub fn fused_attention<B: Fp8Engine>(&self) -> Option<AttentionPrecision> {
        self.attention.or(self.fuses::<B>().then_some(AttentionPrecision::High))
    }

    /// The same configuration whose products in high precision join batch and rows, or do not: [`join`](Self::join).
    pub fn with_join(self, join: bool) -> Self {
        Self { join, ..self }
    }

    /// The same configuration whose attention, and with it layer normalization and GELU, run as one operation each, or do not: [`attention`](Self::attention).
    pub fn with_attention(self, attention: Option<AttentionPrecision>) -> Self {
        Self { attention, ..self }
    }

    /// Checks that products can run as this configuration says, on this backend and device.
    ///
    /// What depends on a product is not known before it runs: scales of blocks that are too far apart for a matrix unit, and batches of matrices
    /// with several scales, which tensor cores are not given.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidConfig`] for a recipe out of range, or with bf16 on a backend without it; [`Fp8Error::NativeUnavailable`] where native execution is
    /// asked for and the device, or the recipe, has none; [`Fp8Error::DeviceUnusable`] where the device computes nothing.
    pub fn check<B: Fp8Engine>(&self, device: &B::Device) -> Result<(), Fp8Error> {
        self.validate()?;
        self.check_bf16::<B>(device)?;
        if !self.enabled || self.execution != Execution::Native {
            return usable::<B>(device).map(|_| ());
        }
        let kind = Requirements::of_recipe(&self.recipe, Gemm::matrix(1, 1, 1));
        let target = Target::of::<B>(device, kind, self.manner())?;
        match target {
            Target::TensorCores if kind.blocks.is_some() => {
                match B::fp8_capability(device, Some(&Problem::of_recipe(&self.recipe))) {
                    Capability::FakeQuantized { reason } => {
                        let (backend, reason) = (<B as Backend>::name(device), reason.into_owned());
                        Err(Fp8Error::NativeUnavailable { backend, reason })
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether a backend has the bf16 that the recipe asks for.
    pub(crate) fn check_bf16<B: Backend>(&self, device: &B::Device) -> Result<(), Fp8Error> {
        let is_wanted = GemmRole::ALL.map(|role| self.recipe.products.of(role) == Precision::Bf16);
        if !self.enabled || !is_wanted.contains(&true) || B::supports_dtype(device, DType::BF16) {
            return Ok(());
        }
        let remedy = "choose FP8 or high precision for them";
        let reason = format!("backend `{}` has no bf16 for products; {remedy}", B::name(device));
        Err(Fp8Error::InvalidConfig(reason))
    }

    /// Checks what does not depend on a device. What was read from JSON is valid.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidConfig`] for a recipe or an accumulator out of range, and for sums of a card that has none of such scales.
    pub fn validate(&self) -> Result<(), Fp8Error> {
        let invalid = |error: String| Fp8Error::InvalidConfig(error);
        self.recipe.validate().map_err(|error| invalid(error.to_string()))?;
        self.sums.validate().map_err(|error| invalid(error.to_string()))?;
        Requirements::of_recipe(&self.recipe, Gemm::matrix(1, 1, 1)).check_sums(self.sums)
    }

    /// The configuration as indented JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, booleans and names always serialize")
    }

    /// Reads a configuration from JSON. Missing fields take their defaults; a [`Recipe`] may be given by its name.
    ///
    /// # Errors
    /// [`Fp8Error::InvalidConfig`], with line and column, for malformed JSON, unknown fields and names, which it lists, and values out of range.
    pub fn from_json(json: &str) -> Result<Self, Fp8Error> {
        serde_json::from_str(json)
            .map_err(|error| Fp8Error::InvalidConfig(shown(&error.to_string(), MAX_MESSAGE)))
    }

    /// Writes the configuration to a JSON file.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        file::write(path.as_ref(), (self.to_json() + "\n").as_bytes())
    }

    /// Reads a configuration from a JSON file of at most 1 MiB.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json), and [`Fp8Error::Io`], also where the path is no regular file, [`Fp8Error::TooLarge`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Fp8Error> {
        let path = path.as_ref();
        let bytes = file::read(path, MAX_FILE_BYTES)?;
        let json = String::from_utf8(bytes).map_err(|error| {
            Fp8Error::InvalidConfig(format!("{}: not UTF-8 text: {error}", path.display()))
        })?;
        Self::from_json(&json).map_err(|error| match error {
            Fp8Error::InvalidConfig(reason) => {
                Fp8Error::InvalidConfig(format!("{}: {reason}", path.display()))
            }
            other => other,
        })
    }
}
