//! What a backend does with FP8 codes, whatever they are for.
//!
//! [`Fp8Engine`] is what the author of a backend implements, or takes as it is with [`fp8_backend!`](crate::fp8_backend). The portable
//! defaults are tensor operations; Flex works on its memory, CubeCL's backends with kernels and, on CUDA, cuBLASLt; under Burn's Fusion each
//! operation is a node of the stream.
//!
//! Nothing here reads configurations, writes traces or knows sites: the modules above do. Of training it knows the operands of a
//! [`Recipe`](burn_fp8_core::Recipe), to tell beforehand where its products run.

mod autodiff;
mod backend;
mod backends;
mod capability;
mod codes;
#[cfg(feature = "cubecl")]
#[doc(hidden)]
pub mod cube;
mod error;
#[cfg(feature = "flex")]
#[doc(hidden)]
pub mod flex;
#[cfg(feature = "fusion")]
mod fusion;
mod graph;
mod launch;
mod leaf;
mod matrix;
mod multiply;
mod padding;
#[doc(hidden)]
pub mod portable;
mod problem;
mod product;
mod request;
mod scalar;
mod sums;
mod target;
#[doc(hidden)]
pub mod tensor;

pub use backend::decode;
pub use backend::{Fp8Engine, Untracked};
pub use capability::{Capability, Fallback, MatrixUnit, NativeDevice};
pub use codes::Codes;
pub use error::Fp8Error;
pub use graph::{Graph, Settings, Step, Watch, Watched, nothing, values, without_graph};
pub use launch::{LaunchNote, Launched, Otherwise};
pub use launch::{raise_refusal, take_refusal};
pub use leaf::{Leaf, Name};
pub use matrix::{Matrix, MatrixOf, ScaleKind, Scales, WHOLE};
pub use multiply::{check, multiply, multiply_high};
pub use portable::in_f32;
pub use problem::blocks_of;
pub use problem::{Problem, ProblemOutput};
pub use product::{
    Activation, Added, Epilogue, EpilogueOf, Operand, OperandOf, OutputType, Product, ProductOf,
    Run, Target,
};
pub use request::{Request, RequestOf, ScaleRule, ScaleRuleOf, Wanted};
pub use scalar::check_scale;
pub use scalar::{Scalar, ScalarOf};
pub use target::Execution;
pub use target::{Form, Manner, Requirements, has_tensor_cores_for, usable};
