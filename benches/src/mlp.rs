//! A training step of a multi-layer perceptron in FP8 on Flex, by each recipe: against the same step in f32, and against
//! current scaling.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::Relu;
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8Linear};
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul, Recipe, Scaling, gains, trace};

use burn_fp8_bench_f32::{Mlp, Model, passes};

use crate::harness::{Options, Side};
use crate::partner::{Partner, beside_torch};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "mlp";

/// A step in which the products run in FP8 that it makes faster.
const MEASURED: &str = "FP8 where it was measured to gain";

/// What such a step is to reach, against f32, on every unit.
const NEVER_SLOWER: f64 = 0.98;

type Fp8 = Fp8Backend<Autodiff<Flex>>;

/// The same with FP8 layers.
#[derive(Module, Debug)]
struct Fp8Mlp<B: Backend> {
    first: Fp8Linear<B>,
    second: Fp8Linear<B>,
}

impl<B: Fp8Matmul> Fp8Mlp<B> {
    fn new(device: &B::Device, config: &Fp8DotGeneralConfig) -> Self {
        let layers = Mlp::new(device).into_layers();
        let [first, second] = layers.map(|layer| Fp8Linear::from_linear(layer, config));
        Self { first, second }
    }
}

impl<B: Fp8Matmul> Model<B> for Fp8Mlp<B> {
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(Relu::new().forward(self.first.forward(x)))
    }
}

/// Training steps of plain SGD, by an optimizer that leaves the state of FP8 layers to them.
fn steps<B: AutodiffBackend, M: AutodiffModule<B> + Model<B> + 'static>(
    model: impl FnOnce(&B::Device) -> M,
) -> impl FnMut() {
    burn_fp8_bench_f32::steps(model, Fp8Optimizer::new(SgdConfig::new().init::<B, M>()))
}

/// A recipe by name, and a training step with it.
type NamedStep = (&'static str, Box<dyn FnMut()>);

/// What [`Fp8Config::measured`] gives, measured anew: what was kept may be of older code.
pub fn measured<B: AutodiffBackend + Fp8Matmul>() -> Fp8Config {
    let config = Fp8Config::default();
    let gains = gains::measure::<B>(&config, &Default::default(), |_, _| ());
    let gains = gains.expect("Flex has FP8");
    config.with_filter(config.filter.with_gains(gains)).with_join(true)
}

/// A training step with current scaling, the default.
pub fn fp8_steps() -> impl FnMut() + use<> {
    steps::<Fp8, Mlp<Fp8>>(Mlp::new)
}

/// The same steps or passes by this recipe.
fn by(name: &'static str, recipe: Recipe, mut run: impl FnMut() + 'static) -> NamedStep {
    let config = Fp8Config::default().with_recipe(recipe);
    let state = DelayedState::new();
    let is_delayed = matches!(recipe.scaling, Scaling::Delayed(_));
    let run = move || match is_delayed {
        true => state.step(|| config.scope(&mut run)),
        false => config.scope(&mut run),
    };
    (name, Box::new(run))
}

/// What the recipes have in common: the widths and the optimizer; what differs is the type and the scope of a step.
fn recipes() -> [NamedStep; 7] {
    let layers = |mode| {
        steps(move |device: &_| {
            let config = Fp8DotGeneralConfig::new().with_mode(mode);
            Fp8Mlp::<Autodiff<Flex>>::new(device, &config)
        })
    };
    [
        by("FP8, current", Recipe::current(), fp8_steps()),
        by("FP8, per row", Recipe::rowwise(), fp8_steps()),
        by("MXFP8", Recipe::mxfp8(), fp8_steps()),
        by("FP8, blockwise", Recipe::blockwise(), fp8_steps()),
        by("FP8, delayed", Recipe::delayed(), fp8_steps()),
        ("FP8 layers, direct", Box::new(layers(DotMode::Direct))),
        ("FP8 layers, quantize-dequantize", Box::new(layers(DotMode::QuantizeDequantize))),
    ]
}

/// The passes alone: with current and with delayed scaling, then with scales of blocks.
fn fp8_passes() -> [[NamedStep; 2]; 2] {
    let passes = passes::<Fp8, Mlp<Fp8>>;
    [
        [
            by("FP8, current, forward and backward", Recipe::current(), passes(Mlp::new)),
            by("FP8, delayed, forward and backward", Recipe::delayed(), passes(Mlp::new)),
        ],
        [
            by("MXFP8, forward and backward", Recipe::mxfp8(), passes(Mlp::new)),
            by("FP8, blockwise, forward and backward", Recipe::blockwise(), passes(Mlp::new)),
        ],
    ]
}

/// Measures the passes and a step of each recipe at each thread count, beside f32 and beside current scaling.
pub fn run(options: &Options) -> Vec<Row> {
    for (name, mut step) in recipes() {
        let (_, products) = trace(&mut step);
        assert_eq!(products.fp8().count(), 5, "{name}: both layers run in FP8: {products}");
    }
    options
        .on_pools(|threads| [measure_passes(threads, options), measure(threads, options)].concat())
}

/// Measures something beside f32 in both builds and beside PyTorch's bf16, of a `kind` that the programs for these know.
fn beside_f32(
    (name, run): (&'static str, &mut dyn FnMut()),
    f32: &mut dyn FnMut(),
    kind: &str,
    threads: usize,
    options: &Options,
) -> Vec<Row> {
    let mut row = |reference: &str, other: &mut dyn FnMut()| {
        let (subject, reference) = (Side::new(name, run), Side::new(reference, other));
        options.compare((GROUP, threads, None), subject, reference)
    };
    let mut rows = vec![row("f32", f32)];
    match Partner::f32(&[kind], threads) {
        Ok(mut partner) => rows.push(row("f32, AVX2", &mut || partner.run())),
        Err(error) => eprintln!("f32, AVX2: not measured: {error}"),
    }
    rows.extend(beside_torch(options, (GROUP, threads), (name, run), (kind, &[])));
    rows
}

fn measure_passes(threads: usize, options: &Options) -> Vec<Row> {
    let mut high = passes::<Autodiff<Flex>, Mlp<Autodiff<Flex>>>(Mlp::new);
    let mut rows = Vec::new();
    let [of_tensors, of_blocks] = fp8_passes();
    for (name, mut run) in of_tensors {
        let subject = (name, &mut *run as &mut dyn FnMut());
        rows.extend(beside_f32(subject, &mut high, "mlp-passes", threads, options));
    }
    for (name, mut run) in of_blocks {
        let (subject, reference) = (Side::new(name, &mut run), Side::new("f32", &mut high));
        rows.push(options.compare((GROUP, threads, None), subject, reference));
    }
    rows
}

fn measure(threads: usize, options: &Options) -> Vec<Row> {
    let mut high = steps::<Autodiff<Flex>, Mlp<Autodiff<Flex>>>(Mlp::new);
    let [mut current, others @ ..] = recipes();
    let subject = (current.0, &mut *current.1 as &mut dyn FnMut());
    let mut rows = beside_f32(subject, &mut high, "mlp-step", threads, options);
    for (name, mut step) in others {
        let references: [(_, &mut dyn FnMut()); 2] =
            [("f32", &mut high), (current.0, &mut current.1)];
        for (reference, run) in references {
            let (subject, reference) = (Side::new(name, &mut step), Side::new(reference, run));
            rows.push(options.compare((GROUP, threads, None), subject, reference));
        }
    }
    let config = measured::<Fp8>();
    let mut step = fp8_steps();
    let mut step = || config.scope(&mut step);
    let (subject, reference) = (Side::new(MEASURED, &mut step), Side::new("f32", &mut high));
    rows.push(options.compare((GROUP, threads, Some(NEVER_SLOWER)), subject, reference));
    rows
}
