//! What a checkpoint hands out: quantized layers and plain tensors.

mod info;
mod linear;
mod plain;
mod scales;

pub use info::{LayerInfo, TensorInfo};
pub use linear::{Activations, QuantizedLinear};
pub use plain::PlainTensor;
pub use scales::Scales;
