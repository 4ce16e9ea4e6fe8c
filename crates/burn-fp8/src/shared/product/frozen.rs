//! The product of a frozen layer: an input, quantized as the layer says, times a weight that is in FP8 already.

use burn_backend::{FloatDType, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::sums::Accumulation;
use burn_fp8_core::{Gemm, GemmRole, Granularity, Overflow, ProductKind};

use super::activation::{ActivationScale, InputScale};
use super::operand::Measured;
use crate::engine::tensor::add_bias;
use crate::engine::{
    Epilogue, Fp8Engine, Manner, Matrix, MatrixOf, Operand, Request, Run, Scalar, ScaleRule,
    Target, WHOLE, multiply as multiply_operands,
};
use crate::report::{self, Pending, PendingOperand, PendingRan, new_note};

/// How the product of a frozen layer is run.
#[derive(Clone, Debug)]
pub struct FrozenOptions {
    /// What a trace calls the product.
    pub(crate) kind: ProductKind,
    pub(crate) input: InputScale,
    /// What a trace calls the scales of the weight.
    pub(crate) granularity: Granularity,
    pub(crate) target: Target,
    pub(crate) manner: Manner,
    pub(crate) accumulation: Accumulation,
}

/// `x` `[M, K]` times `weight` `[K, N]`, plus `bias` `[N]`, of the type of `x`.
pub(super) fn multiply<B: Fp8Engine>(
    x: FloatTensor<B>,
    weight: MatrixOf<B>,
    bias: Option<FloatTensor<B>>,
    options: &FrozenOptions,
) -> FloatTensor<B> {
    let FrozenOptions { input, target, manner, .. } = options;
    let InputScale { activation, format, recipe } = *input;
    let dtype = FloatDType::from(x.dtype());
    if activation == ActivationScale::Unquantized {
        let operands = [Operand::Float(B::float_cast(x, FloatDType::F32)), Operand::Matrix(weight)];
        let [x, weight] = operands;
        let epilogue = Epilogue::float(dtype);
        let output = multiply_operands::<B>(x, weight, epilogue, Run::emulated());
        return add_bias::<B>(output.result.into_float(), bias);
    }
    let rule = match activation {
        ActivationScale::Static(scale) => {
            ScaleRule::Given(Scalar::Host(scale), Overflow::SaturateFinite)
        }
        _ => ScaleRule::Current(recipe),
    };
    let wanted = target.wanted::<B>(manner.sums, [true, false], burn_fp8_core::Layouts::Rows, true);
    let request = Request { format, block: activation.block(), rule, wanted };
    let input = Measured::<B>::new(&x, B::fp8_quantize(x.clone(), request));
    let of_input = input.pending(recipe.granularity());
    let operands = [input.matrix, weight];
    of_codes::<B>(operands, of_input, (bias, dtype), options)
}

/// Codes `[M, K]` times a weight in codes, as [`multiply`] does; `of_input` is what a trace says of them.
pub(super) fn of_codes<B: Fp8Engine>(
    [input, weight]: [MatrixOf<B>; 2],
    of_input: PendingOperand,
    (bias, dtype): (Option<FloatTensor<B>>, FloatDType),
    options: &FrozenOptions,
) -> FloatTensor<B> {
    let FrozenOptions { kind, granularity, target, manner, accumulation, .. } = options;
    let gemm = {
        let ([m, k], [_, n]) = (input.shape().dims(), weight.shape().dims());
        Gemm::matrix(m, n, k)
    };
    let note = new_note();
    if let Some(note) = &note {
        let ran = PendingRan::noted::<B>(note, weight.device::<B>());
        let of_weight =
            PendingOperand::new::<B>(weight.format, *granularity, weight.scales.clone(), None);
        let operands = [of_input, of_weight];
        report::record(|| Pending {
            kind: *kind,
            role: GemmRole::Output,
            gemm,
            operands: Some(operands),
            site: None,
            ran,
        });
    }
    let run = Run {
        in_bf16: false,
        any_order: true,
        target: target.clone(),
        fast_accumulation: *accumulation == Accumulation::Fast
            && input.scales.block() == WHOLE
            && weight.scales.block() == WHOLE,
        sums: manner.sums,
        split: None,
        otherwise: manner.execution.otherwise(),
        note,
    };
    let [input, weight] = [input, weight].map(Operand::Matrix);
    // As it leaves the unit's registers: the same bits as after it, where the output is f32.
    let (inside, after) = match target == &Target::MatrixUnit && dtype == FloatDType::F32 {
        true => (bias, None),
        false => (None, bias),
    };
    let epilogue = Epilogue { bias: inside, ..Epilogue::float(dtype) };
    add_bias::<B>(multiply_operands::<B>(input, weight, epilogue, run).result.into_float(), after)
}

/// `output_grad` `[M, N]` times `weight` transposed, `[N, K]`: the gradient is not quantized, the codes are multiplied where they lie.
pub(super) fn x_backward<B: Fp8Engine>(
    output_grad: FloatTensor<B>,
    weight: MatrixOf<B>,
) -> FloatTensor<B> {
    let dtype = FloatDType::from(output_grad.dtype());
    let weight: Matrix<_, _> = weight.transpose::<B>();
    let output_grad = B::float_cast(output_grad, FloatDType::F32);
    let [output_grad, weight] = [Operand::Float(output_grad), Operand::Matrix(weight)];
    let epilogue = Epilogue::float(dtype);
    multiply_operands::<B>(output_grad, weight, epilogue, Run::emulated()).result.into_float()
}
