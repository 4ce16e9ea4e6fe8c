//! FP8 matrix products for Burn: wrap a backend in [`Fp8Backend`] and its matrix products run in FP8.
//!
//! On Flex, CPUs with AVX-512 BF16 or AMX multiply the codes themselves, faster than f32. On CUDA devices of compute capability 8.9 and newer
//! cuBLASLt is to do that; that path has never run on a GPU. Elsewhere FP8 is emulated: operands are rounded to FP8 codes,
//! then multiplied in f32.
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn_fp8::Fp8Backend;
//!
//! // Was: type B = Autodiff<Flex>;
//! type B = Fp8Backend<Autodiff<Flex>>;
//! ```
//!
//! - [`Fp8Config`] says what runs in FP8 and how: a [`Filter`], a [`Recipe`] for scales, an [`Execution`]; as a process-wide
//!   default or for a scope. [`gains`] measures which products FP8 makes faster on this machine, and leaves the others alone.
//! - [`DelayedState`] holds the amax histories of delayed scaling, outside of the model.
//! - [`trace`](trace()) reports every product: role, shape, formats, scales, and what ran it; [`report::Observatory`] how well FP8 fits, over time.
//! - [`nn`] has FP8 layers with delayed scaling, for models that take to FP8 layer by layer, without the decorator if need be;
//!   [`optim`] trains them, [`nn::FrozenLinear`] serves them, and [`ops`] has the operations that they consist of.
//! - The crate `burn-fp8-train` has mixed precision by one string, loss scaling, optimizers with moments in FP8, and peers that train one model together.
//! - [`Fp8Tensor`] and [`scaled_matmul`] are the low-level interface: codes with their scale, and one product of two of them with bias,
//!   activation, FP8 output and amax, as [`ScaledMatmulOptions`] says.
//! - [`Fp8Matmul`] is the bound of generic code. [`engine`] is for authors of backends: [`fp8_backend!`] opts one in, with one line.
//!
//! Numbers and rules that need no Burn are in the crate [`burn_fp8_core`].

mod backend;
pub mod gains;
pub mod nn;
pub mod ops;
pub mod optim;
mod shared;
pub mod tensor;

pub use backend::{Fp8Backend, Fp8Matmul};
pub use burn_fp8_checkpoint as checkpoint;
pub use burn_fp8_core;
pub use burn_fp8_core::sums::{self, Accumulation, Sums};
pub use burn_fp8_core::{
    AmaxChoice, AttentionPrecision, Delayed, Dropout, Filter, Formats, Fp8Format, Gains, Gemm,
    GemmRole, Granularity, NamedWeight, Precision, ProductKind, Products, Recipe, Saved,
    ScaleRounding, Scaling,
};
pub use burn_fp8_cpu as cpu;
#[doc(inline)]
pub use burn_fp8_engine as engine;
pub use burn_fp8_engine::fp8_backend;
pub(crate) use burn_fp8_engine::host;
pub use burn_fp8_engine::{Activation, Capability, Execution, Fp8Error};
#[doc(inline)]
pub use burn_fp8_fused as fused;
pub use config::{Fp8Config, ProductInfo, high_precision};
pub use product::delayed;
pub use product::delayed::{DelayedRecord, DelayedState};
pub use report::{Report, trace};
pub use shared::report;
pub(crate) use shared::{config, file, product, weights};
pub use tensor::{Fp8Tensor, ScaledMatmulOptions, scaled_matmul};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
