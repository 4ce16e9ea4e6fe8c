//! FP8 matrix products on cuBLASLt: no tensors, no framework, only shapes, device pointers and a CUDA context.
//!
//! - [`ScaledMatmul`] describes a product in row-major terms; [`plan()`] checks it against every documented rule and translates it into
//!   cuBLASLt's column-major terms. Pure: it needs no GPU, and its [`PlanError`] names the [`Rule`], the values and the remedy.
//! - [`Capability::probe`] says whether FP8 products can run here; [`Unavailable`] names what is missing and how to get it.
//! - [`CublasLt`] runs products in the current CUDA context: it plans, asks the heuristics once, keeps the algorithm, and can
//!   [search](CublasLt::tune) for a faster one by timing.
//! - [`SideStream`] orders its work with all other streams of the context, which may be private to a framework.
//!
//! burn-fp8 uses single products with a scale per tensor or none, with bias, activation and amax, by the heuristics' first choice.
//! C, batches, scales per row and block, auxiliary outputs and the timed search are for other users of this crate.
//!
//! What runs on the device has run on a simulated one only: no GPU was at hand.
//!
//! Three layers: [`raw`] declares the C functions and returns their status as `Result`; [`descriptor`] and [`context`] own handles and memory; the
//! types above check everything before they call. Libraries are loaded when first used: see [`library`].
//!
//! ```
//! use burn_fp8_cublaslt::{Capability, DataType, ScaledMatmul};
//! use burn_fp8_core::Fp8Format::E4M3;
//!
//! let product = ScaledMatmul::new(64, 4096, 1024, E4M3, E4M3, DataType::Bf16);
//! match Capability::probe(0) {
//!     Ok(capability) => println!("{:?}", burn_fp8_cublaslt::plan(&product, &capability)),
//!     Err(unavailable) => println!("{unavailable}"),
//! }
//! ```

mod algorithm;
pub mod cache;
mod call;
mod capability;
pub mod context;
pub mod descriptor;
mod error;
mod execute;
pub mod library;
pub mod plan;
mod problem;
pub mod raw;
mod stream;
mod unavailable;
mod version;

pub use algorithm::{AlgorithmInfo, Choice, Search};
pub use call::Pointers;
pub use capability::{Capability, OLDEST_LIBRARY, OLDEST_LIBRARY_FOR_BLACKWELL, require_device};
pub use error::{ContextError, Error};
pub use execute::{CublasLt, Launch, WORKSPACE_BYTES};
#[doc(hidden)]
pub use plan::plan_unchecked;
pub use plan::{Plan, PlanError, Rule, plan};
pub use problem::{
    Accumulation, Activation, Alignment, Aux, AuxKind, Bias, BlockScale, DataType, Epilogue,
    Matrix, Operand, ScaledMatmul, Scales, Shape,
};
#[doc(hidden)]
pub use raw::lt::launches;
pub use stream::{Ordering, SideStream};
pub use unavailable::Unavailable;
pub use version::{ComputeCapability, DriverVersion, LibraryVersion};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
