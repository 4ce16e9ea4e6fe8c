//! Codes of `Autodiff<B>`: those of `B`, constants of the graph.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::Fp8Format;

use super::backend::Fp8Engine;
use super::blocks::{BlockCodes, QuantizeBlocks};
use super::capability::{Capability, Fallback};
use super::codes::CodesPrimitive;
use super::matrix::GemmOptions;
use super::problem::NativeProblem;
use super::quantize::{Quantize, QuantizeRows, Quantized, ScaleRule};
use super::scalar::Scalar;
use super::scaled::{OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues};
use super::unit::{QuantizedCodes, UnitOperand, UnitOptions, UnitScale};

/// A tensor of `Autodiff<B>`; burn-autodiff does not export the name.
type AutodiffTensor<B, C> = FloatTensor<Autodiff<B, C>>;

impl<B: Fp8Engine, C: CheckpointStrategy> Fp8Engine for Autodiff<B, C> {
    // Quantized tensors are constants of the graph: those of `B`, untracked. Products quantize on `B`; only
    // `Autodiff<Autodiff<B>>` comes here with tracked tensors.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        let tensor = untracked::<B, C>(tensor);
        let Quantize { format, scale, save } = request;
        let request = Quantize { format, scale: inner_rule(scale), save };
        let Quantized { values, codes, scale, amax, format } = B::fp8_quantize(tensor, request);
        Quantized {
            values: AutodiffTensor::<B, C>::new(values),
            codes: codes.map(constant_codes),
            scale: constant(scale),
            amax: amax.map(constant),
            format,
        }
    }

    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        let (codes, scale) =
            B::fp8_quantize_codes(untracked::<B, C>(tensor), format, inner_rule(scale));
        (constant_codes(codes), constant(scale))
    }

    fn fp8_quantize_for_unit(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> QuantizedCodes<Self> {
        let tensor = untracked::<B, C>(tensor);
        let QuantizedCodes { codes, scale, amax, format } =
            B::fp8_quantize_for_unit(tensor, format, inner_rule(scale));
        let (codes, scale) = (constant_codes(codes), constant(scale));
        QuantizedCodes { codes, scale, amax: amax.map(constant), format }
    }

    fn fp8_matmul_on_unit(
        lhs: UnitOperand<Self>,
        rhs: UnitOperand<Self>,
        options: UnitOptions,
    ) -> FloatTensor<Self> {
        let [lhs, rhs] = [lhs, rhs].map(|UnitOperand { codes, scale }| UnitOperand {
            codes: inner_codes(codes),
            scale: match scale {
                UnitScale::Tensor(scale) => UnitScale::Tensor(inner(scale)),
                UnitScale::Rows(scales) => UnitScale::Rows(scales.primitive),
                UnitScale::Blocks { scales, block, are_powers_of_two } => {
                    UnitScale::Blocks { scales: scales.primitive, block, are_powers_of_two }
                }
            },
        });
        AutodiffTensor::<B, C>::new(B::fp8_matmul_on_unit(lhs, rhs, options))
    }

    fn fp8_quantize_rows(
        tensor: FloatTensor<Self>,
        request: QuantizeRows,
    ) -> (CodesPrimitive<Self>, FloatTensor<Self>) {
        let (codes, scales) = B::fp8_quantize_rows(untracked::<B, C>(tensor), request);
        (constant_codes(codes), AutodiffTensor::<B, C>::new(scales))
    }

    fn fp8_quantize_blocks(tensor: FloatTensor<Self>, request: QuantizeBlocks) -> BlockCodes<Self> {
        let BlockCodes { codes, scales, block, format } =
            B::fp8_quantize_blocks(untracked::<B, C>(tensor), request);
        let scales = AutodiffTensor::<B, C>::new(scales);
        BlockCodes { codes: constant_codes(codes), scales, block, format }
    }

    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_dequantize_blocks(inner_blocks(codes)))
    }

    fn fp8_gemm_of_blocks(
        lhs: BlockCodes<Self>,
        rhs: BlockCodes<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        let [lhs, rhs] = [lhs, rhs].map(inner_blocks);
        AutodiffTensor::<B, C>::new(B::fp8_gemm_of_blocks(lhs, rhs, options))
    }

    fn fp8_values(codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_values(inner_codes(codes)))
    }

    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        match x.is_tracked() {
            true => Self::fp8_matmul_values(x, Self::fp8_values(codes)),
            false => {
                AutodiffTensor::<B, C>::new(B::fp8_matmul_codes(x.primitive, inner_codes(codes)))
            }
        }
    }

    fn fp8_matmul_block_codes(x: FloatTensor<Self>, codes: BlockCodes<Self>) -> FloatTensor<Self> {
        match x.is_tracked() {
            true => Self::fp8_plain_matmul(x, Self::fp8_dequantize_blocks(codes)),
            false => {
                let codes = inner_blocks(codes);
                AutodiffTensor::<B, C>::new(B::fp8_matmul_block_codes(x.primitive, codes))
            }
        }
    }

    fn fp8_capability(device: &Self::Device) -> Capability {
        B::fp8_capability(device)
    }

    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        B::fp8_check_native(device, problem)
    }

    fn fp8_matmul_values(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        match lhs.is_tracked() || rhs.is_tracked() {
            true => Self::fp8_plain_matmul(lhs, rhs),
            false => {
                AutodiffTensor::<B, C>::new(B::fp8_matmul_values(lhs.primitive, rhs.primitive))
            }
        }
    }

    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        let (a, b_t, request) = inner_product(a, b_t, request);
        constant_product(B::fp8_scaled_matmul(a, b_t, request))
    }

    fn fp8_scaled_matmul_emulated(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        let (a, b_t, request) = inner_product(a, b_t, request);
        constant_product(B::fp8_scaled_matmul_emulated(a, b_t, request))
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_amax(tensor.primitive))
    }
}

fn inner_blocks<B: Fp8Engine, C: CheckpointStrategy>(
    codes: BlockCodes<Autodiff<B, C>>,
) -> BlockCodes<B> {
    let BlockCodes { codes, scales, block, format } = codes;
    BlockCodes { codes: inner_codes(codes), scales: scales.primitive, block, format }
}

fn inner_codes<B: Fp8Engine, C: CheckpointStrategy>(
    codes: CodesPrimitive<Autodiff<B, C>>,
) -> CodesPrimitive<B> {
    match codes {
        CodesPrimitive::Bytes(codes, format) => CodesPrimitive::Bytes(codes, format),
        CodesPrimitive::Packed(words, shape, format) => {
            CodesPrimitive::Packed(words, shape, format)
        }
        CodesPrimitive::Values(values) => CodesPrimitive::Values(values.primitive),
    }
}

fn constant_codes<B: Fp8Engine, C: CheckpointStrategy>(
    codes: CodesPrimitive<B>,
) -> CodesPrimitive<Autodiff<B, C>> {
    match codes {
        CodesPrimitive::Bytes(codes, format) => CodesPrimitive::Bytes(codes, format),
        CodesPrimitive::Packed(words, shape, format) => {
            CodesPrimitive::Packed(words, shape, format)
        }
        CodesPrimitive::Values(values) => {
            CodesPrimitive::Values(AutodiffTensor::<B, C>::new(values))
        }
    }
}

// Codes are constants of the graph, and a bias with a gradient has been refused: so is the result of a scaled product.

fn inner_product<B: Fp8Engine, C: CheckpointStrategy>(
    a: ScaledOperand<Autodiff<B, C>>,
    b_t: ScaledOperand<Autodiff<B, C>>,
    request: ScaledRequest<Autodiff<B, C>>,
) -> (ScaledOperand<B>, ScaledOperand<B>, ScaledRequest<B>) {
    let operand = |ScaledOperand { codes, format, scale }| ScaledOperand {
        codes: inner_codes(codes),
        format,
        scale: inner(scale),
    };
    let ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note } =
        request;
    let output = match output {
        OutputType::Float(dtype) => OutputType::Float(dtype),
        OutputType::Fp8 { format, scale } => OutputType::Fp8 { format, scale: inner(scale) },
    };
    let bias = bias.map(|bias| bias.primitive);
    let request =
        ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note };
    (operand(a), operand(b_t), request)
}

fn constant_product<B: Fp8Engine, C: CheckpointStrategy>(
    product: ScaledProduct<B>,
) -> ScaledProduct<Autodiff<B, C>> {
    let ScaledProduct { values, amax } = product;
    let values = match values {
        ScaledValues::Float(values) => ScaledValues::Float(AutodiffTensor::<B, C>::new(values)),
        ScaledValues::Codes(codes) => ScaledValues::Codes(constant_codes(codes)),
    };
    ScaledProduct { values, amax: amax.map(AutodiffTensor::<B, C>::new) }
}

/// The tensor of `B`. Panics where it has a gradient.
fn untracked<B: Fp8Engine, C: CheckpointStrategy>(tensor: AutodiffTensor<B, C>) -> FloatTensor<B> {
    assert!(
        !tensor.is_tracked(),
        "a tensor with a gradient cannot be quantized here: FP8 products have no second derivative, and frozen layers no \
         derivative; run this part in burn_fp8::high_precision, or detach the tensor"
    );
    tensor.primitive
}

fn inner_rule<B: Fp8Engine, C: CheckpointStrategy>(
    rule: ScaleRule<Autodiff<B, C>>,
) -> ScaleRule<B> {
    match rule {
        ScaleRule::Current(recipe) => ScaleRule::Current(recipe),
        ScaleRule::Delayed(amax, recipe) => ScaleRule::Delayed(inner(amax), recipe),
        ScaleRule::Given(scale, overflow) => ScaleRule::Given(inner(scale), overflow),
    }
}

fn inner<B: Fp8Engine, C: CheckpointStrategy>(scalar: Scalar<Autodiff<B, C>>) -> Scalar<B> {
    match scalar {
        Scalar::Host(value) => Scalar::Host(value),
        Scalar::Device(tensor) => Scalar::Device(tensor.primitive),
    }
}

fn constant<B: Fp8Engine, C: CheckpointStrategy>(scalar: Scalar<B>) -> Scalar<Autodiff<B, C>> {
    match scalar {
        Scalar::Host(value) => Scalar::Host(value),
        Scalar::Device(tensor) => Scalar::Device(AutodiffTensor::<B, C>::new(tensor)),
    }
}
