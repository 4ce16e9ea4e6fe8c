//! Training steps on one batch of the built-in text, without the Learner around them: for measuring.

use std::sync::Arc;

use anyhow::Result;
use burn::optim::{Optimizer as _, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::train::TrainStep;
use burn_fp8::Fp8Matmul;

use super::learner::{self, Optimizer, new_model};
use crate::loader;
use crate::precision::{Precision, Setup};
use crate::probe::StepContext;
use crate::run::Moments;
use crate::size::Shape;
use crate::text::Text;

/// Where a training step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the first of them, there is a model.
    Made,
    /// The backward pass is done, and the graph is gone: there are gradients.
    Backward,
    /// The optimizer has used them.
    Stepped,
}

/// Training steps: forward pass, loss, backward pass and AdamW. Tells where they are.
///
/// # Errors
/// Where the device cannot compute in this precision.
pub fn training_steps<B>(
    shape: Shape,
    precision: Precision,
    moments: Moments,
    at: impl FnMut(Phase) + 'static,
) -> Result<Box<dyn FnMut()>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let setup = Setup::new(precision, None)?;
    match moments {
        Moments::F32 => steps::<B, _>(shape, learner::adamw(&setup, &shape), setup, at),
        Moments::Fp8 => steps::<B, _>(shape, learner::adamw8(&setup, &shape, 0), setup, at),
    }
}

fn steps<B, S>(
    shape: Shape,
    mut optimizer: Optimizer<S, B>,
    setup: Setup,
    mut at: impl FnMut(Phase) + 'static,
) -> Result<Box<dyn FnMut()>>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend> + 'static,
{
    let (device, text) = (B::Device::default(), Text::built_in()?);
    setup.check::<B>(&device)?;
    // Places far from each other, without an overlap.
    let distance = (text.train.len() - shape.context - 1) / shape.batch;
    let starts: Vec<_> = (0..shape.batch).map(|index| index * distance).collect();
    let context = Arc::new(StepContext { setup: setup.clone(), observatory: None });
    let batch = loader::batch::<B>(&text.train, &starts, shape.context, &context, &device);
    let width = text.vocabulary.width();
    drop(text);
    // None while the optimizer has it.
    let mut model = Some(new_model::<B>(&shape, width, 1, &setup)?);
    at(Phase::Made);
    Ok(Box::new(move || {
        let current = model.take().expect("put back after every step");
        let gradients = setup.scope(|| TrainStep::step(&current, batch.clone()).grads);
        at(Phase::Backward);
        let step = || optimizer.step(shape.learning_rate, current, gradients);
        model = Some(setup.scope(step));
        at(Phase::Stepped);
    }))
}
