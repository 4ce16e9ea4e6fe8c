//! The products that a user's code asks for: each asks the configuration, then runs in FP8 or as it is.

use std::cell::RefCell;
use std::collections::VecDeque;

use burn_backend::{Backend, DType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AttentionPrecision, Gemm, GemmRole, ProductKind};

use super::attention as product_attention;
use super::ops::Fp8Products;
use super::plan::{Product, linear_gemm};
use crate::config;
use crate::config::scope::{innermost, within};
use crate::engine::tensor::{add_bias, join, reshape};
use crate::engine::{
    Attention, AttentionOf, Execution, Kind, MatrixOf, Of, Target, check_attention_shapes, in_f32,
};
use crate::host;
use crate::report::{HighPrecision, record_high_precision};
use crate::weights::{self, Leaf};

pub(crate) fn matmul<B: Fp8Products>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let shapes = [lhs.shape(), rhs.shape()];
    let mut gemm = Gemm::from_shapes(&shapes[0], &shapes[1]).unwrap_or_else(|| {
        let leading = "and leading dimensions must be equal, or 1 in one of them";
        misfit("matrices", &shapes, &format!("[…, M, K] and […, K, N], {leading}"))
    });
    let kind = innermost(&PARTS).unwrap_or(ProductKind::Matmul);
    gemm.plain_operand &= kind != ProductKind::Attention;
    match plan::<B>(kind, GemmRole::Output, gemm, [&lhs, &rhs]) {
        Some(product) => B::fp8_matmul(lhs, rhs, product),
        None if is_empty([&lhs, &rhs]) => {
            let [lhs_shape, rhs_shape] = &shapes;
            let rank = lhs_shape.num_dims();
            let sides = [lhs_shape[rank - 2], rhs_shape[rank - 1]];
            let leading = lhs_shape.iter().zip(rhs_shape.iter()).take(rank - 2);
            let leading = leading.map(|(lhs, rhs)| if *lhs == 1 { *rhs } else { *lhs });
            B::fp8_nothing([&lhs, &rhs], leading.chain(sides).collect())
        }
        None if gemm.batch == 1 && gemm.plain_operand && joins(&lhs) => {
            rejoined::<B>(lhs, |lhs| B::float_matmul(lhs, join::<B>(rhs)))
        }
        None => B::float_matmul(lhs, rhs),
    }
}

pub(crate) fn linear<B: Fp8Products>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let shapes = [x.shape(), weight.shape()];
    let gemm = linear_gemm(&shapes[0], &shapes[1])
        .unwrap_or_else(|| misfit("input and weight", &shapes, "[…, K] and [K, N]"));
    match plan::<B>(ProductKind::Linear, GemmRole::Output, gemm, [&x, &weight]) {
        Some(product) => B::fp8_linear(x, weight, bias, product),
        None if is_empty([&x, &weight]) => {
            let mut shape = x.shape();
            let last = shape.num_dims() - 1;
            shape[last] = gemm.n;
            add_bias::<B>(B::fp8_nothing([&x, &weight], shape), bias)
        }
        None if joins(&x) => rejoined::<B>(x, |x| B::linear(x, weight, bias)),
        None => B::linear(x, weight, bias),
    }
}

pub(crate) fn linear_x_backward<B: Fp8Products>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [output_grad.shape(), weight.shape()];
    let transposed = shapes[1].iter().rev().copied().collect();
    let gemm = linear_gemm(&shapes[0], &transposed)
        .unwrap_or_else(|| misfit("output gradient and weight", &shapes, "[…, N] and [K, N]"));
    let forward = gemm.for_role(GemmRole::GradInput);
    match plan::<B>(ProductKind::Linear, GemmRole::GradInput, forward, [&output_grad, &weight]) {
        Some(product) => B::fp8_linear_x_backward(weight, output_grad, product),
        None if is_empty([&output_grad, &weight]) => {
            let mut shape = output_grad.shape();
            let last = shape.num_dims() - 1;
            shape[last] = shapes[1][0];
            B::fp8_nothing([&output_grad, &weight], shape)
        }
        None if joins(&output_grad) => {
            rejoined::<B>(output_grad, |grad| B::linear_x_backward(weight, grad))
        }
        None => B::linear_x_backward(weight, output_grad),
    }
}

pub(crate) fn linear_weight_backward<B: Fp8Products>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [x.shape(), output_grad.shape()];
    let last = shapes[0].len().saturating_sub(1);
    if last == 0 || shapes[1].len() != last + 1 || shapes[0][..last] != shapes[1][..last] {
        misfit("input and output gradient", &shapes, "[…, K] and […, N], with the same rows");
    }
    let rows = shapes[0][..last].iter().product();
    let forward = Gemm::matrix(rows, shapes[1][last], shapes[0][last]);
    match plan::<B>(ProductKind::Linear, GemmRole::GradWeight, forward, [&x, &output_grad]) {
        Some(product) => B::fp8_linear_weight_backward(x, output_grad, product),
        None if is_empty([&x, &output_grad]) => {
            let sides = [shapes[0][last], shapes[1][last]];
            B::fp8_nothing([&x, &output_grad], Shape::new(sides))
        }
        None if joins(&x) => B::linear_weight_backward(join::<B>(x), join::<B>(output_grad)),
        None => B::linear_weight_backward(x, output_grad),
    }
}

/// Whether there is nothing to multiply. Backends may not take such operands: Flex 0.21 reads foreign memory where a batch of none meets one matrix. So this
/// holds with FP8 off, too.
fn is_empty(operands: [&impl TensorMetadata; 2]) -> bool {
    operands.iter().any(|operand| operand.shape().num_elements() == 0)
}

/// Whether batch and rows of an operand are to become those of one matrix, in high precision.
fn joins(operand: &impl TensorMetadata) -> bool {
    let shape = operand.shape();
    config::current().config.join && shape.num_dims() > 2 && shape.num_elements() > 0
}

/// Multiplies `[…, K]` as one matrix: to `[…, N]`.
fn rejoined<B: Fp8Products>(
    operand: FloatTensor<B>,
    multiply: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let mut shape = operand.shape();
    let output = multiply(join::<B>(operand));
    let last = shape.num_dims() - 1;
    shape[last] = output.shape()[1];
    reshape::<B>(output, shape)
}

/// Backends may not check the shapes of a product: Flex 0.21 reads foreign memory where batches do not broadcast. So this holds with FP8 off, too.
fn misfit(what: &str, [lhs, rhs]: &[Shape; 2], fits: &str) -> ! {
    let (lhs, rhs) = (lhs.as_slice(), rhs.as_slice());
    panic!("{what} of the shapes {lhs:?} and {rhs:?} do not multiply; these do: {fits}")
}

thread_local! {
    /// What plain products are part of, on this thread.
    static PARTS: RefCell<Vec<ProductKind>> = const { RefCell::new(Vec::new()) };
    /// The tensors that Burn has dequantized on this thread since the last product.
    static DEQUANTIZED: RefCell<VecDeque<Dequantized>> = const { RefCell::new(VecDeque::new()) };
}

/// The shape of a tensor, and its memory where that can be told.
type Dequantized = (Shape, Option<Leaf>);

/// Notes that Burn's numbers of a quantized tensor come next: in `linear`, those of a quantized weight.
pub(crate) fn note_dequantized(shape: Shape, memory: Option<Leaf>) {
    // Input, weight and bias.
    const OPERANDS: usize = 3;
    DEQUANTIZED.with_borrow_mut(|shapes| {
        shapes.truncate(OPERANDS - 1);
        shapes.push_front((shape, memory));
    });
}

/// Whether Burn has dequantized an operand for this product: FP8 would round it a second time. Burn does so for linear layers; plain products of
/// quantized tensors do not come here.
fn is_quantized<B: Fp8Products>(kind: ProductKind, operands: [&FloatTensor<B>; 2]) -> bool {
    let dequantized = DEQUANTIZED.take();
    // Burn drops the numbers after the product. A tensor that somebody keeps, a user has dequantized.
    let is_it = |operand: &FloatTensor<B>, (shape, memory): &Dequantized| {
        let memory = memory.as_ref().zip(B::fp8_memory(operand));
        let is_its = |(of_it, own): (&Leaf, Leaf)| of_it.name == own.name && own.is_single();
        operand.shape() == *shape && memory.is_none_or(is_its)
    };
    let any = |operand: &&FloatTensor<B>| dequantized.iter().any(|it| is_it(operand, it));
    kind == ProductKind::Linear && operands.iter().any(any)
}

/// Runs plain products as a part of something else, on this thread.
pub(crate) fn as_part_of<R>(kind: ProductKind, run: impl FnOnce() -> R) -> R {
    within(&PARTS, kind, run).0
}

/// The decision about a product. One that is tracked and not in FP8 is counted all the same, so that those after it keep their sites.
fn plan<B: Fp8Products>(
    kind: ProductKind,
    role: GemmRole,
    forward: Gemm,
    operands: [&FloatTensor<B>; 2],
) -> Option<Product> {
    let is_tracked = B::fp8_is_tracked(operands);
    weights::go_on();
    let product = match is_quantized::<B>(kind, operands) && config::current().config.enabled {
        true => {
            record_high_precision(kind, role, forward.for_role(role), HighPrecision::Quantized);
            None
        }
        false => Product::plan::<B>(kind, role, forward, operands, is_tracked, || {
            parameter::<B>(kind, operands[1])
        }),
    };
    if product.is_none() && is_tracked {
        Product::skip_site(forward, B::fp8_weight(kind, operands[1]));
    }
    product
}

/// Burn's id of the right operand, where it is a parameter whose name has been asked for.
fn parameter<B: Fp8Products>(kind: ProductKind, rhs: &FloatTensor<B>) -> Option<u64> {
    let of_graph = B::fp8_weight(kind, rhs).and_then(|leaf| weights::parameter(&leaf));
    of_graph.or_else(|| weights::parameter(&B::fp8_memory(rhs)?))
}

/// Attention as a user asks for it: checked, in f32 where FP8 is off.
///
/// # Panics
/// Where shapes do not fit, the scale is not finite or the softcap not positive; with FP8 where the configuration asks for native
/// execution and there is no matrix unit of a CPU; with bf16 on a backend without it.
pub(crate) fn attention<B: Fp8Products>(
    qkv: [FloatTensor<B>; 3],
    attention: AttentionOf<B>,
) -> FloatTensor<B> {
    let shapes = qkv.each_ref().map(|tensor| tensor.shape().dims());
    let attention = settled::<B>(shapes, attention, &host::float_device::<B>(&qkv[0]));
    let [[batch, heads, length, width], _, [.., keys, value_width]] = shapes;
    let output = [batch, heads, length, value_width];
    if output.contains(&0) || keys * width == 0 {
        return B::fp8_nothing(qkv.each_ref(), Shape::new(output));
    }
    B::fp8_attention(qkv, attention)
}

/// The same of queries, keys and values in one tensor `[batch, length, heads + 2 · kv_heads, width]`.
///
/// # Panics
/// As [`attention`].
pub(crate) fn self_attention<B: Fp8Products>(
    qkv: FloatTensor<B>,
    kv_heads: usize,
    attention: AttentionOf<B>,
) -> FloatTensor<B> {
    let shape @ [batch, length, all, width] = qkv.shape().dims();
    let heads = kv_heads.checked_mul(2).and_then(|of_keys| all.checked_sub(of_keys));
    let Some(heads @ 1..) = heads else {
        panic!(
            "{shape:?} leaves no heads of queries beside {kv_heads} of keys and as many of values"
        )
    };
    let shapes = [heads, kv_heads, kv_heads].map(|heads| [batch, heads, length, width]);
    let attention = settled::<B>(shapes, attention, &host::float_device::<B>(&qkv));
    if batch * length * width == 0 {
        return B::fp8_nothing([&qkv], Shape::new([batch, heads, length, width]));
    }
    B::fp8_self_attention(qkv, kv_heads, attention)
}

/// Attention to queries, keys and values of these shapes, checked, as the configuration has it run.
fn settled<B: Fp8Products>(
    shapes: [[usize; 4]; 3],
    attention: AttentionOf<B>,
    device: &B::Device,
) -> AttentionOf<B> {
    check_numbers(&attention);
    if let Err(error) = check_attention_shapes(shapes, &attention) {
        panic!("{error}");
    }
    let precision = attention_precision::<B>(attention.precision, device);
    let target = attention_target::<B>(precision, device);
    let bias = attention.bias.map(in_f32::<B>);
    Attention { bias, precision, target, ..attention }
}

/// To keys and values in FP8.
pub(crate) fn attention_to_codes<B: Fp8Products>(
    q: FloatTensor<B>,
    kv: [MatrixOf<B>; 2],
    attention: AttentionOf<B>,
) -> FloatTensor<B> {
    check_numbers(&attention);
    let bias = attention.bias.map(in_f32::<B>);
    product_attention::to_codes::<B>(q, kv, &Attention { bias, ..attention })
}

fn check_numbers<F, M>(attention: &Attention<F, M>) {
    let Attention { scale, softcap, .. } = attention;
    assert!(scale.is_finite(), "the scale of attention is {scale}; it must be finite");
    assert!(
        softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0),
        "the softcap of attention is {softcap:?}; it must be positive and finite"
    );
}

/// The precision asked for, f32 where FP8 is off. Panics where the backend does not have it.
fn attention_precision<B: Fp8Products>(
    asked: AttentionPrecision,
    device: &B::Device,
) -> AttentionPrecision {
    let config = config::current().config;
    match asked {
        _ if !config.enabled => AttentionPrecision::High,
        AttentionPrecision::Bf16 if !B::supports_dtype(device, DType::BF16) => panic!(
            "attention in bf16: backend `{}` has no bf16; choose `high` or `fp8` for it",
            <B as Backend>::name(device)
        ),
        asked => asked,
    }
}

/// What multiplies the numbers of attention. Panics where FP8 is to run natively and cannot.
fn attention_target<B: Fp8Products>(precision: AttentionPrecision, device: &B::Device) -> Target {
    let execution = match (precision, config::current().config.execution) {
        (AttentionPrecision::High, _) => return Target::Emulation(None),
        // Nobody asks for bf16 natively.
        (AttentionPrecision::Bf16, Execution::Native) => Execution::Auto,
        (_, execution) => execution,
    };
    Target::of::<B>(device, Kind::plain(Of::Attention), execution, false)
        .unwrap_or_else(|error| panic!("{error}"))
}
