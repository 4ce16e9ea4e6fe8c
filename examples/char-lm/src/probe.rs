//! What looks at training steps from outside: the matrix products of the first one, and their share of the FLOPs.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use burn_fp8::report::Observatory;
use burn_fp8::{Gemm, GemmRole, Report};

use crate::precision::Setup;
use crate::size::Shape;

/// What a step has to know besides its batch.
pub struct StepContext {
    /// What looks at it.
    pub probe: Probe,
    /// What it computes with.
    pub setup: Setup,
}

impl StepContext {
    /// The context of the steps of one run, which an observatory may watch.
    pub fn new(setup: Setup, observatory: Option<Observatory>) -> Self {
        Self { probe: Probe { first: Mutex::default(), observatory }, setup }
    }
}

impl fmt::Debug for StepContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepContext").finish_non_exhaustive()
    }
}

/// Looks at the forward and backward pass of each training step.
#[derive(Debug)]
pub struct Probe {
    first: Mutex<Option<Report>>,
    observatory: Option<Observatory>,
}

impl Probe {
    /// Runs the forward and backward pass of a training step: records the products of the first one, and shows all to the observatory.
    pub fn around<R>(&self, step: impl FnOnce() -> R) -> R {
        match &self.observatory {
            Some(observatory) => observatory.step(|| self.trace_first(step)),
            None => self.trace_first(step),
        }
    }

    fn trace_first<R>(&self, step: impl FnOnce() -> R) -> R {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_some() {
            drop(first);
            return step();
        }
        let (result, report) = burn_fp8::trace(step);
        *first = Some(report);
        result
    }

    /// The products of the first step; empty where there was none.
    pub fn first(&self) -> Report {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }
}

/// FLOPs of a product: a multiplication and an addition each.
fn flops(gemm: Gemm) -> u64 {
    2 * (gemm.batch * gemm.m * gemm.n * gemm.k) as u64
}

/// FLOPs of all matrix products of a training step, from the shape of the model: that of the forward pass, and twice that for the
/// gradients of both operands. All inputs of layers need gradients, for the embeddings are learned.
pub fn step_flops(shape: &Shape, characters: usize) -> u64 {
    let &Shape { layers, width, context, batch, .. } = shape;
    let tokens = batch * context;
    let linear = 2 * tokens * width * (3 * width + width + 4 * width + 4 * width);
    let attention = 2 * 2 * tokens * context * width;
    let head = 2 * tokens * width * characters;
    3 * (layers * (linear + attention) + head) as u64
}

/// FLOPs of the products that ran in FP8.
pub fn fp8_flops(report: &Report) -> u64 {
    report.fp8().map(|product| flops(product.gemm)).sum()
}

/// FLOPs of the products of the forward pass, in whatever precision they ran.
pub fn forward_flops(report: &Report) -> u64 {
    let output = report.products.iter().filter(|product| product.role == GemmRole::Output);
    output.map(|product| flops(product.gemm)).sum()
}
