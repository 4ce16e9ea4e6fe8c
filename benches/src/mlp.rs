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
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Fp8Matmul, Recipe, trace};

use burn_fp8_bench_f32::{Mlp, Model, passes};
use burn_fp8_cpu::Unit;

use crate::harness::{Options, Row, Side, compare};
use crate::partner::Partner;

/// The name of the group.
pub const GROUP: &str = "mlp";

/// What FP8 with current scaling is to reach: against f32 with AVX-512 and against f32 as Burn builds it, on one thread and on more.
struct Targets {
    passes: [[Option<f64>; 2]; 2],
    step: [[Option<f64>; 2]; 2],
    /// The passes with MXFP8 and with blockwise scales, against f32 with AVX-512 on one thread.
    blocks: [f64; 2],
}

fn targets(unit: Unit) -> Targets {
    let some = |targets: [[f64; 2]; 2]| targets.map(|targets| targets.map(Some));
    match unit {
        Unit::AmxBf16 => {
            let (passes, step) = ([[2.2, 3.5], [1.8, 2.8]], [[1.6, 2.3], [1.4, 1.9]]);
            Targets { passes: some(passes), step: some(step), blocks: [2.2, 1.8] }
        }
        Unit::Avx512Bf16 => {
            let (passes, step) = ([[1.3, 2.0], [1.2, 1.7]], [[1.2, 1.6], [1.1, 1.4]]);
            Targets { passes: some(passes), step: some(step), blocks: [1.2, 1.1] }
        }
        // Emulated: FP8 may take 1.10 times as long as f32, in blocks 1.25 times.
        Unit::Portable => {
            let cost = [[Some(1.0 / 1.10), None]; 2];
            Targets { passes: [[None; 2]; 2], step: cost, blocks: [1.0 / 1.25; 2] }
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

/// A training step with current scaling, the default.
pub fn fp8_steps() -> impl FnMut() {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    steps::<Fp8, Mlp<Fp8>>(Mlp::new)
}

/// What the recipes have in common: the widths and the optimizer; what differs is the type and the scope of a step.
fn recipes() -> [NamedStep; 7] {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    let config = |recipe| Fp8Config::default().with_recipe(recipe);
    let current = config(Recipe::current());
    let mut current_steps = fp8_steps();
    let rowwise = config(Recipe::rowwise());
    let mut rowwise_steps = steps::<Fp8, Mlp<Fp8>>(Mlp::new);
    let mxfp8 = config(Recipe::mxfp8());
    let mut mxfp8_steps = steps::<Fp8, Mlp<Fp8>>(Mlp::new);
    let blockwise = config(Recipe::blockwise());
    let mut blockwise_steps = steps::<Fp8, Mlp<Fp8>>(Mlp::new);
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
        ("MXFP8", Box::new(move || mxfp8.scope(&mut mxfp8_steps))),
        ("FP8, blockwise", Box::new(move || blockwise.scope(&mut blockwise_steps))),
        ("FP8, delayed", Box::new(move || state.step(|| delayed.scope(&mut delayed_steps)))),
        ("FP8 layers, direct", Box::new(steps(layers(DotMode::Direct)))),
        ("FP8 layers, quantize-dequantize", Box::new(steps(layers(DotMode::QuantizeDequantize)))),
    ]
}

/// The passes alone, with current and with delayed scaling.
fn fp8_passes() -> [NamedStep; 2] {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    let current = passes::<Fp8, Mlp<Fp8>>(Mlp::new);
    let mut delayed = passes::<Fp8, Mlp<Fp8>>(Mlp::new);
    let recipe = Fp8Config::default().with_recipe(Recipe::delayed());
    let state = DelayedState::new();
    [
        ("FP8, current, forward and backward", Box::new(current)),
        (
            "FP8, delayed, forward and backward",
            Box::new(move || state.step(|| recipe.scope(&mut delayed))),
        ),
    ]
}

/// The passes alone, with scales of blocks.
fn block_passes() -> [NamedStep; 2] {
    type Fp8 = Fp8Backend<Autodiff<Flex>>;
    let with = |name, recipe| -> NamedStep {
        let mut passes = passes::<Fp8, Mlp<Fp8>>(Mlp::new);
        let config = Fp8Config::default().with_recipe(recipe);
        (name, Box::new(move || config.scope(&mut passes)))
    };
    [
        with("MXFP8, forward and backward", Recipe::mxfp8()),
        with("FP8, blockwise, forward and backward", Recipe::blockwise()),
    ]
}

/// Measures the passes and a step of each recipe at each thread count, beside f32 and beside current scaling.
pub fn run(options: &Options) -> Vec<Row> {
    for (name, mut step) in recipes() {
        let (_, products) = trace(&mut step);
        assert_eq!(products.fp8().count(), 5, "{name}: both layers run in FP8: {products}");
    }
    let at = |threads: &usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(*threads).build();
        let pool = pool.expect("a pool of a few threads");
        pool.install(|| [measure_passes(*threads, options), measure(*threads, options)].concat())
    };
    options.threads.iter().flat_map(at).collect()
}

/// Measures something beside f32 in both builds and beside PyTorch's bf16, of a `kind` that the programs for these know.
fn beside_f32(
    (name, run): (&'static str, &mut dyn FnMut()),
    f32: &mut dyn FnMut(),
    kind: &str,
    (threads, targets): (usize, [Option<f64>; 2]),
    options: &Options,
) -> Vec<Row> {
    let mut row = |reference: &str, target, other: &mut dyn FnMut()| {
        let (subject, reference) = (side(name, run), side(reference, other));
        compare((GROUP, threads, target), subject, reference, options.repetitions)
    };
    let mut rows = vec![row("f32", targets[0], f32)];
    match Partner::f32(&[kind], threads) {
        Ok(mut partner) => rows.push(row("f32, AVX2", targets[1], &mut || partner.run())),
        Err(error) => eprintln!("f32, AVX2: not measured: {error}"),
    }
    for dtype in ["f32", "bf16"] {
        let Some(python) = &options.python else { continue };
        match Partner::torch(python, &[kind, dtype], threads) {
            Ok(mut partner) => {
                let reference = format!("{}: {dtype}", partner.name);
                rows.push(row(&reference, None, &mut || partner.run()));
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    rows
}

fn measure_passes(threads: usize, options: &Options) -> Vec<Row> {
    let Targets { passes: of_passes, blocks, .. } = targets(Unit::current());
    let targets = of_passes[usize::from(threads > 1)];
    let mut high = passes::<Autodiff<Flex>, Mlp<Autodiff<Flex>>>(Mlp::new);
    let mut rows = Vec::new();
    for (name, mut run) in fp8_passes() {
        let subject = (name, &mut *run as &mut dyn FnMut());
        rows.extend(beside_f32(subject, &mut high, "mlp-passes", (threads, targets), options));
    }
    for ((name, mut run), target) in block_passes().into_iter().zip(blocks) {
        let target = (threads == 1).then_some(target);
        let (subject, reference) = (side(name, &mut run), side("f32", &mut high));
        rows.push(compare((GROUP, threads, target), subject, reference, options.repetitions));
    }
    rows
}

fn measure(threads: usize, options: &Options) -> Vec<Row> {
    let targets = targets(Unit::current()).step[usize::from(threads > 1)];
    let mut high = steps::<Autodiff<Flex>, Mlp<Autodiff<Flex>>>(Mlp::new);
    let [mut current, others @ ..] = recipes();
    let subject = (current.0, &mut *current.1 as &mut dyn FnMut());
    let mut rows = beside_f32(subject, &mut high, "mlp-step", (threads, targets), options);
    for (name, mut step) in others {
        let references: [(_, &mut dyn FnMut()); 2] =
            [("f32", &mut high), (current.0, &mut current.1)];
        for (reference, run) in references {
            let (subject, reference) = (side(name, &mut step), side(reference, run));
            rows.push(compare((GROUP, threads, None), subject, reference, options.repetitions));
        }
    }
    rows
}

fn side<'a>(name: &'a str, run: &'a mut dyn FnMut()) -> Side<'a> {
    Side { name, bytes: None, run }
}
