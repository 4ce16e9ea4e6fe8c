//! Gradients over micro-batches.

use std::marker::PhantomData;

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::{GradientsParams, MultiGradientsParams};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::nn::is_fp8_state;
use crate::ops::flax;

/// Burn's `GradientsAccumulator` for models with FP8 state: adds gradients up, and takes the maximum of new values of FP8 state.
///
/// After several micro-batches the state is what one batch of all of them would give, but for their scale, which all of them take
/// from the history before the step.
#[derive(Debug)]
pub struct Fp8GradientsAccumulator<M> {
    grads: GradientsParams,
    module: PhantomData<M>,
}

impl<M> Default for Fp8GradientsAccumulator<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Fp8GradientsAccumulator<M> {
    /// Holds nothing yet.
    pub fn new() -> Self {
        Self { grads: GradientsParams::new(), module: PhantomData }
    }

    /// Accumulates the gradients of each parameter of the module.
    pub fn accumulate<B: AutodiffBackend>(&mut self, module: &M, grads: GradientsParams)
    where
        M: AutodiffModule<B>,
    {
        module.visit(&mut Accumulate { grads: &mut self.grads, new: grads });
    }

    /// Accumulates the gradients of several devices, on the device of the module.
    pub fn accumulate_multi<B: AutodiffBackend>(&mut self, module: &M, grads: MultiGradientsParams)
    where
        M: AutodiffModule<B>,
    {
        for (grads, _) in grads.grads {
            self.accumulate::<B>(module, grads);
        }
    }

    /// The accumulated gradients; the accumulator starts anew.
    pub fn grads(&mut self) -> GradientsParams {
        std::mem::take(&mut self.grads)
    }
}

struct Accumulate<'a> {
    grads: &'a mut GradientsParams,
    new: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Accumulate<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(new) = self.new.remove::<B::InnerBackend, D>(param.id) else { return };
        let new = new.to_device(&param.lazy_device());
        let combined = match self.grads.remove::<B::InnerBackend, D>(param.id) {
            Some(old) => combine(old, new),
            None => new,
        };
        self.grads.register(param.id, combined);
    }
}

fn combine<B: Backend, const D: usize>(old: Tensor<B, D>, new: Tensor<B, D>) -> Tensor<B, D> {
    match is_fp8_state() {
        true => flax::maximum(old, new),
        false => old + new,
    }
}
