//! Backends other than those of a CPU or a GPU: one that Burn does not know, and Burn's Router.

mod foreign;
#[cfg(all(feature = "router", feature = "ndarray"))]
mod router;
