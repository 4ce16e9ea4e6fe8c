//! A training step of a multi-layer perceptron: FP8, emulated on Flex, against the same step without the decorator.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::{Fp8Backend, trace};

use crate::harness::{Options, Row, Side, compare};

/// The name of the group.
pub const GROUP: &str = "mlp";

const WIDTHS: [usize; 3] = [1024, 4096, 1024];
const BATCH: usize = 256;

/// FP8 may take 1.10 times as long as f32.
const TARGET: f64 = 1.0 / 1.10;

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(WIDTHS[0], WIDTHS[1]).init(device),
            second: LinearConfig::new(WIDTHS[1], WIDTHS[2]).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(Relu::new().forward(self.first.forward(x)))
    }
}

/// A model with its data, ready to take plain SGD steps.
fn steps<B: AutodiffBackend>() -> impl FnMut()
where
    Mlp<B>: AutodiffModule<B>,
{
    let device = Default::default();
    B::seed(&device, 0);
    let normal = Distribution::Normal(0.0, 1.0);
    let x = Tensor::<B, 2>::random([BATCH, WIDTHS[0]], normal, &device);
    let target = Tensor::<B, 2>::random([BATCH, WIDTHS[2]], normal, &device);
    let mut optimizer = SgdConfig::new().init::<B, Mlp<B>>();
    let mut model = Some(Mlp::<B>::new(&device));
    move || {
        let current = model.take().expect("put back after every step");
        let output = current.forward(x.clone());
        let loss = MseLoss::new().forward(output, target.clone(), Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(1e-3, current, grads));
    }
}

/// Measures a step at each thread count.
pub fn run(options: &Options) -> Vec<Row> {
    let products = trace(steps::<Fp8Backend<Autodiff<Flex>>>()).1;
    assert_eq!(products.fp8().count(), 5, "both layers run in FP8: {products}");
    options.threads.iter().map(|threads| measure(*threads, options.repetitions)).collect()
}

fn measure(threads: usize, repetitions: usize) -> Row {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool of a few threads").install(|| {
        let mut fp8 = steps::<Fp8Backend<Autodiff<Flex>>>();
        let mut high = steps::<Autodiff<Flex>>();
        let subject = Side { name: "SGD step 1024-4096-1024, FP8", bytes: None, run: &mut fp8 };
        let reference = Side { name: "the same step in f32", bytes: None, run: &mut high };
        compare((GROUP, threads, Some(TARGET)), subject, reference, repetitions)
    })
}
