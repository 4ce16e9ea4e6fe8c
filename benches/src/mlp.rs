//! A training step of a multi-layer perceptron in FP8, emulated on Flex, by each recipe: against the same step in f32, and against
//! current scaling.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8Linear};
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul, Recipe, trace};

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
}

/// The same with FP8 layers.
#[derive(Module, Debug)]
struct Fp8Mlp<B: Backend> {
    first: Fp8Linear<B>,
    second: Fp8Linear<B>,
}

impl<B: Fp8Matmul> Fp8Mlp<B> {
    fn new(device: &B::Device, config: &Fp8DotGeneralConfig) -> Self {
        let Mlp { first, second } = Mlp::new(device);
        let [first, second] = [first, second].map(|layer| Fp8Linear::from_linear(layer, config));
        Self { first, second }
    }
}

trait Model<B: Backend> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2>;
}

impl<B: Backend> Model<B> for Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(Relu::new().forward(self.first.forward(x)))
    }
}

impl<B: Fp8Matmul> Model<B> for Fp8Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(Relu::new().forward(self.first.forward(x)))
    }
}

/// A model with its data, ready to take plain SGD steps.
fn steps<B: AutodiffBackend, M: AutodiffModule<B> + Model<B> + 'static>(
    model: impl FnOnce(&B::Device) -> M,
) -> impl FnMut() {
    let device = Default::default();
    B::seed(&device, 0);
    let normal = Distribution::Normal(0.0, 1.0);
    let x = Tensor::<B, 2>::random([BATCH, WIDTHS[0]], normal, &device);
    let target = Tensor::<B, 2>::random([BATCH, WIDTHS[2]], normal, &device);
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init::<B, M>());
    let mut model = Some(model(&device));
    move || {
        let current = model.take().expect("put back after every step");
        let output = current.forward(x.clone());
        let loss = MseLoss::new().forward(output, target.clone(), Reduction::Mean);
        let grads = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(1e-3, current, grads));
    }
}

/// A recipe by name, and a training step with it.
type NamedStep = (&'static str, Box<dyn FnMut()>);

/// A training step with current scaling, the default.
pub fn fp8_steps() -> impl FnMut() {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    steps::<Fp8, Mlp<Fp8>>(Mlp::new)
}

/// What the recipes have in common: the widths and the optimizer; what differs is the type and the scope of a step.
fn recipes() -> [NamedStep; 5] {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    let config = |recipe| Fp8Config::default().with_recipe(recipe);
    let current = config(Recipe::current());
    let mut current_steps = fp8_steps();
    let rowwise = config(Recipe::rowwise());
    let mut rowwise_steps = steps::<Fp8, Mlp<Fp8>>(Mlp::new);
    let delayed = config(Recipe::delayed());
    let mut delayed_steps = steps::<Fp8, Mlp<Fp8>>(Mlp::new);
    let state = DelayedState::new();
    let layers = |mode| {
        move |device: &_| {
            let config = Fp8DotGeneralConfig::new().with_mode(mode);
            Fp8Mlp::<Autodiff<Flex>>::new(device, &config)
        }
    };
    [
        ("FP8, current", Box::new(move || current.scope(&mut current_steps))),
        ("FP8, per row", Box::new(move || rowwise.scope(&mut rowwise_steps))),
        ("FP8, delayed", Box::new(move || state.step(|| delayed.scope(&mut delayed_steps)))),
        ("FP8 layers, direct", Box::new(steps(layers(DotMode::Direct)))),
        ("FP8 layers, quantize-dequantize", Box::new(steps(layers(DotMode::QuantizeDequantize)))),
    ]
}

/// Measures a step of each recipe at each thread count, beside f32 and beside current scaling.
pub fn run(options: &Options) -> Vec<Row> {
    for (name, mut step) in recipes() {
        let (_, products) = trace(&mut step);
        assert_eq!(products.fp8().count(), 5, "{name}: both layers run in FP8: {products}");
    }
    let at = |threads: &usize| measure(*threads, options.repetitions);
    options.threads.iter().flat_map(at).collect()
}

fn measure(threads: usize, repetitions: usize) -> Vec<Row> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool of a few threads").install(|| {
        let mut high = steps::<Autodiff<Flex>, Mlp<Autodiff<Flex>>>(Mlp::new);
        let [mut current, others @ ..] = recipes();
        let mut rows = vec![compare(
            (GROUP, threads, Some(TARGET)),
            side(current.0, &mut current.1),
            side("f32", &mut high),
            repetitions,
        )];
        for (name, mut step) in others {
            let references: [(_, &mut dyn FnMut()); 2] =
                [("f32", &mut high), (current.0, &mut current.1)];
            for (reference, run) in references {
                let (subject, reference) = (side(name, &mut step), side(reference, run));
                rows.push(compare((GROUP, threads, None), subject, reference, repetitions));
            }
        }
        rows
    })
}

fn side<'a>(name: &'a str, run: &'a mut dyn FnMut()) -> Side<'a> {
    Side { name, bytes: None, run }
}
