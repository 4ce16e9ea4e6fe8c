//! Kernels over the memory of Flex; attention one tile at a time.

use std::any::Any;

use burn_backend::{Bytes, DType, FloatDType, Shape, bf16, ops::FloatTensorOps};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_fp8_core::{Dropout, Fp8Format, MlpActivation, Norm, Pointwise, Softmax};
use burn_fp8_cpu::{
    self as cpu, Broadcast, Gradients, HeadNumbers, Heads, HeadsMut, Normalization,
};

use super::options::{AttentionGradients, AttentionOf, check};
use crate::engine::flex::memory::elements;
use crate::engine::flex::pool;
use crate::engine::{Codes, Fp8Engine, MatrixOf, Scales, Target};

/// Runs a kernel on tensors where they are those of Flex, whatever decorates it; else gives them back.
pub(super) fn run<Given: Any, Returned: Any, Taken: Any, Made: Any>(
    given: Given,
    kernel: impl FnOnce(Taken) -> Made,
) -> Result<Returned, Given> {
    let made = kernel(as_type::<Given, Taken>(given)?);
    Ok(as_type(made).unwrap_or_else(|_| unreachable!("made of the same tensors")))
}

/// A value whose type has two names.
fn as_type<From: Any, To: Any>(value: From) -> Result<To, From> {
    let mut value = Some(value);
    match (&mut value as &mut dyn Any).downcast_mut::<Option<To>>() {
        Some(same) => Ok(same.take().expect("it was just put there")),
        None => Err(value.expect("nobody took it")),
    }
}

/// The output where keys and values have a scale for each row: converted a tile at a time where their codes lie as their scales do.
pub(super) fn attend_to_codes(
    q: FlexTensor,
    kv: [MatrixOf<Flex>; 2],
    attention: &AttentionOf<Flex>,
) -> FlexTensor {
    let lie_so = |matrix: &MatrixOf<Flex>| match (&matrix.codes, &matrix.scales) {
        (Some(Codes::Bytes(codes)), Scales::Grid { scales, block: [1, columns], .. }) => {
            let (codes, scales) = (codes.layout(), scales.layout());
            let width = codes.shape()[3];
            let scaled = |x: usize| x.checked_mul(width);
            matrix.format == Fp8Format::E4M3
                && *columns >= width
                && codes.strides()[3] == 1
                && scaled(scales.start_offset()) == Some(codes.start_offset())
                && (0..3).all(|dim| {
                    let [code, scale] = [codes, scales].map(|layout| layout.strides()[dim]);
                    code >= 0 && scale.checked_mul(width as isize) == Some(code)
                })
        }
        _ => false,
    };
    if !kv.iter().all(lie_so) {
        let [k, v] = kv.map(Flex::fp8_dequantize);
        let [output, _] = attend([q, k, v], attention);
        return output;
    }
    let q = readable(q);
    let [k, v] = kv.each_ref().map(codes_of);
    let [output, _] = attend_heads([heads_of(&q), k, v], attention);
    output
}

/// Codes with their scales.
fn codes_of(matrix: &MatrixOf<Flex>) -> Heads<'_> {
    let (Some(Codes::Bytes(codes)), Scales::Grid { scales, .. }) = (&matrix.codes, &matrix.scales)
    else {
        unreachable!("checked")
    };
    let layout = codes.layout();
    let numbers = HeadNumbers::E4m3(
        &codes.bytes()[layout.start_offset()..],
        &scales.storage::<f32>()[scales.layout().start_offset()..],
    );
    let strides = [0, 1, 2].map(|dim| layout.strides()[dim] as usize);
    Heads::strided(numbers, layout.shape().dims(), strides)
}

/// The output, laid out as `[batch, length, heads, width]`, and the logarithms of sums.
pub(super) fn attend(qkv: [FlexTensor; 3], attention: &AttentionOf<Flex>) -> [FlexTensor; 2] {
    check(qkv.each_ref(), attention).unwrap_or_else(|error| panic!("{error}"));
    let qkv = qkv.map(|tensor| match tensor.dtype() {
        DType::F32 | DType::BF16 => readable(tensor),
        _ => readable(Flex::float_cast(tensor, FloatDType::F32)),
    });
    attend_heads(qkv.each_ref().map(heads_of), attention)
}

fn attend_heads(qkv: [Heads<'_>; 3], attention: &AttentionOf<Flex>) -> [FlexTensor; 2] {
    let [[batch, heads, queries, _], _, [.., value_width]] = qkv.map(|heads| heads.shape());
    let (output, rows) = ([batch, heads, queries, value_width], [batch, heads, queries, 1]);
    let rows = Layout::contiguous(Shape::new(rows));
    let (logarithms, output) = pool::tensor_and(rows, |logarithms: &mut [f32]| {
        pool::tensor(joined(output), |y: &mut [f32]| {
            with_options(attention, |options| {
                cpu::attention(qkv, options, HeadsMut::joined(y, output), logarithms);
            });
        })
    });
    [output, logarithms]
}

/// The gradients, laid out like the output; `given` are output, logarithms and the gradient of the output.
pub(super) fn attend_backward(
    qkv: [FlexTensor; 3],
    attention: &AttentionOf<Flex>,
    given: [FlexTensor; 3],
) -> AttentionGradients<FlexTensor> {
    let [q, k, v] = qkv.each_ref().map(|tensor| tensor.layout().shape().dims::<4>());
    let (of_v, (of_k, of_q)) = pool::tensor_and(joined(v), |of_v: &mut [f32]| {
        pool::tensor_and(joined(k), |of_k: &mut [f32]| {
            pool::tensor(joined(q), |of_q: &mut [f32]| {
                let gradients = Gradients {
                    q: HeadsMut::joined(of_q, q),
                    k: HeadsMut::joined(of_k, k),
                    v: HeadsMut::joined(of_v, v),
                };
                write_gradients(qkv, attention, given, gradients);
            })
        })
    });
    AttentionGradients { operands: [of_q, of_k, of_v], bias: None }
}

/// The same, side by side in one tensor.
pub(super) fn self_attend_backward(
    qkv: [FlexTensor; 3],
    attention: &AttentionOf<Flex>,
    given: [FlexTensor; 3],
) -> AttentionGradients<FlexTensor, 1> {
    let shapes = qkv.each_ref().map(|tensor| tensor.layout().shape().dims::<4>());
    let [batch, _, length, width] = shapes[0];
    let heads = shapes.iter().map(|[_, heads, ..]| heads).sum();
    let layout = Layout::contiguous(Shape::new([batch, length, heads, width]));
    let of_all = pool::tensor(layout, |of_all: &mut [f32]| {
        let [q, k, v] = HeadsMut::side_by_side(of_all, shapes);
        write_gradients(qkv, attention, given, Gradients { q, k, v });
    });
    AttentionGradients { operands: [of_all], bias: None }
}

fn write_gradients(
    qkv: [FlexTensor; 3],
    attention: &AttentionOf<Flex>,
    [output, logarithms, grad]: [FlexTensor; 3],
    gradients: Gradients<'_>,
) {
    let qkv = qkv.map(readable);
    let [output, grad] = [output, grad].map(readable);
    let logarithms = logarithms.to_contiguous();
    with_options(attention, |options| {
        cpu::attention_backward(
            qkv.each_ref().map(heads_of),
            options,
            [heads_of(&output), heads_of(&grad)],
            elements::<f32>(&logarithms, logarithms.layout()),
            gradients,
        );
    });
}

/// `[batch, heads, length, width]` in the memory of `[batch, length, heads, width]`: joining the heads copies nothing.
fn joined(shape @ [_, heads, length, width]: [usize; 4]) -> Layout {
    let strides = [heads * length * width, width, heads * width, 1];
    Layout::new(Shape::new(shape), strides.map(|stride| stride as isize).to_vec(), 0)
}

/// The tensor, its rows contiguous.
fn readable(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    let forward = layout.strides().iter().all(|stride| *stride >= 0);
    match forward && (layout.strides()[3] == 1 || layout.shape()[3] == 1) {
        true => tensor,
        false => tensor.to_contiguous(),
    }
}

fn heads_of(tensor: &FlexTensor) -> Heads<'_> {
    let layout = tensor.layout();
    let strides = [0, 1, 2].map(|dim| layout.strides()[dim] as usize);
    let start = layout.start_offset();
    let numbers = match tensor.dtype() {
        DType::BF16 => HeadNumbers::Bf16(&tensor.storage::<bf16>()[start..]),
        _ => HeadNumbers::F32(&tensor.storage::<f32>()[start..]),
    };
    Heads::strided(numbers, layout.shape().dims(), strides)
}

/// The same options over slices.
fn with_options(attention: &AttentionOf<Flex>, run: impl FnOnce(&cpu::Attention<'_>)) {
    let masks: Vec<_> = attention.masks.iter().map(FlexTensor::to_contiguous).collect();
    let masks: Vec<_> = masks
        .iter()
        .map(|mask| Broadcast::new(bytes(mask), mask.layout().shape().dims()))
        .collect();
    let bias = attention.bias.as_ref().map(FlexTensor::to_contiguous);
    let bias = bias
        .as_ref()
        .map(|bias| Broadcast::new(elements(bias, bias.layout()), bias.layout().shape().dims()));
    run(&cpu::Attention {
        scale: attention.scale,
        causal: attention.causal,
        softcap: attention.softcap,
        bias,
        masks: &masks,
        dropout: attention.dropout,
        precision: attention.precision,
        unit: match attention.target {
            Target::MatrixUnit => cpu::Unit::current(),
            Target::TensorCores | Target::Emulation(_) => cpu::Unit::Portable,
        },
    });
}

/// Bools are bytes.
fn bytes(mask: &FlexTensor) -> &[u8] {
    debug_assert!(matches!(mask.dtype(), DType::Bool(_)));
    let start = mask.layout().start_offset();
    &mask.bytes()[start..start + mask.layout().num_elements()]
}

/// The results of an operation on single elements.
pub(super) fn pointwise(operation: Pointwise, x: FlexTensor) -> FlexTensor {
    let x = x.to_contiguous();
    let layout = Layout::contiguous(x.layout().shape().clone());
    pool::tensor(layout, |y: &mut [f32]| {
        cpu::pointwise(operation, elements(&x, x.layout()), y);
    })
}

/// Its gradient.
pub(super) fn pointwise_backward(
    operation: Pointwise,
    x: Option<FlexTensor>,
    grad: FlexTensor,
) -> FlexTensor {
    let (x, grad) = (x.map(|x| x.to_contiguous()), grad.to_contiguous());
    let layout = Layout::contiguous(grad.layout().shape().clone());
    pool::tensor(layout, |y: &mut [f32]| {
        let x = x.as_ref().map_or(&[][..], |x| elements(x, x.layout()));
        cpu::pointwise_backward(operation, x, elements(&grad, grad.layout()), y);
    })
}

/// An activation of the first times the second.
pub(super) fn gated(activation: MlpActivation, operands: [FlexTensor; 2]) -> FlexTensor {
    let operands = operands.map(|tensor| tensor.to_contiguous());
    let layout = Layout::contiguous(operands[0].layout().shape().clone());
    pool::tensor(layout, |y: &mut [f32]| {
        let operands = operands.each_ref().map(|tensor| elements(tensor, tensor.layout()));
        cpu::gated(activation, operands, y);
    })
}

/// The gradients of both, given them and that of the results.
pub(super) fn gated_backward(activation: MlpActivation, given: [FlexTensor; 3]) -> [FlexTensor; 2] {
    let given = given.map(|tensor| tensor.to_contiguous());
    let layout = Layout::contiguous(given[0].layout().shape().clone());
    let (of_gate, of_up) = pool::tensor_and(layout.clone(), |of_gate: &mut [f32]| {
        pool::tensor(layout, |of_up: &mut [f32]| {
            let given = given.each_ref().map(|tensor| elements(tensor, tensor.layout()));
            cpu::gated_backward(activation, given, [of_gate, of_up]);
        })
    });
    [of_gate, of_up]
}

/// 1 for what is kept, 0 for the rest.
pub(super) fn kept(shape: Shape, dropout: Dropout) -> FlexTensor {
    let fill = |kept: &mut [f32]| cpu::dropout::keep_elements(dropout, kept);
    pool::tensor(Layout::contiguous(shape), fill)
}

/// Softmax of rows, or its logarithm.
pub(super) fn softmax(kind: Softmax, x: FlexTensor) -> FlexTensor {
    let x = x.to_contiguous();
    let layout = Layout::contiguous(x.layout().shape().clone());
    pool::tensor(layout, |y: &mut [f32]| {
        cpu::softmax(kind, width(&x), elements(&x, x.layout()), y);
    })
}

/// Its gradient, given the results.
pub(super) fn softmax_backward(kind: Softmax, y: FlexTensor, grad: FlexTensor) -> FlexTensor {
    let [y, grad] = [y, grad].map(|tensor| tensor.to_contiguous());
    let layout = Layout::contiguous(y.layout().shape().clone());
    pool::tensor(layout, |of_x: &mut [f32]| {
        let [y_of, grad] = [&y, &grad].map(|tensor| elements(tensor, tensor.layout()));
        cpu::softmax_backward(kind, width(&y), y_of, grad, of_x);
    })
}

/// Elements of a row.
fn width(tensor: &FlexTensor) -> usize {
    tensor.layout().shape().last().copied().unwrap_or_default()
}

/// Normalization of rows.
pub(super) fn normalize(
    norm: Norm,
    x: FlexTensor,
    gamma: FlexTensor,
    beta: Option<FlexTensor>,
    epsilon: f64,
) -> FlexTensor {
    let [x, gamma] = [x, gamma].map(|tensor| tensor.to_contiguous());
    let beta = beta.map(|beta| beta.to_contiguous());
    let norm = Normalization {
        norm,
        gamma: elements(&gamma, gamma.layout()),
        beta: beta.as_ref().map(|beta| elements(beta, beta.layout())),
        epsilon: epsilon as f32,
    };
    pool::tensor(Layout::contiguous(x.layout().shape().clone()), |y: &mut [f32]| {
        cpu::normalize(&norm, elements(&x, x.layout()), y);
    })
}

/// The gradients of input, gamma and beta.
pub(super) fn normalize_backward(
    norm: Norm,
    x: FlexTensor,
    gamma: FlexTensor,
    grad: FlexTensor,
    epsilon: f64,
) -> [FlexTensor; 3] {
    let [x, gamma, grad] = [x, gamma, grad].map(|tensor| tensor.to_contiguous());
    let norm = Normalization {
        norm,
        gamma: elements(&gamma, gamma.layout()),
        beta: None,
        epsilon: epsilon as f32,
    };
    let (rows, factors) = (x.layout().shape().clone(), gamma.layout().shape().clone());
    let [x, grad] = [&x, &grad].map(|tensor| elements(tensor, tensor.layout()));
    let mut of_factors = [(); 2].map(|()| vec![0.0; norm.gamma.len()]);
    let of_x = pool::tensor(Layout::contiguous(rows), |of_x: &mut [f32]| {
        let of_factors = of_factors.each_mut().map(Vec::as_mut_slice);
        cpu::normalize_backward(&norm, x, grad, of_x, of_factors);
    });
    let [of_gamma, of_beta] = of_factors.map(|of| {
        FlexTensor::new(Bytes::from_elems(of), Layout::contiguous(factors.clone()), DType::F32)
    });
    [of_x, of_gamma, of_beta]
}
