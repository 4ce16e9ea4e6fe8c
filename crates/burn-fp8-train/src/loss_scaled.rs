//! An optimizer that undoes loss scaling, and skips steps whose gradients are not finite.

use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::optim::is_inside_fp8_optimizer;
use serde::{Deserialize, Serialize};

use crate::policy::{LossScale, LossScaleRule, LossScaleState, all_finite_in};

/// Wraps an optimizer: divides the gradients by the scale that the loss was multiplied with, and adjusts the scale.
///
/// A step with a gradient that is not finite ([`all_finite`](crate::policy::all_finite)) is skipped: the model comes back as it is, its FP8 state too, and the wrapped optimizer
/// is not asked. To find that out takes one small read from the device a step. With [`LossScale::none`] this is the wrapped optimizer,
/// which steps whatever it gets.
///
/// Gradient clipping belongs into the wrapped optimizer, where gradients are unscaled. Micro-batches accumulate scaled gradients: the scale only
/// changes here. With FP8 layers this goes around [`Fp8Optimizer`](burn_fp8::optim::Fp8Optimizer):
/// `LossScaledOptimizer::new(Fp8Optimizer::new(optimizer), loss_scale)`.
///
/// The record holds the whole state of loss scaling. Loading one replaces that of the handle and so of its clones, the rule too. A record of the
/// wrapped optimizer is not one of this: load it into that optimizer first.
///
/// # Panics
/// [`step`](Optimizer::step) with loss scaling inside [`Fp8Optimizer`](burn_fp8::optim::Fp8Optimizer), which would have overwritten FP8 state before the step
/// is skipped.
#[derive(Clone, Debug)]
pub struct LossScaledOptimizer<O> {
    inner: O,
    loss_scale: LossScale,
}

impl<O> LossScaledOptimizer<O> {
    /// Wraps an optimizer. The model multiplies its loss by the same handle: [`LossScale::scale`].
    pub fn new(optimizer: O, loss_scale: LossScale) -> Self {
        Self { inner: optimizer, loss_scale }
    }

    /// The wrapped optimizer.
    pub fn inner(&self) -> &O {
        &self.inner
    }

    /// The wrapped optimizer.
    pub fn into_inner(self) -> O {
        self.inner
    }

    /// The loss scaling.
    pub fn loss_scale(&self) -> &LossScale {
        &self.loss_scale
    }

    /// Unscales the gradients of all devices and adjusts the scale. Whether to step.
    fn unscale<'a, B, M>(
        &self,
        module: &M,
        grads: impl IntoIterator<Item = &'a mut GradientsParams>,
    ) -> bool
    where
        M: AutodiffModule<B>,
        B: AutodiffBackend,
    {
        if self.loss_scale.rule() == LossScaleRule::None {
            return true;
        }
        assert!(
            !is_inside_fp8_optimizer(),
            "LossScaledOptimizer is inside Fp8Optimizer, which has overwritten the FP8 state before a step can be skipped: wrap them \
             the other way round, LossScaledOptimizer::new(Fp8Optimizer::new(optimizer), loss_scale)"
        );
        let unscale = |grads: &'a mut GradientsParams| {
            *grads = self.loss_scale.unscale::<B, M>(module, std::mem::take(grads));
            &*grads
        };
        let finite = all_finite_in::<B, M>(module, grads.into_iter().map(unscale));
        self.loss_scale.adjust(finite);
        finite
    }
}

impl<O, M, B> Optimizer<M, B> for LossScaledOptimizer<O>
where
    O: Optimizer<M, B>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = LossScaledRecord<O::Record>;

    fn step(&mut self, lr: LearningRate, module: M, mut grads: GradientsParams) -> M {
        match self.unscale::<B, M>(&module, [&mut grads]) {
            true => self.inner.step(lr, module, grads),
            false => module,
        }
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, mut grads: MultiGradientsParams) -> M {
        match self.unscale::<B, M>(&module, grads.grads.iter_mut().map(|(grads, _)| grads)) {
            true => self.inner.step_multi(lr, module, grads),
            false => module,
        }
    }

    fn to_record(&self) -> Self::Record {
        LossScaledRecord { optimizer: self.inner.to_record(), loss_scale: self.loss_scale.export() }
    }

    /// # Panics
    /// Where the record has numbers that are out of range, which one that was read from a file has not.
    fn load_record(self, record: Self::Record) -> Self {
        let Self { inner, loss_scale } = self;
        // Where this panics, the state of loss scaling is what it was.
        let inner = inner.load_record(record.optimizer);
        if let Err(error) = loss_scale.import(record.loss_scale) {
            panic!("this record cannot be loaded: {error}");
        }
        Self { inner, loss_scale }
    }
}

/// The record of the wrapped optimizer, and the state of loss scaling.
#[derive(Clone, Debug)]
pub struct LossScaledRecord<R> {
    /// The record of the wrapped optimizer.
    pub optimizer: R,
    /// The state of loss scaling.
    pub loss_scale: LossScaleState,
}

/// A [`LossScaledRecord`] as recorders store it: the state in full, whatever their precision.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LossScaledItem<I> {
    optimizer: I,
    loss_scale: LossScaleState,
}

impl<B: Backend, R: Record<B>> Record<B> for LossScaledRecord<R> {
    type Item<S: PrecisionSettings> = LossScaledItem<R::Item<S>>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        let Self { optimizer, loss_scale } = self;
        LossScaledItem { optimizer: optimizer.into_item(), loss_scale }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        let LossScaledItem { optimizer, loss_scale } = item;
        Self { optimizer: R::from_item(optimizer, device), loss_scale }
    }
}
