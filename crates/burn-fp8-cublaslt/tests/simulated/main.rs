//! What only a simulated device shows: faults on demand, what is left behind, and which products NVIDIA's documentation refuses.
//!
//! `cargo xtask sim` runs it; nothing of it needs, or has run on, a GPU.
#![allow(unsafe_code, reason = "passes device pointers, and asks the simulation for its counts")]

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "shared with the tests that a GPU runs")]
#[path = "../gpu/data.rs"]
mod data;
#[allow(dead_code, reason = "shared with the tests that a GPU runs")]
#[path = "../gpu/device.rs"]
mod device;
mod faults;
mod grid;
mod leftovers;
