//! FP8 matrix products for Burn 0.22: the engine of `burn-fp8`, as operations and layers.
//!
//! - [`nn::Fp8Linear`] is made from Burn's `Linear`; [`ops::matmul`] and [`ops::linear`] are the products themselves.
//! - [`Fp8Config`] says what runs in FP8 and how: a [`Filter`], a [`Recipe`] for scales, an [`Execution`]; as a process-wide default or for a scope.
//! - `device::flex`, with the feature `device`, is a device on which unmodified models run in FP8.
//! - [`DelayedState`] holds the amax histories of delayed scaling, outside of the model. Under delayed scaling call [`ops::backward`].
//! - [`trace`](trace()) reports every product: role, shape, formats, scales, and what ran it; [`report::Observatory`] how well FP8 fits, over time.
//!
//! On Flex, with the matrix unit of the CPU; emulated on backends of CubeCL and on remote devices, each behind Burn's feature of its name. What `burn-fp8`
//! has beyond that, for Burn 0.21, stands in the README.
#![expect(
    unused_imports,
    dead_code,
    reason = "config, engine, product and report are folders of burn-fp8, whose other folders use more of them"
)]

#[cfg(feature = "device")]
mod backend;
#[cfg(feature = "device")]
pub mod device;
pub mod engine;
mod fused;
mod host;
pub mod nn;
pub mod ops;
pub mod peers;
mod shared;
mod words;

pub use shared::report;
pub(crate) use shared::{config, file, product, weights};

pub use burn_fp8_checkpoint;
pub use burn_fp8_core;
pub use burn_fp8_core::sums::{self, Accumulation, Sums};
pub use burn_fp8_core::{
    AmaxChoice, AttentionPrecision, Delayed, Dropout, Filter, Formats, Fp8Format, Gemm, GemmRole,
    Granularity, NamedWeight, Precision, ProductKind, Products, Recipe, Saved, ScaleRounding,
    Scaling,
};
pub use config::{Fp8Config, ProductInfo, high_precision};
pub use engine::{Activation, Capability, Execution, Fp8Error};
pub use product::delayed;
pub use product::delayed::{DelayedRecord, DelayedState};
pub use report::{Report, trace};

#[cfg(all(doctest, feature = "device"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../MIGRATION.md")]
    struct Migration;

    #[doc = include_str!("../UPSTREAM.md")]
    struct Upstream;
}
