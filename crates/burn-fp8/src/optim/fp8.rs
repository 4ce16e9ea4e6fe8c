//! An optimizer that overwrites FP8 state and steps the rest.

use std::cell::RefCell;

use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use serde::{Deserialize, Serialize};

use super::gradients::NewState;
use crate::config::high_precision;
use crate::config::scope::within;
use crate::product::delayed::{DelayedRecord, DelayedState};

thread_local! {
    /// The steps of this thread that wrap another.
    static WRAPPING: RefCell<Vec<()>> = const { RefCell::new(Vec::new()) };
}

/// Whether this thread runs the step of an optimizer inside [`Fp8Optimizer`], which has overwritten FP8 state by now.
pub fn is_inside_fp8_optimizer() -> bool {
    WRAPPING.with_borrow(|wrapping| !wrapping.is_empty())
}

/// Runs the step of the wrapped optimizer.
fn wrapped<R>(step: impl FnOnce() -> R) -> R {
    within(&WRAPPING, (), || high_precision(step)).0
}

/// Wraps an optimizer: FP8 state of the model is overwritten with its gradient, its new value; everything else is stepped
/// by the wrapped one.
///
/// The wrapped optimizer runs in high precision and never sees FP8 state, so it keeps nothing for it; its gradient clipping and the
/// learning-rate schedulers work as ever. State whose layer did not take part in the step stays as it is. A model without FP8
/// layers is stepped as by the wrapped optimizer alone, but in high precision under [`Fp8Backend`](crate::Fp8Backend) too.
///
/// A record of the plain optimizer is not one of this: load it into the plain optimizer first, then wrap that.
///
/// # Panics
/// [`step`](Optimizer::step) where new values of FP8 state were added up, as Burn's `GradientsAccumulator` does; see
/// [`Fp8GradientsAccumulator`](super::Fp8GradientsAccumulator). One small read from the device a step finds that out.
#[derive(Clone, Debug)]
pub struct Fp8Optimizer<O> {
    inner: O,
    delayed: Option<DelayedState>,
}

impl<O> Fp8Optimizer<O> {
    /// Wraps an optimizer.
    pub fn new(optimizer: O) -> Self {
        Self { inner: optimizer, delayed: None }
    }

    /// The same optimizer, whose record carries the state of the decorator's delayed scaling: checkpoints hold it, and loading one
    /// restores it. Train inside [`state.scope`](DelayedState::scope) of the same handle: a thread's own state is another one.
    pub fn with_delayed_state(self, state: DelayedState) -> Self {
        Self { delayed: Some(state), ..self }
    }

    /// The wrapped optimizer.
    pub fn inner(&self) -> &O {
        &self.inner
    }

    /// The wrapped optimizer.
    pub fn into_inner(self) -> O {
        self.inner
    }

    /// The state of delayed scaling that the record carries.
    pub fn delayed_state(&self) -> Option<&DelayedState> {
        self.delayed.as_ref()
    }
}

impl<O, M, B> Optimizer<M, B> for Fp8Optimizer<O>
where
    O: Optimizer<M, B>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = Fp8OptimizerRecord<O::Record>;

    fn step(&mut self, lr: LearningRate, module: M, mut grads: GradientsParams) -> M {
        let state = NewState::take::<B, M>(&module, &mut grads);
        state.check();
        let module = state.overwrite::<B, M>(module);
        wrapped(|| self.inner.step(lr, module, grads))
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, mut grads: MultiGradientsParams) -> M {
        let states = grads.grads.iter_mut().map(|(grads, _)| {
            let state = NewState::take::<B, M>(&module, grads);
            state.check();
            state
        });
        let module = match states.reduce(NewState::maximum) {
            Some(state) => state.overwrite::<B, M>(module),
            None => module,
        };
        wrapped(|| self.inner.step_multi(lr, module, grads))
    }

    fn to_record(&self) -> Self::Record {
        Fp8OptimizerRecord {
            optimizer: self.inner.to_record(),
            delayed: self.delayed.as_ref().map(DelayedState::export),
        }
    }

    /// # Panics
    /// Where the sites of the record are not in ascending order, or one occurs twice, which one that was read from a file has not.
    fn load_record(self, record: Self::Record) -> Self {
        let Self { inner, delayed } = self;
        // Where this panics, the state of delayed scaling is what it was.
        let inner = inner.load_record(record.optimizer);
        if let (Some(state), Some(record)) = (&delayed, record.delayed)
            && let Err(error) = state.import(record)
        {
            panic!("this record cannot be loaded: {error}");
        }
        Self { inner, delayed }
    }
}

/// The record of the wrapped optimizer, and the state of the decorator's delayed scaling where the optimizer carries it.
///
/// Loading a record without that state leaves the state as it is; a record with it, loaded into an optimizer that carries none,
/// drops it.
#[derive(Clone, Debug)]
pub struct Fp8OptimizerRecord<R> {
    /// The record of the wrapped optimizer.
    pub optimizer: R,
    /// The state of delayed scaling.
    pub delayed: Option<DelayedRecord>,
}

/// An [`Fp8OptimizerRecord`] as recorders store it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fp8OptimizerItem<I> {
    optimizer: I,
    delayed: Option<DelayedRecord>,
}

impl<B: Backend, R: Record<B>> Record<B> for Fp8OptimizerRecord<R> {
    type Item<S: PrecisionSettings> = Fp8OptimizerItem<R::Item<S>>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        let Self { optimizer, delayed } = self;
        Fp8OptimizerItem { optimizer: optimizer.into_item(), delayed }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        let Fp8OptimizerItem { optimizer, delayed } = item;
        Self { optimizer: R::from_item(optimizer, device), delayed }
    }
}

impl<B: Backend> Record<B> for DelayedRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, _device: &B::Device) -> Self {
        item
    }
}
