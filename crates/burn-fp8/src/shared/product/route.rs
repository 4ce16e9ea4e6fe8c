//! The products that a user's code asks for: each asks the configuration, then runs in FP8 or as it is.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;

use burn_backend::{Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AttentionPrecision, Gemm, GemmRole, ProductKind, Saved};

use super::frozen_layer::{self, InputNumbers};
use super::plan::{Product, fitting_gemm, fitting_linear_gemm, linear_gemm, misfit, product_shape};
use super::{Held, Known, gemms, run};
use crate::config;
use crate::config::scope::{innermost, within};
use crate::engine::tensor::{add_bias, join, reshape};
use crate::engine::{Graph, Leaf, Settings, Target, Watched, nothing};
use crate::report::{
    HighPrecision, Implementation, Pending, PendingRan, note_saved_whole, record,
    record_high_precision,
};
use crate::weights;

pub(crate) fn matmul<B: Graph>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let shapes = [lhs.shape(), rhs.shape()];
    let mut gemm = fitting_gemm(&shapes);
    let kind = innermost(&PARTS).unwrap_or(ProductKind::Matmul);
    gemm.plain_operand &= kind != ProductKind::Attention;
    match plan::<B>(kind, GemmRole::Output, gemm, [&lhs, &rhs]) {
        Some(product) => run::multiply::<B>(lhs, rhs, None, product),
        None if is_empty([&lhs, &rhs]) => nothing::<B, 2>([&lhs, &rhs], product_shape(&shapes)),
        None if gemm.batch == 1 && gemm.plain_operand && joins::<B>(&lhs) => {
            rejoined::<B>(lhs, |lhs| B::float_matmul(lhs, join::<B>(rhs)))
        }
        None => B::float_matmul(lhs, rhs),
    }
}

pub(crate) fn linear<B: Graph>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    if let Some((weight, input)) = codes_of::<B>(&x, &weight) {
        return frozen_layer::by_quantized::<B>(ProductKind::Linear, (x, input), weight, bias);
    }
    let gemm = fitting_linear_gemm(&[x.shape(), weight.shape()]);
    match plan::<B>(ProductKind::Linear, GemmRole::Output, gemm, [&x, &weight]) {
        Some(product) => run::multiply::<B>(x, weight, bias, product),
        None if is_empty([&x, &weight]) => {
            let mut shape = x.shape();
            let last = shape.num_dims() - 1;
            shape[last] = gemm.n;
            add_bias::<B>(nothing::<B, 2>([&x, &weight], shape), bias)
        }
        None if joins::<B>(&x) => rejoined::<B>(x, |x| B::linear(x, weight, bias)),
        None => B::linear(x, weight, bias),
    }
}

pub(crate) fn linear_x_backward<B: Graph>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
) -> FloatTensor<B> {
    let shapes = [output_grad.shape(), weight.shape()];
    let transposed = shapes[1].iter().rev().copied().collect();
    let gemm = linear_gemm(&shapes[0], &transposed)
        .unwrap_or_else(|| misfit("output gradient and weight", &shapes, "[…, N] and [K, N]"));
    let forward = gemm.for_role(GemmRole::GradInput);
    match plan::<B>(ProductKind::Linear, GemmRole::GradInput, forward, [&output_grad, &weight]) {
        Some(product) if !B::HAS_GRAPH => {
            gemms::linear_x_backward::<B>(weight, output_grad, &product)
        }
        // Burn's Autodiff has no second derivative of a linear layer; the panic is Burn's own.
        Some(_) => B::linear_x_backward(weight, output_grad),
        None if is_empty([&output_grad, &weight]) => {
            let mut shape = output_grad.shape();
            let last = shape.num_dims() - 1;
            shape[last] = shapes[1][0];
            nothing::<B, 2>([&output_grad, &weight], shape)
        }
        None if joins::<B>(&output_grad) => {
            rejoined::<B>(output_grad, |grad| B::linear_x_backward(weight, grad))
        }
        None => B::linear_x_backward(weight, output_grad),
    }
}

pub(crate) fn linear_weight_backward<B: Graph>(
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
        Some(product) if !B::HAS_GRAPH => {
            gemms::linear_weight_backward::<B>(x, output_grad, &product)
        }
        Some(_) => B::linear_weight_backward(x, output_grad),
        None if is_empty([&x, &output_grad]) => {
            let sides = [shapes[0][last], shapes[1][last]];
            nothing::<B, 2>([&x, &output_grad], Shape::new(sides))
        }
        None if joins::<B>(&x) => B::linear_weight_backward(join::<B>(x), join::<B>(output_grad)),
        None => B::linear_weight_backward(x, output_grad),
    }
}

/// Whether there is nothing to multiply. Backends may not take such operands: Flex 0.21 reads foreign memory where a batch of none meets one matrix. So this
/// holds with FP8 off, too.
pub(crate) fn is_empty(operands: [&impl TensorMetadata; 2]) -> bool {
    operands.iter().any(|operand| operand.shape().num_elements() == 0)
}

/// Whether batch and rows of an operand are to become those of one matrix, in high precision.
fn joins<B: Graph>(operand: &FloatTensor<B>) -> bool {
    let (shape, config) = (operand.shape(), config::current().config);
    (config.join || config.fuses::<B>()) && shape.num_dims() > 2 && shape.num_elements() > 0
}

/// Multiplies `[…, K]` as one matrix: to `[…, N]`.
fn rejoined<B: Graph>(
    operand: FloatTensor<B>,
    multiply: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let mut shape = operand.shape();
    let output = multiply(join::<B>(operand));
    let last = shape.num_dims() - 1;
    shape[last] = output.shape()[1];
    reshape::<B>(output, shape)
}

thread_local! {
    /// What plain products are part of, on this thread.
    static PARTS: RefCell<Vec<ProductKind>> = const { RefCell::new(Vec::new()) };
    /// The tensors that Burn has dequantized on this thread since the last product.
    static DEQUANTIZED: RefCell<VecDeque<Dequantized>> = const { RefCell::new(VecDeque::new()) };
}

/// A tensor that Burn has dequantized.
struct Dequantized {
    shape: Shape,
    /// Its memory, where that can be told.
    memory: Option<Leaf>,
    /// What it was, a `Known<B>`, where that was FP8.
    codes: Option<Box<dyn Any>>,
}

impl Dequantized {
    /// Whether an operand is this tensor. Burn drops the numbers after the product: a tensor that somebody keeps, a user has dequantized.
    fn is<B: Graph>(&self, operand: &FloatTensor<B>) -> bool {
        let memory = self.memory.as_ref().zip(B::fp8_memory(operand));
        let is_its = |(of_it, own): (&Leaf, Leaf)| of_it.name == own.name && own.is_single();
        operand.shape() == self.shape && memory.is_none_or(is_its)
    }
}

/// Notes that Burn's numbers of a quantized tensor come next: in `linear`, those of a quantized weight.
pub(crate) fn note_dequantized<B: Graph>(
    shape: Shape,
    memory: Option<Leaf>,
    codes: Option<Known<B>>,
) {
    // Input, weight and bias.
    const OPERANDS: usize = 3;
    DEQUANTIZED.with_borrow_mut(|shapes| {
        shapes.truncate(OPERANDS - 1);
        let codes = codes.map(|codes| Box::new(codes) as Box<dyn Any>);
        shapes.push_front(Dequantized { shape, memory, codes });
    });
}

/// The codes of a weight that Burn has dequantized for this product, where its memory tells it for sure: neither a view of it in another order, nor one whose
/// gradient is asked for. And whether the input was quantized, too.
fn codes_of<B: Graph>(
    x: &FloatTensor<B>,
    weight: &FloatTensor<B>,
) -> Option<(Held<B>, InputNumbers)> {
    let is_row_by_row = B::fp8_memory(weight).is_some_and(|memory| memory.is_row_by_row);
    if B::is_tracked(weight) || !is_row_by_row {
        return None;
    }
    let found = DEQUANTIZED.with_borrow(|dequantized| {
        let it = dequantized.iter().find(|it| it.memory.is_some() && it.is::<B>(weight))?;
        let codes = it.codes.as_ref()?.downcast_ref::<Known<B>>()?.get()?;
        let input = match dequantized.iter().any(|it| it.is::<B>(x)) {
            true => InputNumbers::Quantized,
            false => InputNumbers::AsTheyAre,
        };
        Some((codes, input))
    })?;
    DEQUANTIZED.take();
    Some(found)
}

/// Whether Burn 0.21 has dequantized an operand for this product: FP8 would round it a second time. Burn does so for linear layers; plain products of
/// quantized tensors do not come here.
fn is_quantized<B: Graph>(kind: ProductKind, operands: [&FloatTensor<B>; 2]) -> bool {
    let dequantized = DEQUANTIZED.take();
    let any = |operand: &&FloatTensor<B>| dequantized.iter().any(|it| it.is::<B>(operand));
    kind == ProductKind::Linear && operands.iter().any(any)
}

/// Runs plain products as a part of something else, on this thread.
pub(crate) fn as_part_of<R>(kind: ProductKind, run: impl FnOnce() -> R) -> R {
    within(&PARTS, kind, run).0
}

/// The decision about a product. One that is tracked and not in FP8 is counted all the same, so that those after it keep their sites.
fn plan<B: Graph>(
    kind: ProductKind,
    role: GemmRole,
    forward: Gemm,
    operands: [&FloatTensor<B>; 2],
) -> Option<Product> {
    let is_tracked = operands.into_iter().any(B::is_tracked);
    weights::go_on();
    let config = config::current().config;
    if config.enabled && config.saved == Saved::Fp8 && !(B::FP8_ON_HOST && config.fused) {
        note_saved_whole();
    }
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
        Product::skip_site(forward, run::weight::<B>(kind, operands[1]));
    }
    product
}

/// Burn's id of the right operand, where it is a parameter whose name has been asked for.
fn parameter<B: Graph>(kind: ProductKind, rhs: &FloatTensor<B>) -> Option<u64> {
    let of_graph = run::weight::<B>(kind, rhs).and_then(|leaf| weights::parameter(&leaf));
    of_graph.or_else(|| weights::parameter(&B::fp8_memory(rhs)?))
}

/// What the configuration says of operations beside products; attention is told to the trace.
pub(crate) fn settings() -> Settings {
    let config = config::current().config;
    let saved = if config.enabled { config.saved } else { Saved::Whole };
    Settings { is_off: !config.enabled, manner: config.manner(), saved, watch: Some(told) }
}

/// Tells the trace of a product that is part of attention.
fn told(told: &Watched<'_>) {
    record(|| Pending {
        kind: ProductKind::Attention,
        role: told.role,
        gemm: told.gemm,
        operands: None,
        site: None,
        ran: PendingRan::Known(match (told.precision, told.target) {
            (AttentionPrecision::Fp8, Target::Emulation(Some(fallback))) => {
                Implementation::Fallback(fallback.clone())
            }
            (AttentionPrecision::Fp8, _) => {
                told.unit.map_or(Implementation::FakeQuantized, Implementation::MatrixUnit)
            }
            (other, _) => Implementation::HighPrecision(HighPrecision::Attention(other)),
        }),
    });
}
