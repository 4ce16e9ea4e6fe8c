//! The products of training in FP8: the decision, the three GEMMs, their backward step, the sites of delayed scaling.
//!
//! ```text
//! route: a product of the user's code
//! plan: FP8 or not, and what runs it?  → Product
//!   run: quantizes once, multiplies, and has the graph record a backward step that holds codes, where there is one
//!     gemms: the three GEMMs, of operands that a Quantizer quantizes: the Product, by its recipe and the histories of its site (delayed);
//!                                                                     an FP8 layer, by its own state
//! ```

mod activation;
pub mod delayed;
mod frozen;
pub(crate) mod frozen_layer;
pub(crate) mod gemms;
mod held;
mod operand;
pub(crate) mod plan;
pub(crate) mod route;
mod run;

pub use activation::ActivationScale;
pub(crate) use held::{Held, Known};
pub(crate) use operand::{Gemms, Quantizer, SavedOperand};
pub(crate) use plan::Product;
pub(crate) use plan::target;
