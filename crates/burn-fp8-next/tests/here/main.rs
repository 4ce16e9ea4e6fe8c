//! Layers, operations and the served device on this Burn, against other libraries and Burn's own operations.
#![cfg(feature = "flex")]

mod attention;
mod common;
#[cfg(feature = "device")]
mod device;
mod golden;
mod layers;
#[cfg(all(feature = "device", feature = "burn-0-23"))]
mod quantized;
