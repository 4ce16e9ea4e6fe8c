//! A linear layer in bf16, forward and backward, against the same layer without FP8 and against torch's.

use std::hint::black_box;

use anyhow::Result;
use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::linear;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, Tensor, TensorPrimitive};
use burn_fp8::report::Implementation;
use burn_fp8::{DelayedState, Execution, Fp8Backend, Fp8Config, Fp8Matmul, Recipe, trace};

use crate::device::{Side, compare, primitive, random};
use crate::options::{Fused, Options, Sink, Unfused};
use crate::rows::Row;

pub const GROUP: &str = "gpu-linear";

/// M, K, N: those of gpu_peers.py. The targets are for the first.
const SHAPES: [[usize; 3]; 3] = [[16384, 4096, 14336], [8192, 4096, 4096], [4096, 4096, 1024]];

/// Ends a graph at a tensor with a gradient of one's choice: no loss has to be computed, and nothing but the layer is measured.
#[derive(Debug)]
struct GivenGradient;

impl<B: Backend> Backward<B, 1> for GivenGradient {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let _of_the_scalar = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, ops.state);
        }
    }
}

/// A number whose `backward` gives `y` the gradient `grad`.
fn loss<I, B>(y: Tensor<B, 2>, grad: FloatTensor<I>) -> Tensor<B, 1>
where
    I: Backend,
    B: Backend<FloatTensorPrimitive = FloatTensor<Autodiff<I>>>,
{
    let y = primitive(y);
    let device = I::float_device(&y.primitive);
    let zero = I::float_zeros(Shape::new([1]), &device, FloatDType::BF16);
    let backward = Backward::<I, 1>::prepare::<NoCheckpointing>(GivenGradient, [y.node]);
    let loss = match backward.compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(grad, zero),
        OpsKind::UnTracked(prep) => prep.finish(zero),
    };
    Tensor::from_primitive(TensorPrimitive::Float(loss))
}

/// Input, weight and output gradient of a layer.
pub struct Layer<I: Backend> {
    x: FloatTensor<I>,
    weight: FloatTensor<I>,
    grad: FloatTensor<I>,
}

impl<I: Backend> Layer<I> {
    pub fn random([m, k, n]: [usize; 3]) -> Self {
        let tensor = |shape| primitive(random::<I>(shape));
        Self { x: tensor([m, k]), weight: tensor([k, n]), grad: tensor([m, n]) }
    }

    /// Forward and backward, with gradients of input and weight.
    pub fn step<B>(&self)
    where
        B: AutodiffBackend<FloatTensorPrimitive = FloatTensor<Autodiff<I>>>,
    {
        let leaf = |tensor: &FloatTensor<I>| -> Tensor<B, 2> {
            let tensor = <Autodiff<I> as AutodiffBackend>::from_inner(tensor.clone());
            Tensor::from_primitive(TensorPrimitive::Float(tensor)).require_grad()
        };
        let (x, weight) = (leaf(&self.x), leaf(&self.weight));
        let y = linear(x.clone(), weight.clone(), None);
        let grads = loss::<I, B>(y.clone(), self.grad.clone()).backward();
        black_box((x.grad(&grads), weight.grad(&grads), y));
    }
}

/// Panics where a step is not three native products: it would not measure what it says.
pub fn assert_native<I: Fp8Matmul>(config: &Fp8Config, layer: &Layer<I>)
where
    Fp8Backend<Autodiff<I>>: AutodiffBackend<FloatTensorPrimitive = FloatTensor<Autodiff<I>>>,
{
    let (_, report) = trace(|| config.scope(|| layer.step::<Fp8Backend<Autodiff<I>>>()));
    let native =
        report.products.iter().filter(|p| matches!(p.ran, Implementation::Native { .. })).count();
    assert_eq!((native, report.products.len()), (3, 3), "{report}");
}

pub fn run(options: &Options, sink: &mut Sink) -> Result<()> {
    let shapes = if options.quick { &SHAPES[..1] } else { &SHAPES[..] };
    for &shape in shapes {
        sink.add(measure::<Fused>(options, shape, "")?)?;
        sink.add(measure::<Unfused>(options, shape, ", without Fusion")?)?;
    }
    Ok(())
}

fn measure<I: Fp8Matmul>(
    options: &Options,
    shape @ [m, k, n]: [usize; 3],
    suffix: &str,
) -> Result<Vec<Row>>
where
    Fp8Backend<Autodiff<I>>: AutodiffBackend<FloatTensorPrimitive = FloatTensor<Autodiff<I>>>,
{
    let layer = Layer::<I>::random(shape);
    let flops = 6.0 * m as f64 * k as f64 * n as f64;
    let native = Fp8Config::default().with_execution(Execution::Native);
    let mut rows = vec![];
    for (name, recipe, target) in
        [("current", Recipe::current(), 1.4), ("delayed", Recipe::delayed(), 1.5)]
    {
        let config = native.with_recipe(recipe);
        let state = DelayedState::new();
        state.scope(|| assert_native(&config, &layer));
        let mut fp8 = |_| {
            state.step(|| config.scope(|| layer.step::<Fp8Backend<Autodiff<I>>>()));
            Ok(())
        };
        let mut bf16 = |_| {
            layer.step::<Autodiff<I>>();
            Ok(())
        };
        let name = format!("{m}×{k}×{n} forward and backward, {name} scaling{suffix}");
        // What a user gets is with Fusion.
        let target = (shape == SHAPES[0] && suffix.is_empty()).then_some(target);
        let subject = Side::new(&name, &mut fp8).with_flops(flops);
        let reference = Side::new("the same layer in bf16", &mut bf16);
        let mut row =
            compare::<I>(&options.gpu, (GROUP, target), subject, reference, options.samples())?;
        if let Some(torch) = &options.torch {
            for (what, target) in [("bf16", target), ("fp8_eager", None), ("fp8_compiled", None)] {
                let Some(milliseconds) = torch.linear(shape, what) else { continue };
                let beside_torch = row.beside(&torch.name(what), milliseconds, target);
                if what == "bf16" {
                    // What is gained over Burn's own bf16 is to be no less.
                    row.target = row.target.map(|target| target.max(beside_torch.ratio));
                }
                rows.push(beside_torch);
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
