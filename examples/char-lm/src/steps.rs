//! Training steps one by one, without the Learner around them: for benchmarks.

use std::sync::Arc;

use anyhow::Result;
use burn::optim::Optimizer;
use burn::tensor::backend::AutodiffBackend;
use burn::train::TrainStep;
use burn_fp8::Fp8Matmul;

use crate::loader;
use crate::precision::{Precision, Setup};
use crate::probe::StepContext;
use crate::size::Size;
use crate::text::Text;
use crate::train;

/// Characters that a training step of a size sees.
pub fn characters_a_step(size: Size) -> usize {
    let shape = size.shape();
    shape.batch * shape.context
}

/// Training steps on one batch of the built-in text: forward pass, loss, backward pass and AdamW.
///
/// # Errors
/// Where the device cannot compute in this precision.
pub fn training_steps<B>(size: Size, precision: Precision) -> Result<impl FnMut()>
where
    B: AutodiffBackend + Fp8Matmul,
    B::InnerBackend: Fp8Matmul,
{
    let (shape, device) = (size.shape(), B::Device::default());
    let (text, setup) = (Text::built_in()?, Setup::new(precision, None)?);
    setup.check::<B>(&device)?;
    let mut model = Some(train::new_model::<B>(&shape, text.vocabulary.width(), 1, &setup)?);
    let mut optimizer = train::optimizer::<B>(&setup);
    // Places far from each other, without an overlap.
    let distance = (text.train.len() - shape.context - 1) / shape.batch;
    let starts: Vec<_> = (0..shape.batch).map(|index| index * distance).collect();
    let context = Arc::new(StepContext { setup: setup.clone(), observatory: None });
    let batch = loader::batch::<B>(&text.train, &starts, shape.context, &context, &device);
    Ok(move || {
        setup.scope(|| {
            let current = model.take().expect("put back after every step");
            let output = TrainStep::step(&current, batch.clone());
            model = Some(optimizer.step(shape.learning_rate, current, output.grads));
        });
    })
}
