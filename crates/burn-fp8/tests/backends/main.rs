//! Backends other than those of a CPU or a GPU: one that Burn does not know, and Burn's Router.
#![cfg(feature = "flex")]

mod backend;
#[path = "../common/mod.rs"]
mod common;

mod foreign;
#[cfg(all(feature = "router", feature = "ndarray"))]
mod router;
