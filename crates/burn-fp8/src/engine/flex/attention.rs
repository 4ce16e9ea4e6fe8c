//! Attention over the memory of Flex, one tile at a time.

use burn_backend::{DType, Shape};
use burn_flex::{Flex, FlexTensor, Layout};
use burn_fp8_core::AttentionShape;
use burn_fp8_cpu::{self as cpu, Broadcast, Gradients, Heads, HeadsMut};

use super::memory::elements;
use super::pool;
use crate::engine::attention::{AttentionGradients, AttentionOf, check};

/// The output, laid out as `[batch, length, heads, width]`, and the logarithms of sums.
pub(super) fn attend(qkv: [FlexTensor; 3], attention: &AttentionOf<Flex>) -> [FlexTensor; 2] {
    let shape = check(qkv.each_ref(), attention).unwrap_or_else(|error| panic!("{error}"));
    let qkv = qkv.map(readable);
    let AttentionShape { batch, heads, queries, .. } = shape;
    let rows = Layout::contiguous(Shape::new([batch, heads, queries, 1]));
    let (logarithms, output) = pool::tensor_and(rows, |logarithms: &mut [f32]| {
        let output = shape.output();
        pool::tensor(joined(output), |y: &mut [f32]| {
            with_options(attention, |options| {
                let output = HeadsMut::joined(y, output);
                cpu::attention(qkv.each_ref().map(heads_of), options, output, logarithms);
            });
        })
    });
    [output, logarithms]
}

/// The gradients, laid out like the output; `given` are output, logarithms and the gradient of the output.
pub(super) fn attend_backward(
    qkv: [FlexTensor; 3],
    attention: &AttentionOf<Flex>,
    [output, logarithms, grad]: [FlexTensor; 3],
) -> AttentionGradients<FlexTensor> {
    let [q, k, v] = qkv.each_ref().map(|tensor| tensor.layout().shape().dims::<4>());
    let qkv = qkv.map(readable);
    let [output, grad] = [output, grad].map(readable);
    let logarithms = logarithms.to_contiguous();
    let (of_v, (of_k, of_q)) = pool::tensor_and(joined(v), |of_v: &mut [f32]| {
        pool::tensor_and(joined(k), |of_k: &mut [f32]| {
            pool::tensor(joined(q), |of_q: &mut [f32]| {
                with_options(attention, |options| {
                    cpu::attention_backward(
                        qkv.each_ref().map(heads_of),
                        options,
                        [heads_of(&output), heads_of(&grad)],
                        elements::<f32>(&logarithms, logarithms.layout()),
                        Gradients {
                            q: HeadsMut::joined(of_q, q),
                            k: HeadsMut::joined(of_k, k),
                            v: HeadsMut::joined(of_v, v),
                        },
                    );
                });
            })
        })
    });
    AttentionGradients { operands: [of_q, of_k, of_v], bias: None }
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
    let values = &tensor.storage::<f32>()[layout.start_offset()..];
    Heads::strided(values, layout.shape().dims(), strides)
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
    });
}

/// Bools are bytes.
fn bytes(mask: &FlexTensor) -> &[u8] {
    debug_assert!(matches!(mask.dtype(), DType::Bool(_)));
    let start = mask.layout().start_offset();
    &mask.bytes()[start..start + mask.layout().num_elements()]
}
