//! The observatory: how well FP8 fits each product, step by step.
#![cfg(feature = "flex")]

#[path = "../common/mod.rs"]
mod common;

mod learner;
mod numbers;
mod steps;
