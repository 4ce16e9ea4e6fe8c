//! On the backends of the CPU, on one that Burn does not know, and on Burn's Router: all that needs no GPU.
//!
//! What belongs to the process, such as defaults and the unit in use, is changed in a process of its own: [`common::alone`].
#![cfg(feature = "flex")]

#[path = "backends/backend/mod.rs"]
mod backend;
mod backends;
mod common;
mod decorator;
mod delayed;
mod inference;
mod layers;
mod observatory;
mod reference;
