//! CubeCL backends under Burn's Fusion, as they are by default: each operation below is one node of the stream, which runs what
//! the backend itself does. Nothing waits for the device.

mod blocks;
mod codes;
mod op;
mod rule;
mod scaled;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, PADDING};
use burn_fusion::{Fusion, FusionBackend};

use super::backend::{self, Fp8Engine, Untracked};
use super::blocks::{BlockCodes, QuantizeBlocks};
use super::capability::{Capability, Fallback};
use super::codes::CodesPrimitive;
use super::matrix::{GemmOperand, GemmOptions, QuantizeMatrix, QuantizedMatrix};
use super::padding::pad_k;
use super::portable;
use super::problem::NativeProblem;
use super::quantize::{Quantize, Quantized, ScaleRule};
use super::scalar::Scalar;
use super::scaled::{ScaledOperand, ScaledProduct, ScaledRequest};
use super::tensor::matrix_shape;
use op::{one, register, single};
use rule::{Number, Rule};

impl<B: FusionBackend + Untracked> Untracked for Fusion<B> {}

impl<B: FusionBackend + Fp8Engine> Fp8Engine for Fusion<B> {
    const FP8_KERNELS: bool = B::FP8_KERNELS;

    fn fp8_capability(device: &Self::Device) -> Capability {
        B::fp8_capability(device)
    }

    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        B::fp8_check_native(device, problem)
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        if !B::FP8_KERNELS {
            return portable::quantize::<Self>(tensor, request);
        }
        let Quantize { format, scale, save } = request;
        let shape = tensor.shape();
        let (rule, given) = Rule::split(&scale);
        let measured = !matches!(scale, ScaleRule::Given(..));
        let mut outputs = vec![(shape.clone(), DType::F32)];
        if measured {
            outputs.extend([one(), one()]);
        }
        if save {
            outputs.push((Shape::new([shape.num_elements().div_ceil(4)]), DType::I32));
        }
        let inputs = [tensor].into_iter().chain(given).collect();
        let outputs = register("fp8_quantize", inputs, outputs, move |ir, handles| {
            let mut inputs = ir.inputs.iter();
            let tensor = handles.get_float_tensor::<B>(inputs.next().expect("the tensor"));
            let scale = rule.join::<B>(inputs.next().map(|ir| handles.get_float_tensor::<B>(ir)));
            let quantized = B::fp8_quantize(tensor, Quantize { format, scale, save });
            let mut outputs = ir.outputs.iter().map(|ir| ir.id);
            let mut next = || outputs.next().expect("as many as were registered");
            handles.register_float_tensor::<B>(&next(), quantized.values);
            if let Some(amax) = quantized.amax {
                handles.register_float_tensor::<B>(&next(), on_device::<B>(quantized.scale));
                handles.register_float_tensor::<B>(&next(), on_device::<B>(amax));
            }
            if let Some(codes) = quantized.codes {
                let CodesPrimitive::Packed(words, ..) = codes else {
                    unreachable!("kernels write packed codes");
                };
                handles.register_int_tensor::<B>(&next(), words);
            }
        });
        let mut outputs = outputs.into_iter();
        let mut next = || outputs.next().expect("as many as were registered");
        let values = next();
        let (scale, amax) = match scale {
            ScaleRule::Given(scale, _) => (scale, None),
            _ => (Scalar::Device(next()), Some(Scalar::Device(next()))),
        };
        let codes = save.then(|| CodesPrimitive::Packed(next(), shape, format));
        Quantized { values, codes, scale, amax, format }
    }

    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        if !B::FP8_KERNELS {
            let quantized =
                portable::quantize::<Self>(tensor, Quantize { format, scale, save: true });
            return (quantized.codes.expect("asked for"), quantized.scale);
        }
        let shape = tensor.shape();
        let (rule, given) = Rule::split(&scale);
        let mut outputs = vec![(Shape::new([shape.num_elements().div_ceil(4)]), DType::I32)];
        let measured = !matches!(scale, ScaleRule::Given(..));
        outputs.extend(measured.then(one));
        let inputs = [tensor].into_iter().chain(given).collect();
        let outputs = register("fp8_quantize_codes", inputs, outputs, move |ir, handles| {
            let mut inputs = ir.inputs.iter();
            let tensor = handles.get_float_tensor::<B>(inputs.next().expect("the tensor"));
            let scale = rule.join::<B>(inputs.next().map(|ir| handles.get_float_tensor::<B>(ir)));
            let (codes, scale) = B::fp8_quantize_codes(tensor, format, scale);
            let CodesPrimitive::Packed(words, ..) = codes else {
                unreachable!("kernels write packed codes");
            };
            handles.register_int_tensor::<B>(&ir.outputs[0].id, words);
            if measured {
                handles.register_float_tensor::<B>(&ir.outputs[1].id, on_device::<B>(scale));
            }
        });
        let mut outputs = outputs.into_iter();
        let words = outputs.next().expect("the codes");
        let scale = match scale {
            ScaleRule::Given(scale, _) => scale,
            _ => Scalar::Device(outputs.next().expect("the scale")),
        };
        (CodesPrimitive::Packed(words, shape, format), scale)
    }

    fn fp8_values(codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        match codes {
            CodesPrimitive::Packed(words, shape, format) if B::FP8_KERNELS => {
                let outputs = vec![(shape.clone(), DType::F32)];
                single(register("fp8_values", vec![words], outputs, move |ir, handles| {
                    let words = handles.get_int_tensor::<B>(&ir.inputs[0]);
                    let values =
                        B::fp8_values(CodesPrimitive::Packed(words, shape.clone(), format));
                    handles.register_float_tensor::<B>(&ir.outputs[0].id, values);
                }))
            }
            codes => portable::values::<Self>(codes),
        }
    }

    fn fp8_quantize_blocks(tensor: FloatTensor<Self>, request: QuantizeBlocks) -> BlockCodes<Self> {
        match B::FP8_KERNELS {
            true => blocks::quantize::<B>(tensor, request),
            false => backend::quantize_blocks::<Self>(tensor, request),
        }
    }

    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FloatTensor<Self> {
        match codes {
            BlockCodes {
                codes: CodesPrimitive::Packed(words, shape, format),
                scales,
                block,
                ..
            } if B::FP8_KERNELS => blocks::dequantize::<B>([words, scales], shape, block, format),
            codes => backend::dequantize_blocks::<Self>(codes),
        }
    }

    fn fp8_quantize_matrix(
        tensor: FloatTensor<Self>,
        request: QuantizeMatrix<Self>,
    ) -> QuantizedMatrix<Self> {
        let QuantizeMatrix { format, scale, layouts } = request;
        let shape = matrix_shape(&tensor);
        let [rows, columns] = shape.map(|size| size.next_multiple_of(PADDING));
        let (rule, given) = Rule::split(&scale);
        let measured = !matches!(scale, ScaleRule::Given(..));
        let words = |rows, columns| (Shape::new([rows, columns / 4]), DType::I32);
        let mut outputs = vec![];
        if measured {
            outputs.extend([one(), one()]);
        }
        if layouts.rows() {
            outputs.push(words(rows, columns));
        }
        if layouts.transposed() {
            outputs.push(words(columns, rows));
        }
        let inputs = [tensor].into_iter().chain(given).collect();
        let outputs = register("fp8_quantize_matrix", inputs, outputs, move |ir, handles| {
            let mut inputs = ir.inputs.iter();
            let tensor = handles.get_float_tensor::<B>(inputs.next().expect("the tensor"));
            let scale = rule.join::<B>(inputs.next().map(|ir| handles.get_float_tensor::<B>(ir)));
            let matrix = B::fp8_quantize_matrix(tensor, QuantizeMatrix { format, scale, layouts });
            let mut outputs = ir.outputs.iter().map(|ir| ir.id);
            let mut next = || outputs.next().expect("as many as were registered");
            if let Some(amax) = matrix.amax {
                handles.register_float_tensor::<B>(&next(), on_device::<B>(matrix.scale));
                handles.register_float_tensor::<B>(&next(), on_device::<B>(amax));
            }
            for words in [matrix.rows, matrix.transposed].into_iter().flatten() {
                handles.register_int_tensor::<B>(&next(), words);
            }
        });
        let mut outputs = outputs.into_iter();
        let mut next = || outputs.next().expect("as many as were registered");
        let (scale, amax) = match scale {
            ScaleRule::Given(scale, _) => (scale, None),
            _ => (Scalar::Device(next()), Some(Scalar::Device(next()))),
        };
        QuantizedMatrix {
            scale,
            amax,
            rows: layouts.rows().then(&mut next),
            transposed: layouts.transposed().then(&mut next),
            shape,
            format,
        }
    }

    fn fp8_gemm(
        lhs: GemmOperand<Self>,
        rhs: GemmOperand<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        let outputs = vec![(Shape::new([lhs.rows, rhs.rows]), options.dtype)];
        let options = GemmOptions { otherwise: options.otherwise.in_stream(), ..options };
        let mut inputs = vec![];
        let [lhs, rhs] = [lhs, rhs].map(|operand| {
            let GemmOperand { words, rows, format, scale } = operand;
            let (scale, tensor) = Number::split(&scale);
            inputs.push(words);
            inputs.extend(tensor);
            (rows, format, scale)
        });
        single(register("fp8_gemm", inputs, outputs, move |ir, handles| {
            let mut inputs = ir.inputs.iter();
            let [lhs, rhs] = [lhs, rhs].map(|(rows, format, scale)| {
                let words = handles.get_int_tensor::<B>(inputs.next().expect("two of codes"));
                let scale = scale.join::<B>(|| {
                    handles.get_float_tensor::<B>(inputs.next().expect("a scale on the device"))
                });
                GemmOperand { words, rows, format, scale }
            });
            let output = B::fp8_gemm(lhs, rhs, options.clone());
            handles.register_float_tensor::<B>(&ir.outputs[0].id, output);
        }))
    }

    fn fp8_gemm_of_blocks(
        lhs: BlockCodes<Self>,
        rhs: BlockCodes<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        blocks::gemm::<B>(lhs, rhs, options)
    }

    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        match B::fp8_capability(&a.codes.device()) {
            Capability::Native(_) => scaled::scaled_matmul::<B>(a, b_t, request),
            // As operations of the stream, which fuses them. CubeCL has no matrix units of CPUs.
            Capability::FakeQuantized { .. }
            | Capability::MatrixUnit(_)
            | Capability::Unusable { .. } => Self::fp8_scaled_matmul_emulated(a, b_t, request),
        }
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        if !B::FP8_KERNELS {
            return portable::scale::amax_with_non_finite::<Self>(tensor);
        }
        single(register("fp8_amax", vec![tensor], vec![one()], |ir, handles| {
            let tensor = handles.get_float_tensor::<B>(&ir.inputs[0]);
            handles.register_float_tensor::<B>(&ir.outputs[0].id, B::fp8_amax(tensor));
        }))
    }

    // As operations of the stream, whose matmul is CubeCL's too.
    fn fp8_matmul_values(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let [lhs, rhs] = match B::FP8_KERNELS {
            true => pad_k::<Self>(lhs, rhs),
            false => [lhs, rhs],
        };
        Self::fp8_plain_matmul(lhs, rhs)
    }

    fn fp8_rescale(
        tensor: FloatTensor<Self>,
        lhs: &Scalar<Self>,
        rhs: &Scalar<Self>,
    ) -> FloatTensor<Self> {
        if !B::FP8_KERNELS {
            return portable::rescale::<Self>(tensor, lhs, rhs);
        }
        let outputs = vec![(tensor.shape(), DType::F32)];
        let mut inputs = vec![tensor];
        let scales = [lhs, rhs].map(|scale| {
            let (scale, tensor) = Number::split(scale);
            inputs.extend(tensor);
            scale
        });
        single(register("fp8_rescale", inputs, outputs, move |ir, handles| {
            let mut inputs = ir.inputs.iter();
            let mut next = || handles.get_float_tensor::<B>(inputs.next().expect("registered"));
            let tensor = next();
            let [lhs, rhs] = scales.map(|scale| scale.join::<B>(&mut next));
            let output = B::fp8_rescale(tensor, &lhs, &rhs);
            handles.register_float_tensor::<B>(&ir.outputs[0].id, output);
        }))
    }
}

fn on_device<B: Fp8Engine>(scalar: Scalar<B>) -> FloatTensor<B> {
    match scalar {
        Scalar::Device(tensor) => tensor,
        Scalar::Host(_) => unreachable!("kernels leave scales and amaxes on the device"),
    }
}
