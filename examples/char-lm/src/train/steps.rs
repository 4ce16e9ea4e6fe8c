//! Training steps on one batch of the built-in text, without the Learner around them: for measuring.

use std::sync::Arc;

use anyhow::Result;
use burn::optim::{GradientsParams, Optimizer as _, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::train::TrainStep;
use burn_fp8::Fp8Matmul;

use super::learner::{self, Optimizer, new_model};
use crate::loader::{self, Batch};
use crate::model::Gpt;
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
    Ok(match moments {
        Moments::F32 => {
            as_closure(Step::<B, _>::new(shape, learner::adamw(&setup, &shape), setup)?, at)
        }
        Moments::Fp8 => {
            as_closure(Step::<B, _>::new(shape, learner::adamw8(&setup, &shape, 0), setup)?, at)
        }
    })
}

fn as_closure<B, S>(mut step: Step<B, S>, mut at: impl FnMut(Phase) + 'static) -> Box<dyn FnMut()>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend> + 'static,
{
    at(Phase::Made);
    Box::new(move || {
        step.passes();
        at(Phase::Backward);
        step.optimize();
        at(Phase::Stepped);
    })
}

/// A model and what it is trained with.
struct Step<B: AutodiffBackend, S: SimpleOptimizer<B::InnerBackend>> {
    shape: Shape,
    setup: Setup,
    batch: Batch<B>,
    /// None while the optimizer has it.
    model: Option<Gpt<B>>,
    optimizer: Optimizer<S, B>,
    gradients: Option<GradientsParams>,
}

impl<B, S> Step<B, S>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
    S: SimpleOptimizer<B::InnerBackend>,
{
    fn new(shape: Shape, optimizer: Optimizer<S, B>, setup: Setup) -> Result<Self> {
        let (device, text) = (B::Device::default(), Text::built_in()?);
        setup.check::<B>(&device)?;
        // Places far from each other, without an overlap.
        let distance = (text.train.len() - shape.context - 1) / shape.batch;
        let starts: Vec<_> = (0..shape.batch).map(|index| index * distance).collect();
        let context = Arc::new(StepContext { setup: setup.clone(), observatory: None });
        let batch = loader::batch::<B>(&text.train, &starts, shape.context, &context, &device);
        let width = text.vocabulary.width();
        drop(text);
        let model = Some(new_model::<B>(&shape, width, 1, &setup)?);
        Ok(Self { shape, setup, batch, model, optimizer, gradients: None })
    }

    /// Forward pass, loss and backward pass.
    fn passes(&mut self) {
        let model = self.model.as_ref().expect("put back after every step");
        let step = || TrainStep::step(model, self.batch.clone()).grads;
        self.gradients = Some(self.setup.scope(step));
    }

    fn optimize(&mut self) {
        let model = self.model.take().expect("put back after every step");
        let gradients = self.gradients.take().expect("those of the passes");
        let (rate, optimizer) = (self.shape.learning_rate, &mut self.optimizer);
        self.model = Some(self.setup.scope(|| optimizer.step(rate, model, gradients)));
    }
}
