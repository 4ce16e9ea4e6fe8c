//! The products of training in FP8: the decision, the three GEMMs, their backward step, the sites of delayed scaling.
//!
//! ```text
//! route: a product of the user's code
//! plan: FP8 or not, and what runs it?  → Product
//!   Fp8Products: Autodiff<B> quantizes once, saves codes and registers a backward step (autodiff); any other B just runs
//!     gemms: the three GEMMs, of operands that a Quantizer quantizes: the Product, by its recipe and the histories of its site (delayed);
//!                                                                     an FP8 layer, by its own state
//! ```

mod activation;
mod attention;
mod autodiff;
pub mod delayed;
mod frozen;
pub(crate) mod frozen_layer;
pub(crate) mod gemms;
mod norm;
mod operand;
mod ops;
mod plan;
mod pointwise;
pub(crate) mod route;

pub use activation::ActivationScale;
pub use frozen::FrozenOptions;
pub(crate) use operand::{Gemms, Quantizer, SavedOperand};
pub use ops::Fp8Products;
pub use plan::Product;
pub(crate) use plan::target;
