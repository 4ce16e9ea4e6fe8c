//! Flex: quantization over its memory, one byte an element for saved codes.

mod blocks;
mod memory;
mod pool;
mod rows;
mod unit;
mod unit_blocks;

use burn::backend::Flex;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Shape, TensorData, bf16, f16};
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::slice::{Source, parallel};
use burn_fp8_core::{Fp8Format, Overflow, scale};

use super::backend::{Fp8Engine, Untracked, dequantize_blocks, quantize_blocks, quantize_rows};
use super::blocks::{BlockCodes, QuantizeBlocks};
use super::capability::Capability;
use super::codes::CodesPrimitive;
use super::portable;
use super::quantize::{Quantize, QuantizeRows, Quantized, ScaleRule};
use super::scalar::Scalar;
use super::scaled::{ScaledOperand, ScaledProduct, ScaledRequest};
use super::unit::{QuantizedCodes, UnitOperand, UnitOptions, UnitScale};
use memory::{dense, elements, is_plain};

impl Untracked for Flex {}

impl Fp8Engine for Flex {
    fn fp8_quantize(tensor: FlexTensor, request: Quantize<Self>) -> Quantized<Self> {
        let (tensor, layout) = dense(tensor);
        match tensor.dtype() {
            DType::F32 => quantize(elements::<f32>(&tensor, &layout), &layout, request),
            DType::F16 => quantize(elements::<f16>(&tensor, &layout), &layout, request),
            DType::BF16 => quantize(elements::<bf16>(&tensor, &layout), &layout, request),
            _ => portable::quantize::<Self>(tensor, request),
        }
    }

    fn fp8_quantize_codes(
        tensor: FlexTensor,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        let QuantizedCodes { codes, scale, .. } =
            Self::fp8_quantize_for_unit(tensor, format, scale);
        (codes, scale)
    }

    fn fp8_quantize_for_unit(
        tensor: FlexTensor,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> QuantizedCodes<Self> {
        let (tensor, layout) = dense(tensor);
        match tensor.dtype() {
            DType::F16 => encode(elements::<f16>(&tensor, &layout), &layout, format, scale),
            DType::BF16 => encode(elements::<bf16>(&tensor, &layout), &layout, format, scale),
            DType::F32 => encode(elements::<f32>(&tensor, &layout), &layout, format, scale),
            _ => {
                let tensor = Self::float_cast(tensor, FloatDType::F32);
                Self::fp8_quantize_for_unit(tensor, format, scale)
            }
        }
    }

    fn fp8_capability(_device: &Self::Device) -> Capability {
        unit::capability()
    }

    fn fp8_matmul_on_unit(
        lhs: UnitOperand<Self>,
        rhs: UnitOperand<Self>,
        options: UnitOptions,
    ) -> FlexTensor {
        match lhs.scale {
            UnitScale::Blocks { .. } => unit_blocks::matmul(lhs, rhs, options),
            _ => unit::matmul(lhs, rhs, options),
        }
    }

    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        match unit::is_there() {
            true => unit::scaled_matmul(a, b_t, request),
            false => Self::fp8_scaled_matmul_emulated(a, b_t, request),
        }
    }

    fn fp8_values(codes: CodesPrimitive<Self>) -> FlexTensor {
        match codes {
            CodesPrimitive::Bytes(codes, format) => {
                pool::tensor(codes.layout().clone(), |values: &mut [f32]| {
                    parallel::decode(codes.bytes(), 1.0, format, values);
                })
            }
            codes => portable::values::<Self>(codes),
        }
    }

    // Faster than decoding the weight first at every batch size that the benchmark `serving` measures, and needs no room for it.
    fn fp8_matmul_codes(x: FlexTensor, codes: CodesPrimitive<Self>) -> FlexTensor {
        match codes {
            CodesPrimitive::Bytes(codes, format) if is_plain(codes.layout()) => {
                let [m, k] = x.layout().shape().dims();
                let [_, n] = codes.layout().shape().dims();
                let x = x.to_contiguous();
                let x = elements::<f32>(&x, x.layout());
                pool::tensor(Layout::contiguous(Shape::new([m, n])), |y: &mut [f32]| {
                    parallel::matmul_codes(x, codes.bytes(), [m, k, n], format, y);
                })
            }
            codes => Self::fp8_plain_matmul(x, Self::fp8_values(codes)),
        }
    }

    fn fp8_matmul_block_codes(x: FlexTensor, codes: BlockCodes<Self>) -> FlexTensor {
        match blocks::matmul(&x, &codes) {
            Some(y) => y,
            None => Self::fp8_plain_matmul(x, Self::fp8_dequantize_blocks(codes)),
        }
    }

    fn fp8_rescale(mut tensor: FlexTensor, lhs: &Scalar<Self>, rhs: &Scalar<Self>) -> FlexTensor {
        if tensor.dtype() != DType::F32 {
            return portable::rescale::<Self>(tensor, lhs, rhs);
        }
        // Reading a scale from a tensor costs nothing here.
        let [lhs, rhs] = [lhs, rhs].map(|scale| scale.clone().read());
        let [first, second] = scale::of_product(lhs, rhs);
        if let Some(values) = tensor.try_storage_mut::<f32>() {
            for factor in [first, second].into_iter().filter(|factor| *factor != 1.0) {
                parallel::scale_in_place(values, factor);
            }
            return tensor;
        }
        // Shared, as decoded operands are with the memory kept for the next ones.
        let (tensor, layout) = dense(tensor);
        let x = elements::<f32>(&tensor, &layout);
        pool::tensor(layout.clone(), |values: &mut [f32]| {
            parallel::scale(x, first, values);
            if second != 1.0 {
                parallel::scale_in_place(values, second);
            }
        })
    }

    fn fp8_quantize_rows(
        tensor: FlexTensor,
        request: QuantizeRows,
    ) -> (CodesPrimitive<Self>, FlexTensor) {
        match (tensor.dtype(), tensor.layout().shape().num_dims()) {
            (DType::F32, 2) => rows::quantize::<f32>(tensor, request),
            (DType::F16, 2) => rows::quantize::<f16>(tensor, request),
            (DType::BF16, 2) => rows::quantize::<bf16>(tensor, request),
            _ => quantize_rows::<Self>(tensor, request),
        }
    }

    fn fp8_rescale_rows(tensor: FlexTensor, lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
        match tensor.dtype() == DType::F32 && tensor.layout().shape().num_dims() == 2 {
            true => rows::rescale(tensor, lhs, rhs),
            false => portable::rescale_by::<Self>(tensor, lhs, rhs),
        }
    }

    fn fp8_quantize_blocks(tensor: FlexTensor, request: QuantizeBlocks) -> BlockCodes<Self> {
        let quantized = match tensor.dtype() {
            DType::F32 => blocks::quantize::<f32>(&tensor, request),
            DType::F16 => blocks::quantize::<f16>(&tensor, request),
            DType::BF16 => blocks::quantize::<bf16>(&tensor, request),
            _ => None,
        };
        quantized.unwrap_or_else(|| quantize_blocks::<Self>(tensor, request))
    }

    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FlexTensor {
        blocks::dequantize(&codes).unwrap_or_else(|| dequantize_blocks::<Self>(codes))
    }

    fn fp8_amax(tensor: FlexTensor) -> FlexTensor {
        let (tensor, layout) = dense(tensor);
        let amax = match tensor.dtype() {
            DType::F32 => parallel::amax(elements::<f32>(&tensor, &layout)),
            DType::F16 => parallel::amax(elements::<f16>(&tensor, &layout)),
            DType::BF16 => parallel::amax(elements::<bf16>(&tensor, &layout)),
            _ => return portable::scale::amax_with_non_finite::<Self>(tensor),
        };
        FlexTensor::from_data(TensorData::new(vec![amax.with_non_finite()], [1]))
    }
}

fn quantize<S: Source>(x: &[S], layout: &Layout, request: Quantize<Flex>) -> Quantized<Flex> {
    let Quantize { format, scale, save } = request;
    let (scale, amax, overflow) = choose_scale(x, format, scale);
    let values = |codes: Option<&mut [u8]>| {
        pool::tensor(layout.clone(), |values: &mut [f32]| match codes {
            Some(codes) => {
                parallel::encode_and_round(x, scale, format, overflow, codes, values);
            }
            None => parallel::round(x, scale, format, overflow, values),
        })
    };
    let (codes, values) = match save {
        true => {
            let (codes, values) =
                pool::tensor_and(layout.clone(), |codes: &mut [u8]| values(Some(codes)));
            (Some(CodesPrimitive::Bytes(codes, format)), values)
        }
        false => (None, values(None)),
    };
    Quantized { values, codes, scale: Scalar::Host(scale), amax: amax.map(Scalar::Host), format }
}

fn encode<S: Source>(
    x: &[S],
    layout: &Layout,
    format: Fp8Format,
    rule: ScaleRule<Flex>,
) -> QuantizedCodes<Flex> {
    let (codes, (scale, amax)) = pool::tensor_and(layout.clone(), |codes: &mut [u8]| match rule {
        // The scale is known: one read of the tensor gives its codes and its amax.
        ScaleRule::Delayed(amax, recipe) if amax.clone().read() != 0.0 => {
            let scale = scale::from_amax(amax.read(), format, recipe);
            let overflow = Overflow::SaturateFinite;
            let amax = parallel::encode_with_amax(x, scale, format, overflow, codes);
            (scale, Some(amax.value))
        }
        rule => {
            let (scale, amax, overflow) = choose_scale(x, format, rule);
            parallel::encode(x, scale, format, overflow, codes);
            (scale, amax)
        }
    });
    let codes = CodesPrimitive::Bytes(codes, format);
    QuantizedCodes { codes, scale: Scalar::Host(scale), amax: amax.map(Scalar::Host), format }
}

/// The scale, the amax where it was measured, and the treatment of overflow.
fn choose_scale<S: Source>(
    x: &[S],
    format: Fp8Format,
    rule: ScaleRule<Flex>,
) -> (f32, Option<f32>, Overflow) {
    let (from, recipe) = match rule {
        ScaleRule::Given(scale, overflow) => return (scale.read(), None, overflow),
        ScaleRule::Current(recipe) => (0.0, recipe),
        ScaleRule::Delayed(amax, recipe) => (amax.read(), recipe),
    };
    let amax = parallel::amax(x).value;
    let from = if from == 0.0 { amax } else { from };
    (scale::from_amax(from, format, recipe), Some(amax), Overflow::SaturateFinite)
}
