//! Mixed precision: which dtype parameters are stored in, the model computes with and gives out, and how matrix products run.
//!
//! A [`Policy`] is that as one string, in the grammar of [JMP](https://github.com/google-deepmind/jmp) with one key more, `m`. Keep parameters
//! in f32, compute in bf16 with matrix products in FP8, and take the loss in f32:
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::GradientsParams;
//! use burn::tensor::{DType, Tensor};
//! use burn_fp8::policy::{self, Policy};
//! use burn_fp8::{Fp8Backend, trace};
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
//! [`Fp8Config`]: an `Fp8Config::scope` or [`high_precision`](crate::high_precision) inside keeps the policy, and decides
//! about FP8 again; a policy with the key `m` sets recipe and on or off of the configuration around it. Scopes do not cross threads.
//!
//! A dtype that the device has not is an error of [`Policy::check`], else a panic of the first cast.
//!
//! # What is not cast
//! Casts of modules leave integer and boolean parameters, and
//! - the state of FP8 layers ([`Fp8State`](crate::nn::Fp8State)): it is f32 in any model;
//! - Burn's `BatchNorm`: running statistics need f32, and belong to a module and its clones together. Give it inputs in f32.
//!   `RunningState` in a module of your own is not left alone: keep such a module out of the one that is cast. A view of it panics.
//!
//! # Loss scaling
//! Small gradients vanish in f16, whose smallest number is 2⁻²⁴. [`LossScale`] multiplies the loss, and so all gradients, and
//! [`LossScaledOptimizer`](crate::optim::LossScaledOptimizer) divides them again before the step. bf16 has the range of f32 and needs none.

mod cast;
mod dtype;
mod loss_scale;
mod matmul;
mod parse;
mod scaler;

use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;

pub use cast::{
    cast, cast_module_to_compute, cast_module_to_output, cast_module_to_param, cast_to_compute,
    cast_to_output, cast_to_param,
};
pub use dtype::{PolicyDType, SemanticDType};
pub use loss_scale::{DynamicLossScale, LossScaleRule, LossScaleState};
pub use matmul::MatmulPolicy;
pub(crate) use scaler::all_finite_in;
pub use scaler::{LossScale, all_finite};

use crate::config::ambient;
use crate::{Fp8Config, Fp8Error};

/// The precision of a run: [the module](self) tells how it is put in force.
///
/// Serialized as its string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The dtype that parameters are stored in.
    pub param: FloatDType,
    /// The dtype that the model computes with.
    pub compute: FloatDType,
    /// The dtype that the model gives out.
    pub output: FloatDType,
    /// How matrix products run; without it, as the [`Fp8Config`] in force says.
    pub matmul: Option<MatmulPolicy>,
}

impl Policy {
    /// A policy of these dtypes, which leaves matrix products to the [`Fp8Config`] in force.
    pub fn new(param: FloatDType, compute: FloatDType, output: FloatDType) -> Self {
        Self { param, compute, output, matmul: None }
    }

    /// One dtype for all three.
    pub fn uniform(dtype: FloatDType) -> Self {
        Self::new(dtype, dtype, dtype)
    }

    /// The same policy, with matrix products run so.
    pub fn with_matmul(self, matmul: MatmulPolicy) -> Self {
        Self { matmul: Some(matmul), ..self }
    }

    /// Reads a policy in the grammar of JMP's `get_policy` (0.0.4): one dtype for all, or `key=value` parts with commas between them.
    ///
    /// | key               | values                                                                                          | without it      |
    /// |-------------------|-------------------------------------------------------------------------------------------------|-----------------|
    /// | `p` or `params`   | `f32` `float32` `full`, `bf16` `bfloat16`, `f16` `float16` `half`, `f64` `float64`, `flex32`    | `f32`           |
    /// | `c` or `compute`  | the same                                                                                        | that of `p`     |
    /// | `o` or `output`   | the same                                                                                        | that of `c`     |
    /// | `m` or `matmul`   | `high`, `fp8`, `fp8_e4m3`, `fp8_current`, `fp8_rowwise`, `fp8_delayed`: see [`MatmulPolicy`]                   | nothing changes |
    ///
    /// `half` is f16 on every device, where JMP has bf16 on TPUs.
    ///
    /// ```
    /// use burn_fp8::policy::Policy;
    ///
    /// assert_eq!(Policy::parse("compute=bfloat16")?.to_string(), "p=f32,c=bf16,o=bf16");
    /// assert_eq!(Policy::parse("half")?.to_string(), "p=f16,c=f16,o=f16");
    /// assert_eq!(Policy::parse("c=bf16,o=full,m=fp8_delayed")?.to_string(), "p=f32,c=bf16,o=f32,m=fp8_delayed");
    ///
    /// let error = Policy::parse("p=f32,c=f8").unwrap_err().to_string();
    /// assert!(error.starts_with("policy: unknown dtype `f8` in `c=f8`; dtypes are f32,"), "{error}");
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], in one line that names the part, for an unknown key, dtype or matrix product, a part without `=`, an
    /// empty part, and a key given twice (JMP takes the last); for a text that is empty or longer than 128 bytes.
    pub fn parse(text: &str) -> Result<Self, Fp8Error> {
        text.parse()
    }

    /// Whether the device has the three dtypes: what a cast panics about is an error here, before the run.
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn_fp8::policy::Policy;
    ///
    /// let error = Policy::parse("p=f32,c=flex32")?.check::<Flex>(&Default::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "policy: backend `flex` has no flex32; a policy for it can have f32, bf16, f16, f64");
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which names the first one missing, and those that the device has.
    pub fn check<B: Backend>(&self, device: &B::Device) -> Result<(), Fp8Error> {
        let mut dtypes = [self.param, self.compute, self.output].into_iter();
        dtypes.try_for_each(|dtype| dtype::check::<B>(dtype, device))
    }

    /// The policy of the innermost scope of this thread, else the process-wide default, if there is one.
    pub fn current() -> Option<Self> {
        ambient::current().policy
    }

    /// Runs `f` with this policy in force on this thread and returns its result.
    ///
    /// Scopes nest, and end when `f` returns or panics. Where the policy has the key `m`, FP8 is off in it, or on with that recipe; filter,
    /// predicate and execution are those around it.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        ambient::policy_scope(*self, f)
    }

    /// Makes this the policy of every thread that is not inside a scope, until it is set anew.
    ///
    /// Its key `m` is put on top of the configuration that [`Fp8Config::set_default`] has set, and holds until either is set anew.
    pub fn set_default(self) {
        ambient::set_default_policy(Some(self));
    }

    /// No policy by default, as at first; the configuration is as [`Fp8Config::set_default`] has set it.
    pub fn clear_default() {
        ambient::set_default_policy(None);
    }

    /// The configuration as it is under this policy: what its key `m` says, or unchanged.
    pub fn configure(&self, config: Fp8Config) -> Fp8Config {
        match self.matmul {
            Some(matmul) => matmul.configure(config),
            None => config,
        }
    }
}
