//! What looks at training steps from outside: the observatory, and the count of FLOPs.

use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, Tensor, TensorData};
use burn_fp8::report::Observatory;
use burn_fp8::{GemmRole, Report};

use crate::precision::Setup;
use crate::size::Shape;

/// What a step has to know besides its batch.
pub struct StepContext {
    /// What it computes with.
    pub setup: Setup,
    /// What measures how well FP8 fits.
    pub observatory: Option<Observatory>,
}

impl StepContext {
    /// Runs the forward and backward pass of a training step, before the eyes of the observatory if there is one.
    pub fn observe<R>(&self, step: impl FnOnce() -> R) -> R {
        match &self.observatory {
            Some(observatory) => observatory.step(step),
            None => step(),
        }
    }

    /// The mean loss of a batch, from that of so many sequences, which are this peer's part of it.
    ///
    /// # Panics
    /// Where the peers have lost each other.
    pub fn of_all_peers<B: Backend>(&self, loss: Tensor<B, 1>, sequences: usize) -> Tensor<B, 1> {
        let peers = self.setup.peers();
        if peers.size() == 1 {
            return loss;
        }
        let (device, weight) = (loss.device(), sequences as f32);
        let sums = peers.sum(vec![loss.into_scalar().elem::<f32>() * weight, weight]);
        let sums = sums.unwrap_or_else(|error| panic!("losses of peers: {error}"));
        Tensor::from_data(TensorData::from([sums[0] / sums[1]]), &device)
    }
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
    report.fp8().map(|product| product.gemm.flops() as u64).sum()
}

/// FLOPs of the products of the forward pass, in whatever precision they ran.
pub fn forward_flops(report: &Report) -> u64 {
    let output = report.products.iter().filter(|product| product.role == GemmRole::Output);
    output.map(|product| product.gemm.flops() as u64).sum()
}
