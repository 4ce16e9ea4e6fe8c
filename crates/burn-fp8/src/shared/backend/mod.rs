//! What the decorator does by itself, on whatever Burn.

pub(crate) mod convert;
pub(crate) mod convolution;
mod fp8;
pub(crate) mod intercept;
#[macro_use]
pub(crate) mod quantized;
