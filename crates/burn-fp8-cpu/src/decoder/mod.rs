//! A decoder on slices: layers, what they do between products, and what they write to a cache.
//!
//! Nothing here knows a framework, whose operations take as long for a single token as the products do. A layer may have one multiply, as it does for
//! prompts.

mod between;
mod cache;
mod layer;
mod linear;

pub use between::{rms_norm, swiglu, turn};
pub use cache::{CachePart, to_bf16};
pub use layer::{Layer, Matrix, Next, Products, Workspace};
pub use linear::{Inputs, Linear, Memory, multiply};
