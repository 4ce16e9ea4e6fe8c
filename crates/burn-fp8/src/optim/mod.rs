//! Training models with FP8 state in them.
//!
//! The state of the layers of [`nn`](crate::nn) is in the model as parameters whose gradients are their new values.
//! [`Fp8Optimizer`] wraps an optimizer so that it overwrites them; [`Fp8GradientsAccumulator`] combines them over micro-batches, by their
//! maximum.
//! [`LossScaledOptimizer`] goes around either, with the loss scaling of [`policy`](crate::policy).
//!
//! [`Moments8`] keeps the moments of AdamW, Adam or Lion in FP8, a quarter of their memory.
//!
//! # What happens without them
//! Whatever adds gradients up would add up scales and amaxes. It cannot do so unseen:
//! - A plain optimizer that is handed the gradient of FP8 state panics: [`Fp8State`](crate::nn::Fp8State) notices when it is stepped.
//! - Burn's `GradientsAccumulator`, and so Learner's accumulation, hand sums to the optimizer. New values travel with their square
//!   roots, and the root of a sum is not the sum of the roots: [`Fp8Optimizer`] reads both and panics. The same holds for means,
//!   as of a collective operation over devices, unless their values are so close that the mean is as good as the maximum.
//! - `MultiGradientsParams` of several devices hold the gradients of each device apart: [`Fp8Optimizer::step_multi`](burn::optim::Optimizer::step_multi)
//!   combines FP8 state by maximum.

mod accumulator;
mod fp8;
mod gradients;
mod loss_scaled;
mod moments;
mod moments_state;
mod peers;

pub use accumulator::Fp8GradientsAccumulator;
pub use burn_fp8_core::moments::{Rule, Second};
pub use fp8::{Fp8Optimizer, Fp8OptimizerItem, Fp8OptimizerRecord};
pub use loss_scaled::{LossScaledItem, LossScaledOptimizer, LossScaledRecord};
pub use moments::{Moments8, Moments8Config, from_adamw};
pub use moments_state::{Moments8Item, Moments8State};
pub use peers::{PeersOptimizer, Wire, share_weights};
