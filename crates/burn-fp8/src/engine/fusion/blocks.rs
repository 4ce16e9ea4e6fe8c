//! Tensors with a scale for each block, in a stream.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::Fp8Format;
use burn_fusion::{Fusion, FusionBackend};

use super::codes::Form;
use super::op::{register, single};
use crate::engine::backend::Fp8Engine;
use crate::engine::blocks::{BlockCodes, QuantizeBlocks};
use crate::engine::codes::CodesPrimitive;
use crate::engine::matrix::GemmOptions;
use crate::engine::portable;

type Tensor<B> = FloatTensor<Fusion<B>>;

/// Codes and scales, from the kernels of `B`.
pub(super) fn quantize<B: FusionBackend + Fp8Engine>(
    tensor: Tensor<B>,
    request: QuantizeBlocks,
) -> BlockCodes<Fusion<B>> {
    let QuantizeBlocks { block, format, .. } = request;
    let shape = tensor.shape();
    let of_scales = portable::blocks::Grid::new(&shape, block).of_scales(&shape);
    let words = Shape::new([shape.num_elements().div_ceil(4)]);
    let outputs = vec![(words, DType::I32), (of_scales, DType::F32)];
    let outputs = register("fp8_quantize_blocks", vec![tensor], outputs, move |ir, handles| {
        let tensor = handles.get_float_tensor::<B>(&ir.inputs[0]);
        let BlockCodes { codes, scales, .. } = B::fp8_quantize_blocks(tensor, request);
        let CodesPrimitive::Packed(words, ..) = codes else {
            unreachable!("kernels write packed codes");
        };
        handles.register_int_tensor::<B>(&ir.outputs[0].id, words);
        handles.register_float_tensor::<B>(&ir.outputs[1].id, scales);
    });
    let mut outputs = outputs.into_iter();
    let mut next = || outputs.next().expect("as many as were registered");
    let codes = CodesPrimitive::Packed(next(), shape, format);
    BlockCodes { codes, scales: next(), block, format }
}

/// The numbers that packed codes and their scales stand for.
pub(super) fn dequantize<B: FusionBackend + Fp8Engine>(
    words_and_scales: [Tensor<B>; 2],
    shape: Shape,
    block: [usize; 2],
    format: Fp8Format,
) -> Tensor<B> {
    let outputs = vec![(shape.clone(), DType::F32)];
    let inputs = words_and_scales.into();
    single(register("fp8_dequantize_blocks", inputs, outputs, move |ir, handles| {
        let words = handles.get_int_tensor::<B>(&ir.inputs[0]);
        let scales = handles.get_float_tensor::<B>(&ir.inputs[1]);
        let codes = CodesPrimitive::Packed(words, shape.clone(), format);
        let values = B::fp8_dequantize_blocks(BlockCodes { codes, scales, block, format });
        handles.register_float_tensor::<B>(&ir.outputs[0].id, values);
    }))
}

/// A product on tensor cores.
pub(super) fn gemm<B: FusionBackend + Fp8Engine>(
    lhs: BlockCodes<Fusion<B>>,
    rhs: BlockCodes<Fusion<B>>,
    options: GemmOptions,
) -> Tensor<B> {
    let [m, n] = [&lhs, &rhs].map(|operand| operand.codes.shape()[0]);
    let outputs = vec![(Shape::new([m, n]), options.dtype)];
    let options = GemmOptions { otherwise: options.otherwise.in_stream(), ..options };
    let mut inputs = vec![];
    let operands = [lhs, rhs].map(|BlockCodes { codes, scales, block, format }| {
        let (form, codes) = Form::split::<B>(codes);
        inputs.extend([codes, scales]);
        (form, block, format)
    });
    single(register("fp8_gemm_of_blocks", inputs, outputs, move |ir, handles| {
        let mut inputs = ir.inputs.iter();
        let mut next = || inputs.next().expect("as many as were registered");
        let [lhs, rhs] = operands.clone().map(|(form, block, format)| {
            let codes = form.join::<B>(next(), handles);
            let scales = handles.get_float_tensor::<B>(next());
            BlockCodes { codes, scales, block, format }
        });
        let output = B::fp8_gemm_of_blocks(lhs, rhs, options.clone());
        handles.register_float_tensor::<B>(&ir.outputs[0].id, output);
    }))
}
