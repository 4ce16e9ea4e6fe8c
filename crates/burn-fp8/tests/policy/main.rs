//! Mixed precision: policies as text, casts of tensors and modules, and loss scaling.

#[path = "../common/mod.rs"]
mod common;

mod cast;
mod loss_scale;
mod text;
mod training;
