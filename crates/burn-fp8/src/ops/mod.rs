//! Quantization with delayed scaling, tensor by tensor: the operations of Flax's `fp8_ops`, by their names and to the bit.
//!
//! A stored scale is the dequantization multiplier, `x ≈ code × scale`. Its state is two f32 tensors: `scale` with one element,
//! 1 at first, and `amax_history` with one entry for each step remembered, zeros at first. Index 0 of a history is the
//! newest entry, index 1 the oldest.
//!
//! [`in_qdq`] and [`out_qdq`] quantize with a scale from the history *before* this step, and hand the new state out as the
//! "gradients" of `scale` and `amax_history`: overwrite the state with them instead of stepping. Uses of one state in a graph
//! combine by elementwise maximum, in whatever order the backward pass comes to them. A state must be a leaf of the graph: a
//! tensor that requires a gradient, used as it is, and used for nothing else: what arithmetic on it (a penalty over all parameters, say)
//! adds to its gradient cannot be told from a new value. The layers of [`nn`](crate::nn) notice that.
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::tensor::Tensor;
//! use burn_fp8::Fp8Format;
//! use burn_fp8::ops::{QdqOptions, in_qdq};
//!
//! type B = Autodiff<Flex>;
//! let device = Default::default();
//! let scale = Tensor::<B, 1>::ones([1], &device).require_grad();
//! let history = Tensor::<B, 1>::zeros([4], &device).require_grad();
//! let options = QdqOptions::new(Fp8Format::E4M3);
//!
//! // Two uses, of 2 and of 3.
//! let x = Tensor::<B, 1>::from_floats([2.0], &device);
//! let y = Tensor::<B, 1>::from_floats([3.0], &device);
//! let x = in_qdq(x, scale.clone(), history.clone(), options);
//! let y = in_qdq(y, scale.clone(), history.clone(), options);
//! let grads = (x + y).backward();
//!
//! // The new history has the larger one; the scale was chosen from the empty history.
//! let history = history.grad(&grads).unwrap().into_data();
//! assert_eq!(history.to_vec::<f32>().unwrap(), [3.0, 0.0, 0.0, 0.0]);
//! let scale = scale.grad(&grads).unwrap().into_data();
//! assert_eq!(scale.to_vec::<f32>().unwrap(), [1.0]);
//! ```
//!
//! Source: `flax.linen.fp8_ops` of Flax 0.12.8. Unlike XLA on a CPU, nothing flushes subnormal numbers to zero.

mod attention;
mod check_row;
mod dot;
pub(crate) mod flax;
mod forward;
mod graph;
mod linear;
mod options;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor, TensorPrimitive};
use burn_fp8_core::{Fp8Format, Recipe};

pub use crate::tensor::assign_rows;
pub use attention::attention_to_fp8;
pub(crate) use check_row::is_intact;
pub(crate) use graph::dot;
pub use linear::linear_mixed;
pub use options::{DotMode, DotOptions, QdqOptions};

use crate::engine::{Fp8Engine, Graph, Matrix, Scalar, Scales, Wanted};
use crate::host::{constant as without_graph, primitive};
use crate::tensor::Fp8Tensor;

/// The codes of `x / scale`: divided in the promoted type of `x` and `compute_dtype`, clipped to ±max, rounded to nearest even.
///
/// `x` has any shape, f32, f16 or bf16; f64 is taken as f32. `scale` `[1]` is f32 and rounded to `compute_dtype` first. Infinities
/// become ±max, NaN stays NaN; a scale that is 0, infinite or NaN divides as IEEE has it. The result is a constant of the graph: the codes, with the
/// scale 1.
///
/// # Panics
/// Where `x` is empty, or `scale` is not f32.
///
/// Source: `fp8_ops.quantize`.
pub fn quantize<B: Fp8Engine, const D: usize>(
    x: Tensor<B, D>,
    format: Fp8Format,
    scale: Tensor<B, 1>,
    compute_dtype: FloatDType,
) -> Fp8Tensor<B, D> {
    require_elements(&x);
    require_f32(&scale, "scale");
    let (x, scale) = (constant(x), constant(scale));
    let quantized = flax::quantize::<B>(&x, scale, format, compute_dtype, Wanted::Codes);
    Fp8Tensor::new(Matrix { scales: Scales::One(Scalar::Host(1.0)), ..quantized })
}

/// The numbers that codes stand for, times `scale` `[1]` rounded to `dtype`: a tensor of type `dtype`, rounded once.
///
/// A constant of the graph. What scale the codes have of their own does not count.
///
/// # Panics
/// Where `scale` is not f32.
///
/// Source: `fp8_ops.dequantize`.
pub fn dequantize<B: Fp8Engine, const D: usize>(
    codes: &Fp8Tensor<B, D>,
    scale: Tensor<B, 1>,
    dtype: FloatDType,
) -> Tensor<B, D> {
    require_f32(&scale, "scale");
    let values = constant(codes.values());
    float(flax::dequantize::<B>(values, constant(scale), dtype.into()))
}

/// [`quantize`] and [`dequantize`], to the type of `x`.
///
/// The gradient passes straight through to `x`; `scale` `[1]` receives none.
///
/// # Panics
/// Where `x` is empty, or `scale` is not f32.
///
/// Source: `fp8_ops.qdq`.
pub fn quantize_dequantize<B: Graph, const D: usize>(
    x: Tensor<B, D>,
    format: Fp8Format,
    scale: Tensor<B, 1>,
    compute_dtype: FloatDType,
) -> Tensor<B, D> {
    require_elements(&x);
    require_f32(&scale, "scale");
    let x = x.into_primitive().tensor();
    float(graph::quantize_dequantize::<B>(x, constant(scale), format, compute_dtype))
}

/// The scale for an amax, elementwise: `1 / ((max / amax) / 2^margin)`.
///
/// Where `amax` is 0 or not finite the old `scale` is kept, as `1 / (1 / scale)`. Both tensors are f32 and of one shape, and so is the
/// result, a constant of the graph. An amax so small that `max / amax` overflows gives scale 0.
///
/// # Panics
/// Where the shapes differ, a tensor is not f32, or the margin is outside -64..=64.
///
/// Source: `fp8_ops.compute_scale`, after TransformerEngine's `update_fp8_metas`.
pub fn compute_scale<B: Fp8Engine, const D: usize>(
    amax: Tensor<B, D>,
    scale: Tensor<B, D>,
    format: Fp8Format,
    margin: i32,
) -> Tensor<B, D> {
    require_f32(&amax, "amax");
    require_f32(&scale, "scale");
    require_margin(margin);
    let (amax, scale) = (float(constant(amax)), float(constant(scale)));
    flax::compute_scale(amax, scale, format, margin)
}

/// The history `[H]` after a step: rotated by one to the left, then index 0 overwritten by the largest magnitude of `x`.
///
/// NaN in `x` makes that NaN, else an infinity makes it infinite; an empty `x` has amax 0. A constant of the graph.
///
/// # Panics
/// Where `amax_history` is empty or not f32.
///
/// Source: `fp8_ops.compute_amax_history`.
pub fn compute_amax_history<B: Fp8Engine, const D: usize>(
    x: Tensor<B, D>,
    amax_history: Tensor<B, 1>,
) -> Tensor<B, 1> {
    require_f32(&amax_history, "amax_history");
    flax::push(B::fp8_amax(constant(x)), float(constant(amax_history)))
}

/// Quantizes and dequantizes `x`, an operand of a product, with a scale from its history.
///
/// Backward: the cotangent passes through to `x`. `scale` `[1]` and `amax_history` `[H]` receive their new values as gradients, the
/// elementwise maximum over all uses in the graph, NaN if any is NaN; a use that the loss does not depend on leaves no trace.
/// Untracked state works and receives nothing.
///
/// Amaxes that are not finite keep the scale as it is until they have left the history.
///
/// # Panics
/// Where `x` is empty, the margin is outside -64..=64, the state is not f32, `scale` has not one element, `amax_history` has none, or the state is tracked but no leaf
/// of the graph: its "gradient" would flow on as if it were one.
///
/// Source: `fp8_ops.in_qdq`.
pub fn in_qdq<B: Graph, const D: usize>(
    x: Tensor<B, D>,
    scale: Tensor<B, 1>,
    amax_history: Tensor<B, 1>,
    options: QdqOptions,
) -> Tensor<B, D> {
    require_elements(&x);
    require_margin(options.margin);
    let state = state(scale, amax_history);
    float(graph::in_qdq::<B>(x.into_primitive().tensor(), state, options))
}

/// The identity; its backward pass quantizes and dequantizes the cotangent with a scale from its history.
///
/// Backward: `x` receives the quantized cotangent; `scale` `[1]` and `amax_history` `[H]` receive their new values as gradients, by
/// the rules of [`in_qdq`].
///
/// # Panics
/// As [`in_qdq`].
///
/// Source: `fp8_ops.out_qdq`.
pub fn out_qdq<B: Graph, const D: usize>(
    x: Tensor<B, D>,
    scale: Tensor<B, 1>,
    amax_history: Tensor<B, 1>,
    options: QdqOptions,
) -> Tensor<B, D> {
    require_elements(&x);
    require_margin(options.margin);
    let state = state(scale, amax_history);
    float(graph::out_qdq::<B>(x.into_primitive().tensor(), state, options))
}

fn state<B: Backend>(scale: Tensor<B, 1>, amax_history: Tensor<B, 1>) -> [FloatTensor<B>; 2] {
    require_f32(&scale, "scale");
    require_f32(&amax_history, "amax_history");
    let ([elements], [steps]) = (scale.dims(), amax_history.dims());
    assert!(
        elements == 1 && steps > 0,
        "scale has shape [{elements}] and amax_history [{steps}]; they must be [1] and at least [1]"
    );
    [scale, amax_history].map(|tensor| tensor.into_primitive().tensor())
}

fn require_elements<B: Backend, const D: usize>(x: &Tensor<B, D>) {
    let shape = x.shape();
    assert!(shape.num_elements() > 0, "x has shape {shape:?}: there is nothing to quantize");
}

fn require_margin(margin: i32) {
    if let Err(error) = Recipe::current().with_margin(margin).validate() {
        panic!("{error}");
    }
}

fn require_f32<B: Backend, const D: usize>(tensor: &Tensor<B, D>, name: &str) {
    let dtype = tensor.dtype();
    assert!(dtype == DType::F32, "{name} is {dtype:?}; scales and amaxes are f32: cast it first");
}

fn float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

/// The tensor, cut off from the graph.
fn constant<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    primitive(without_graph(tensor))
}
