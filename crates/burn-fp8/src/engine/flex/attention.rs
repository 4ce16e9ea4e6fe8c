//! Attention over the memory of Flex, one tile at a time.

use burn_backend::{DType, FloatDType, Shape, bf16, ops::FloatTensorOps};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{self as cpu, Broadcast, Gradients, HeadNumbers, Heads, HeadsMut};

use super::memory::elements;
use super::pool;
use crate::engine::attention::{AttentionGradients, AttentionOf, check};
use crate::engine::backend::Fp8Engine;
use crate::engine::codes::Codes;
use crate::engine::matrix::{MatrixOf, Scales};
use crate::engine::product::Target;

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
