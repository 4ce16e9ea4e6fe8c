//! What Burn 0.22 has as well, in the crate `burn-fp8-next`: what is decided about products, how they run, what is
//! reported. The folder `backend`, the decorator's own operations, is a module of the decorator.

pub(crate) mod config;
pub(crate) mod file;
pub(crate) mod product;
pub mod report;
pub(crate) mod weights;
