//! Loss scaling at work: losses and gradients.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::{AutodiffModule, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Int, Tensor};
use burn_fp8::Fp8Error;
use burn_fp8::nn::is_fp8_state;

use super::{DynamicLossScale, LossScaleRule, LossScaleState};

/// The name of this field of `Fp8State`, which visitors are told.
const AMAX_HISTORY: &str = "amax_history";

/// Loss scaling: a handle to its state, whose clones share it, on any thread.
///
/// The model multiplies its loss, [`LossScaledOptimizer`](crate::LossScaledOptimizer) does the rest:
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::LinearConfig;
/// use burn::optim::{GradientsParams, Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_fp8_train::LossScaledOptimizer;
/// use burn_fp8_train::policy::{LossScale, Policy};
///
/// type B = Autodiff<Flex>;
///
/// let device = Default::default();
/// let policy = Policy::parse("p=f32,c=f16,o=f32")?;
/// let loss_scale = LossScale::dynamic();
/// let mut model = LinearConfig::new(8, 4).init::<B>(&device);
/// let mut optimizer = LossScaledOptimizer::new(SgdConfig::new().init(), loss_scale.clone());
/// for _step in 0..3 {
///     let x = Tensor::<B, 2>::ones([2, 8], &device);
///     let y = policy.cast_module_to_compute(&model).forward(policy.cast_to_compute(x));
///     let loss = policy.cast_to_output(y).powi_scalar(2).mean();
///     let gradients = GradientsParams::from_grads(loss_scale.scale(loss).backward(), &model);
///     model = optimizer.step(0.1, model, gradients);
/// }
/// assert_eq!((loss_scale.loss_scale(), loss_scale.skipped()), (32768.0, 0));
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
///
/// In Burn's `Learner` the model has the handle in a field marked `#[module(skip)]`, and multiplies the loss in its `TrainStep`.
///
/// # Under FP8
/// Output gradients are quantized as they are in the backward pass, scaled. Current scaling follows the loss scale; delayed scaling knows it a
/// step late, and saturates where the scale has just grown: give its recipe a margin of 1, for a factor of 2
/// ([`Recipe::with_margin`](burn_fp8_core::Recipe::with_margin)). The amaxes of a skipped step do enter the histories of a
/// [`DelayedState`](burn_fp8::DelayedState), which commits where `backward` ends; they are finite. Those of FP8 layers do not.
#[derive(Clone, Debug, Default)]
pub struct LossScale(Arc<Mutex<LossScaleState>>);

impl LossScale {
    /// No loss scaling: losses and gradients as they are.
    pub fn none() -> Self {
        Self::default()
    }

    /// A constant scale.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] unless it is a positive normal number.
    pub fn fixed(loss_scale: f32) -> Result<Self, Fp8Error> {
        Self::new(LossScaleRule::Static(loss_scale))
    }

    /// A dynamic scale with JMP's defaults, [`DynamicLossScale::default`].
    pub fn dynamic() -> Self {
        let rule = LossScaleRule::Dynamic(DynamicLossScale::default());
        Self(Arc::new(Mutex::new(LossScaleState { rule, skipped: 0 })))
    }

    /// Loss scaling by this rule.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] as [`LossScaleRule::validate`].
    pub fn new(rule: LossScaleRule) -> Result<Self, Fp8Error> {
        rule.validate()?;
        Ok(Self(Arc::new(Mutex::new(LossScaleState { rule, skipped: 0 }))))
    }

    fn lock(&self) -> MutexGuard<'_, LossScaleState> {
        // Every holder assigns whole values: one that panics leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next loss is multiplied by; 1 without loss scaling.
    pub fn loss_scale(&self) -> f32 {
        self.lock().rule.loss_scale()
    }

    /// How many steps were skipped because a gradient was not finite.
    pub fn skipped(&self) -> u64 {
        self.lock().skipped
    }

    /// The rule, with the scale and the counter as they are.
    pub fn rule(&self) -> LossScaleRule {
        self.lock().rule
    }

    /// All that it holds now.
    pub fn export(&self) -> LossScaleState {
        *self.lock()
    }

    /// Replaces all that it holds, the rule too.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] as [`LossScaleRule::validate`]; the state stays as it was.
    pub fn import(&self, state: LossScaleState) -> Result<(), Fp8Error> {
        state.rule.validate()?;
        *self.lock() = state;
        Ok(())
    }

    /// The loss times the scale, for `backward`. Have the loss in f32 (a policy's output dtype): in f16 it may overflow.
    pub fn scale<B: Backend, const D: usize>(&self, loss: Tensor<B, D>) -> Tensor<B, D> {
        match self.rule() {
            LossScaleRule::None => loss,
            rule => loss.mul_scalar(rule.loss_scale()),
        }
    }

    /// The gradients of the module's parameters divided by the scale, in f32 where they are in half precision, and rounded again.
    /// JMP multiplies by the inverse; for powers of two that is the same.
    ///
    /// New values of FP8 state ([`Fp8State`](burn_fp8::nn::Fp8State)) are left as they are: they are no gradients.
    pub fn unscale<B, M>(&self, module: &M, mut grads: GradientsParams) -> GradientsParams
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let rule = self.rule();
        if rule != LossScaleRule::None {
            let (loss_scale, seen) = (rule.loss_scale(), HashSet::new());
            module.visit(&mut Unscale { grads: &mut grads, loss_scale, seen });
        }
        grads
    }

    /// Takes note of a step: whether its gradients were all finite. If not, it was skipped.
    pub fn adjust(&self, grads_finite: bool) {
        let mut state = self.lock();
        let skipped = state.skipped + u64::from(!grads_finite);
        *state = LossScaleState { rule: state.rule.adjust(grads_finite), skipped };
    }
}

/// Whether all gradients of the module's parameters are finite; without any, they are. Waits for the device, once.
///
/// FP8 layers quantize as Flax does: an infinite value saturates, and the gradients behind it are finite. So of the new values of their
/// state ([`Fp8State`](burn_fp8::nn::Fp8State)) the newest amax must be finite too. Older amaxes and the scale are not asked.
pub fn all_finite<B, M>(module: &M, grads: &GradientsParams) -> bool
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    all_finite_in::<B, M>(module, [grads])
}

/// [`all_finite`] for the gradients of several devices.
pub(crate) fn all_finite_in<'a, B, M>(
    module: &M,
    grads: impl IntoIterator<Item = &'a GradientsParams>,
) -> bool
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let mut found: Vec<Tensor<B::InnerBackend, 1, Int>> = vec![];
    for grads in grads {
        module.visit(&mut FindNonFinite::<B> { grads, found: &mut found, path: vec![] });
    }
    let Some(device) = found.first().map(Tensor::device) else { return true };
    let found = found.into_iter().map(|found| found.to_device(&device)).collect();
    let any = Tensor::cat(found, 0).max().into_data();
    any.iter::<i64>().all(|any| any == 0)
}

struct Unscale<'a> {
    grads: &'a mut GradientsParams,
    loss_scale: f32,
    /// A module may have a parameter in two places; it has one gradient.
    seen: HashSet<ParamId>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Unscale<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if is_fp8_state() || !self.seen.insert(param.id) {
            return;
        }
        if let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) {
            self.grads.register(param.id, divide(grad, self.loss_scale));
        }
    }
}

/// In half precision the scale itself might overflow.
fn divide<B: Backend, const D: usize>(grad: Tensor<B, D>, loss_scale: f32) -> Tensor<B, D> {
    match grad.dtype() {
        dtype @ (DType::F16 | DType::BF16) => {
            grad.cast(FloatDType::F32).div_scalar(loss_scale).cast(FloatDType::from(dtype))
        }
        _ => grad.div_scalar(loss_scale),
    }
}

struct FindNonFinite<'a, B: AutodiffBackend> {
    grads: &'a GradientsParams,
    /// For each gradient `[1]`: 1 if it has an element that is not finite, else 0.
    found: &'a mut Vec<Tensor<B::InnerBackend, 1, Int>>,
    path: Vec<String>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for FindNonFinite<'_, B> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(grad) = self.grads.get::<B::InnerBackend, D>(param.id) else { return };
        let values = match is_fp8_state() {
            false => grad,
            true if self.path.last().is_some_and(|name| name == AMAX_HISTORY) => {
                // The newest amax of the first row, the new value.
                grad.slice(std::array::from_fn::<_, D, _>(|_| 0..1))
            }
            true => return,
        };
        self.found.push(values.is_finite().bool_not().any().int());
    }
}
