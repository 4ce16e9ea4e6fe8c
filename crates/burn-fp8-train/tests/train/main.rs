//! Training any Burn model: policies as text, casts of tensors and modules, loss scaling; moments in FP8; peers.

#[path = "../../../burn-fp8/tests/common/mod.rs"]
mod common;

mod cast;
mod loss_scale;
mod moments;
mod peers;
mod text;
mod training;
