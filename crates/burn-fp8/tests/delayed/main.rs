//! Delayed scaling in the decorator.

#[path = "../common/mod.rs"]
mod common;

mod files;
mod scales;
mod sites;
mod steps;
mod weights;
