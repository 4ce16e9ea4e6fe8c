//! Mixed precision: which dtype parameters are stored in, the model computes with and gives out, and how matrix products run.
//!
//! A [`Policy`] is that as one string, in the grammar of [JMP](https://github.com/google-deepmind/jmp) with two keys more, `m` and `a`. Keep parameters
//! in f32, compute in bf16 with matrix products in FP8, and take the loss in f32:
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::GradientsParams;
//! use burn::tensor::{DType, Tensor};
//! use burn_fp8::{Fp8Backend, trace};
//! use burn_fp8_train::policy::{self, Policy};
//!
//! type B = Fp8Backend<Autodiff<Flex>>;
//!
//! // In the model: what the policy in force says; without one these casts do nothing.
//! fn loss(model: &Linear<B>, x: Tensor<B, 2>) -> Tensor<B, 1> {
//!     let model = policy::cast_module_to_compute(model);
//!     let y = model.forward(policy::cast_to_compute(x));
//!     policy::cast_to_output(y).powi_scalar(2).mean()
//! }
//!
//! let device = Default::default();
//! let model = LinearConfig::new(32, 16).init::<B>(&device);
//! let x = Tensor::ones([16, 32], &device);
//!
//! let policy = Policy::parse("p=f32,c=bf16,o=f32,m=fp8")?;
//! let (loss, report) = policy.scope(|| trace(|| loss(&model, x)));
//! assert_eq!(loss.dtype(), DType::F32);
//! assert_eq!(report.fp8().count(), 1);
//! // The gradient is that of the parameter itself, in its dtype.
//! let gradients = GradientsParams::from_grads(loss.backward(), &model);
//! let gradient: Tensor<Fp8Backend<Flex>, 2> = gradients.get(model.weight.id).expect("a gradient");
//! assert_eq!(gradient.dtype(), DType::F32);
//! # Ok::<(), burn_fp8::Fp8Error>(())
//! ```
//!
//! # In force
//! A policy is in force for a scope ([`Policy::scope`]) or for the process ([`Policy::set_default`]), in the scopes of
//! [`Fp8Config`](burn_fp8::Fp8Config): an `Fp8Config::scope` or [`high_precision`](burn_fp8::high_precision) inside keeps the policy, and decides
//! about FP8 again; a policy with the key `m` sets recipe and on or off of the configuration around it. Scopes do not cross threads.
//!
//! A dtype that the device has not is an error of [`Policy::check`], else a panic of the first cast.
//!
//! # What is not cast
//! Casts of modules leave integer and boolean parameters, and
//! - the state of FP8 layers ([`Fp8State`](burn_fp8::nn::Fp8State)): it is f32 in any model;
//! - Burn's `BatchNorm`: running statistics need f32, and belong to a module and its clones together. Give it inputs in f32.
//!   `RunningState` in a module of your own is not left alone: keep such a module out of the one that is cast. A view of it panics.
//!
//! # Loss scaling
//! Small gradients vanish in f16, whose smallest number is 2⁻²⁴. [`LossScale`] multiplies the loss, and so all gradients, and
//! [`LossScaledOptimizer`](crate::LossScaledOptimizer) divides them again before the step. bf16 has the range of f32 and needs none.

mod cast;
mod definition;
mod dtype;
mod loss_scale;
mod matmul;
mod parse;
mod scaler;

pub use cast::{
    cast, cast_module_to_compute, cast_module_to_output, cast_module_to_param, cast_to_compute,
    cast_to_output, cast_to_param,
};
pub use definition::Policy;
pub use dtype::PolicyDType;
pub use loss_scale::{DynamicLossScale, LossScaleRule, LossScaleState};
pub use matmul::MatmulPolicy;
pub(crate) use scaler::all_finite_in;
pub use scaler::{LossScale, all_finite};
