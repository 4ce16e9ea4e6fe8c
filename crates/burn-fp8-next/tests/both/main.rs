//! The same on Burn 0.21 and on this Burn.
#![cfg(feature = "flex")]

#[path = "../here/common.rs"]
mod common;
mod frozen;
mod same_numbers;
#[cfg(feature = "device")]
mod transformer;
