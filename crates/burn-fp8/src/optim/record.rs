//! What a checkpoint holds of an [`Fp8Optimizer`](super::Fp8Optimizer).

use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use crate::product::delayed::DelayedRecord;

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
