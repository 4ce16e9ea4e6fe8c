//! The C functions of libcuda and libcublasLt that this crate calls, and thin wrappers that return `Result`.
//!
//! cudarc finds and loads the libraries. The functions are declared here instead of taken from `cudarc::*::sys` for three
//! reasons: a function that an older library lacks is an error here and a panic there; statuses stay integers, so that one
//! unknown to the bindings is no undefined behaviour; and the CUDA version that cudarc was built for does not matter.
//! `tests/constants.rs` compares the numbers with cudarc's bindings.
#![allow(unsafe_code, reason = "calls C functions; each wrapper states its contract")]

pub mod constants;
pub mod driver;
pub mod lt;
mod table;
