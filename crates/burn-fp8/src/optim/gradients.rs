//! The new values of FP8 state among the gradients of a model.

use std::collections::HashMap;
use std::marker::PhantomData;

use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::nn::is_fp8_state;
use crate::ops::{flax, is_intact};

/// The gradient of one parameter of FP8 state: `[2, n]`, its new value and its check row.
struct NewValue<B: Backend> {
    id: ParamId,
    /// The path of the parameter in the model.
    name: String,
    rows: Tensor<B, 2>,
}

/// New values of FP8 state, taken out of the gradients of a model.
pub(super) struct NewState<B: Backend> {
    values: Vec<NewValue<B>>,
}

impl<B: Backend> NewState<B> {
    /// Takes the gradients of FP8 state out.
    pub(super) fn take<A, M>(module: &M, grads: &mut GradientsParams) -> Self
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let mut visitor = Take::<A> { grads, path: vec![], values: vec![], backend: PhantomData };
        module.visit(&mut visitor);
        Self { values: visitor.values }
    }

    /// The maximum of this and the new values of another device.
    pub(super) fn maximum(mut self, other: Self) -> Self {
        let mut others: HashMap<_, _> =
            other.values.into_iter().map(|value| (value.id, value)).collect();
        for value in &mut self.values {
            if let Some(other) = others.remove(&value.id) {
                let rows = other.rows.to_device(&value.rows.device());
                value.rows = flax::maximum(value.rows.clone(), rows);
            }
        }
        self.values.extend(others.into_values());
        self
    }

    /// Checks by their check rows that the new values were combined by maximum, reading the first entry of each at once: the scale,
    /// and the newest amax.
    ///
    /// # Panics
    /// Where one is a sum or a mean of several, or was scaled.
    pub(super) fn check(&self) {
        for NewValue { name, rows, .. } in &self.values {
            let shape = rows.dims();
            assert!(
                shape[0] == 2,
                "the gradient of FP8 state `{name}` has shape {shape:?} instead of [2, n]: it is not what a layer's backward pass \
                 gave; do not transform the gradients of FP8 state"
            );
        }
        let Some(first) = self.values.first() else { return };
        let device = first.rows.device();
        let entry = |value: &NewValue<B>| {
            value.rows.clone().slice([0..2, 0..1]).reshape([2]).to_device(&device)
        };
        let entries = Tensor::cat(self.values.iter().map(entry).collect(), 0);
        let entries = entries.into_data().convert::<f32>().to_vec::<f32>().expect("f32 now");
        for (NewValue { name, .. }, entry) in self.values.iter().zip(entries.chunks_exact(2)) {
            assert!(
                is_intact(entry[0], entry[1]),
                "FP8 state `{name}` was accumulated by adding or averaging: its new values combine by maximum, accumulate with \
                 burn_fp8::optim::Fp8GradientsAccumulator (the new value is {}, the root that came with it {})",
                entry[0],
                entry[1]
            );
        }
    }

    /// Overwrites the state of the model. What has no new value stays.
    pub(super) fn overwrite<A, M>(self, module: M) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        if self.values.is_empty() {
            return module;
        }
        let values = self.values.into_iter().map(|value| (value.id, value.rows)).collect();
        module.map(&mut Overwrite::<B> { values })
    }
}

struct Take<'a, A: AutodiffBackend> {
    grads: &'a mut GradientsParams,
    path: Vec<String>,
    values: Vec<NewValue<A::InnerBackend>>,
    backend: PhantomData<A>,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Take<'_, A> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        if !is_fp8_state() {
            return;
        }
        if let Some(grad) = self.grads.remove::<A::InnerBackend, D>(param.id) {
            let rows = Tensor::from_primitive(grad.into_primitive());
            self.values.push(NewValue { id: param.id, name: self.path.join("."), rows });
        }
    }
}

struct Overwrite<B: Backend> {
    values: HashMap<ParamId, Tensor<B, 2>>,
}

impl<A: AutodiffBackend> ModuleMapper<A> for Overwrite<A::InnerBackend> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
        if !is_fp8_state() {
            return param;
        }
        // Not taken out: a layer that appears twice in the model has one state.
        let Some(rows) = self.values.get(&param.id) else { return param };
        let value = rows.clone().slice(0..1);
        param.map(|old| {
            let value = Tensor::from_primitive(value.to_device(&old.device()).into_primitive());
            Tensor::from_inner(value).set_require_grad(old.is_require_grad())
        })
    }
}
