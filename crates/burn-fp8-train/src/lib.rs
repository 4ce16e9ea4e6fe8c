//! For training any Burn model, in FP8 or not: what lies around the decorator of [`burn_fp8`].
//!
//! - [`policy`]: the precision of a run by one string, such as `p=f32,c=bf16,m=fp8`; casts of tensors and modules.
//! - [`policy::LossScale`] and [`LossScaledOptimizer`]: gradients that would vanish in f16.
//! - [`Moments8Config`]: AdamW, Adam and Lion whose moments are FP8 codes, a quarter of their memory.
//! - [`peers`]: processes or threads that train one model together; [`PeersOptimizer`] adds up their gradients.
//!
//! Optimizers go around each other in this order: `PeersOptimizer::new(LossScaledOptimizer::new(Fp8Optimizer::new(optimizer), scale), peers)`.

mod loss_scaled;
mod moments;
pub mod peers;
mod peers_optimizer;
pub mod policy;

pub use burn_fp8_cpu::moments::{Rule, Second};
pub use loss_scaled::{LossScaledItem, LossScaledOptimizer, LossScaledRecord};
pub use moments::{Moments8, Moments8Config, Moments8Item, Moments8State, from_adamw};
pub use peers_optimizer::{PeersOptimizer, Wire, share_weights};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
