//! Training models with FP8 state in them.
//!
//! The state of the layers of [`nn`](crate::nn) is in the model as parameters whose gradients are their new values.
//! [`Fp8Optimizer`] wraps an optimizer so that it overwrites them; [`Fp8GradientsAccumulator`] combines them over micro-batches, by their
//! maximum.
//! The crate `burn-fp8-train` has optimizers that go around either: loss scaling, peers; and one to go into it, with moments in FP8.
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

pub use accumulator::Fp8GradientsAccumulator;
pub use fp8::{Fp8Optimizer, Fp8OptimizerItem, Fp8OptimizerRecord, is_inside_fp8_optimizer};
