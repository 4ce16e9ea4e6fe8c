//! The products of training in FP8: the decision, the three GEMMs, their backward step, the sites of delayed scaling.
//!
//! ```text
//! plan: FP8 or not, native or emulated?  → Product
//!   Fp8Products: Autodiff<B> quantizes once, saves codes and registers a backward step (autodiff); any other B just runs
//!     run → gemms, the three GEMMs, by one Scheme: Native, Units, Emulated, Rowwise or Blocks
//!       operands are quantized by a Quantizer: the Product, by its recipe and the histories of its site (delayed);
//!                                              an FP8 layer, by its own state
//! ```

mod autodiff;
mod blocks;
pub mod delayed;
mod emulated;
pub(crate) mod gemms;
mod native;
mod operand;
mod ops;
mod plan;
mod rowwise;
mod run;
pub(crate) mod scheme;
mod units;

pub(crate) use emulated::{Emulated, Multiply};
pub(crate) use native::Native;
pub(crate) use operand::{Measured, SavedOperand};
pub use ops::Fp8Products;
pub use plan::Product;
pub(crate) use plan::{capability, linear_gemm, native_unavailable, path, usable};
pub(crate) use units::{MeasuredCodes, Units};
