//! Attention, causal, forward and backward: as one operation in each precision, against Burn's operations in f32 and against PyTorch's.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex};
use burn::tensor::activation::softmax;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Distribution, Tensor, TensorData, TensorPrimitive};
use burn_fp8::AttentionPrecision;
use burn_fp8::fused::ops::{AttentionOptions, attention};
use burn_fp8_cpu::Unit;

use crate::harness::{Options, Side};
use crate::partner::beside_torch;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "attention";

type B = Autodiff<Flex>;

/// Batch, heads, length, width: that of a model's training, and longer sequences.
const SHAPES: [[usize; 4]; 2] = [[16, 8, 128, 64], [2, 8, 2048, 64]];

/// What attention in f32 is to reach without a matrix unit, of Burn's, on one thread and on more.
fn target(threads: usize) -> Option<f64> {
    let target = if threads == 1 { 2.0 } else { 3.0 };
    (Unit::current() == Unit::Portable).then_some(target)
}

/// Measures each shape in each precision.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| {
        SHAPES.iter().flat_map(|shape| measure(*shape, threads, options)).collect()
    })
}

fn measure(shape: [usize; 4], threads: usize, options: &Options) -> Vec<Row> {
    let mut plain = passes(shape, plainly);
    let mut rows = vec![];
    for precision in AttentionPrecision::ALL {
        let mut run = passes(shape, move |[q, k, v]| {
            let options = AttentionOptions { causal: true, precision, ..Default::default() };
            attention(q, k, v, options)
        });
        let name = format!("attention {shape:?}, {precision}");
        let target = target(threads).filter(|_| precision == AttentionPrecision::High);
        let (subject, reference) = (Side::new(&name, &mut run), Side::new("Burn, f32", &mut plain));
        rows.push(options.compare((GROUP, threads, target), subject, reference));
        let sizes = shape.map(|size| size.to_string());
        let arguments = ("attention", sizes.as_slice());
        rows.extend(beside_torch(options, (GROUP, threads), (&name, &mut run), arguments));
    }
    rows
}

/// Forward and backward, with a given gradient of the output.
fn passes(
    shape: [usize; 4],
    attention: impl Fn([Tensor<B, 4>; 3]) -> Tensor<B, 4>,
) -> impl FnMut() {
    let random = || Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default());
    let operands = [(); 3].map(|()| random().require_grad());
    let grad = random().inner().into_primitive().tensor();
    move || {
        let grads = given(attention(operands.clone()), grad.clone()).backward();
        for operand in &operands {
            assert!(operand.grad(&grads).is_some());
        }
    }
}

/// Nothing that is computed, whose backward pass gives the tensor this gradient.
fn given(output: Tensor<B, 4>, grad: FloatTensor<Flex>) -> Tensor<B, 1> {
    #[derive(Debug)]
    struct Given;

    impl Backward<Flex, 1> for Given {
        type State = FloatTensor<Flex>;

        fn backward(
            self,
            ops: Ops<Self::State, 1>,
            grads: &mut Gradients,
            _checkpointer: &mut Checkpointer,
        ) {
            grads.consume::<Flex>(&ops.node);
            if let [Some(output)] = ops.parents {
                grads.register::<Flex>(output.id, ops.state);
            }
        }
    }

    let output = output.into_primitive().tensor();
    let nothing = Tensor::<Flex, 1>::zeros([1], &Default::default()).into_primitive().tensor();
    let step = Given.prepare::<NoCheckpointing>([output.node.clone()]).compute_bound().stateful();
    let loss = match step {
        OpsKind::Tracked(prep) => prep.finish(grad, nothing),
        OpsKind::UnTracked(_) => unreachable!("the operands are tracked"),
    };
    Tensor::from_primitive(TensorPrimitive::Float(loss))
}

/// As a model of Burn's operations has it, with a mask that is added.
fn plainly([q, k, v]: [Tensor<B, 4>; 3]) -> Tensor<B, 4> {
    let [.., length, width] = q.dims();
    let row = |row| (0..length).map(move |key| if key > row { -1e4f32 } else { 0.0 });
    let future: Vec<_> = (0..length).flat_map(row).collect();
    let future = TensorData::new(future, [1, 1, length, length]);
    let future = Tensor::<B, 4>::from_data(future, &q.device());
    let scores = q.matmul(k.transpose()) / (width as f64).sqrt() + future;
    softmax(scores, 3).matmul(v)
}
