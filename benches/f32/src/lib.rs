//! What benchmarks run on plain Burn: a multi-layer perceptron, and products of the crate `gemm`, which multiplies f32 in Burn's Flex.
//!
//! The program of this package runs them as Burn builds them by default, for AVX2; in the benchmarks themselves, which depend on `burn-fp8`, the
//! same functions use AVX-512 where the CPU has it.

mod gemm;

use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};

pub use gemm::Gemm;

/// Inputs, hidden units and outputs.
pub const WIDTHS: [usize; 3] = [1024, 4096, 1024];

/// Rows of a batch.
pub const BATCH: usize = 256;

/// Two linear layers with a ReLU between them.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    /// With Burn's initial weights.
    pub fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(WIDTHS[0], WIDTHS[1]).init(device),
            second: LinearConfig::new(WIDTHS[1], WIDTHS[2]).init(device),
        }
    }

    /// Its layers.
    pub fn into_layers(self) -> [Linear<B>; 2] {
        [self.first, self.second]
    }
}

/// What is trained.
pub trait Model<B: Backend> {
    /// `[batch, inputs]` to `[batch, outputs]`.
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2>;
}

impl<B: Backend> Model<B> for Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(Relu::new().forward(self.first.forward(x)))
    }
}

/// A batch.
pub struct Data<B: Backend> {
    x: Tensor<B, 2>,
    target: Tensor<B, 2>,
}

impl<B: Backend> Data<B> {
    fn new(device: &B::Device) -> Self {
        B::seed(device, 0);
        let normal = Distribution::Normal(0.0, 1.0);
        let x = Tensor::random([BATCH, WIDTHS[0]], normal, device);
        Self { x, target: Tensor::random([BATCH, WIDTHS[2]], normal, device) }
    }
}

/// Steps of training: forward, mean squared error, backward, update.
pub fn steps<B, M, O>(model: impl FnOnce(&B::Device) -> M, mut optimizer: O) -> impl FnMut()
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Model<B> + 'static,
    O: Optimizer<M, B>,
{
    let device = Default::default();
    let data = Data::new(&device);
    let mut model = Some(model(&device));
    move || {
        let current = model.take().expect("put back after every step");
        let output = current.forward(data.x.clone());
        let loss = MseLoss::new().forward(output, data.target.clone(), Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(1e-3, current, grads));
    }
}

/// Forward and backward passes alone: all gradients from a given one of the output.
pub fn passes<B, M>(model: impl FnOnce(&B::Device) -> M) -> impl FnMut()
where
    B: AutodiffBackend,
    M: AutodiffModule<B> + Model<B> + 'static,
{
    let device = Default::default();
    let data = Data::<B>::new(&device);
    let model = model(&device);
    move || {
        let output = model.forward(data.x.clone());
        core::hint::black_box((output * data.target.clone()).backward());
    }
}
