//! The three products of training, forward and backward: what is quantized, kept and multiplied when, wherever it runs.

use burn_backend::{Backend, DType, Shape, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::sums::Accumulation;
use burn_fp8_core::{GemmRole, Granularity, Operand, Precision};

use super::operand::{Gemms, Measured, Quantized, Quantizer, SavedOperand, Uses};
use crate::engine::tensor::{add_bias, reshape};
use crate::engine::{
    Capability, Epilogue, Execution, Form, Fp8Engine, Manner, Operand as Factor, Requirements, Run,
    ScalarOf, Target, multiply,
};
use crate::host;
use crate::report::{self, HighPrecision, Pending, PendingRan, new_note, record_high_precision};

impl Gemms {
    /// Multiplies two operands in their places, adds the bias where there is one, and records the product.
    fn multiply<B: Fp8Engine>(
        &self,
        role: GemmRole,
        factors: [Measured<B>; 2],
        bias: Option<FloatTensor<B>>,
        dtype: DType,
        quantizer: &impl Quantizer<B>,
    ) -> FloatTensor<B> {
        let granularity = self.recipe.granularity();
        let note = new_note();
        if let Some(note) = &note {
            let ran = PendingRan::noted::<B>(note, factors[0].matrix.device::<B>());
            report::record(|| Pending {
                kind: self.kind,
                role,
                gemm: self.forward.for_role(role),
                operands: Some(factors.each_ref().map(|factor| factor.pending(granularity))),
                site: self.site,
                ran,
            });
        }
        let [lhs, rhs] =
            factors.map(|factor| Factor::Matrix(quantizer.finish(factor.matrix, dtype)));
        let run = Run {
            in_bf16: false,
            any_order: false,
            target: self.target.clone(),
            // As in TransformerEngine: products with several scales sum precisely.
            fast_accumulation: self.accumulation.of(role) == Accumulation::Fast
                && granularity == Granularity::PerTensor,
            sums: self.manner.sums,
            split: None,
            otherwise: self.manner.execution.otherwise(),
            note,
        };
        // As it leaves the unit's registers: the same bits as after it, where the output is f32. cuBLASLt takes no bias in f32.
        let fuses = self.target == Target::MatrixUnit && dtype == DType::F32;
        let is_whole = |bias: &FloatTensor<B>| bias.shape() == Shape::new([self.forward.n]);
        let (inside, after) = match bias {
            Some(bias) if fuses && is_whole(&bias) => (Some(bias), None),
            bias => (None, bias),
        };
        let epilogue = Epilogue { bias: inside, ..Epilogue::float(dtype.into()) };
        add_bias::<B>(multiply::<B>(lhs, rhs, epilogue, run).result.into_float(), after)
    }

    /// A product that the recipe keeps out of FP8.
    fn multiply_high<B: Fp8Engine>(
        &self,
        role: GemmRole,
        lhs: FloatTensor<B>,
        rhs: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let gemm = self.forward.for_role(role);
        match self.recipe.products.of(role) {
            Precision::Bf16 => {
                // Nobody asks for bf16 natively.
                let execution = match self.manner.execution {
                    Execution::Native => Execution::Auto,
                    execution => execution,
                };
                let device = host::float_device::<B>(&lhs);
                let target = Target::of::<B>(
                    &device,
                    Requirements::plain(Form::Matrices),
                    Manner::in_f32(execution),
                )
                .unwrap_or_else(|error| panic!("{error}"));
                // No unit is given batches.
                let target = if self.is_flat() { target } else { Target::Emulation(None) };
                let unit = match B::fp8_capability(&device, None) {
                    Capability::MatrixUnit(unit) if target == Target::MatrixUnit => Some(unit.name),
                    _ => None,
                };
                record_high_precision(self.kind, role, gemm, HighPrecision::Bf16(unit));
                let dtype = lhs.dtype().into();
                let [lhs, rhs] = [lhs, rhs].map(Factor::Float);
                let run = Run { target, in_bf16: true, ..Run::emulated() };
                B::fp8_multiply(lhs, rhs, Epilogue::float(dtype), run).result.into_float()
            }
            Precision::Fp8 | Precision::High => {
                record_high_precision(self.kind, role, gemm, HighPrecision::Recipe);
                crate::engine::multiply_high::<B>(lhs, rhs)
            }
        }
    }
}

/// A product of the forward pass, and what its backward pass needs.
pub(crate) struct Forward<B: Fp8Engine> {
    pub(crate) output: FloatTensor<B>,
    /// The operands that were asked for.
    pub(crate) saved: [Option<SavedOperand<B>>; 2],
    /// The amaxes of the operands that were quantized.
    pub(crate) amaxes: [Option<ScalarOf<B>>; 2],
}

/// A product of the forward pass: operands of the same rank, or any left operand and a matrix; and a bias `[N]` that is added. Keeps the operands that
/// `save` asks for.
pub(crate) fn forward<B: Fp8Engine>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    quantizer: &impl Quantizer<B>,
    save: [bool; 2],
) -> Forward<B> {
    let gemms = quantizer.gemms();
    let dtype = lhs.dtype();
    let mut shape = lhs.shape();
    let last = shape.num_dims() - 1;
    shape[last] = rhs.shape()[rhs.rank() - 1];

    let in_fp8 = |role: &GemmRole| gemms.recipe.products.in_fp8(*role);
    let prepare = |tensor: &FloatTensor<B>, operand: Operand, save: bool| {
        let uses = Uses {
            later: Some(again(operand)).filter(|role| save && in_fp8(role)),
            ..Uses::now(Some(GemmRole::Output).filter(in_fp8))
        };
        let quantized =
            uses.roles().next().map(|_| Quantized::<B>::new(tensor, operand, &uses, quantizer));
        let saved = save.then(|| match (&quantized, uses.later) {
            (Some(quantized), Some(role)) => quantized.keep(operand, role),
            _ => SavedOperand::High(tensor.clone()),
        });
        (quantized, saved)
    };
    let [input, weight] = GemmRole::Output.operands();
    let (lhs_fp8, lhs_saved) = prepare(&lhs, input, save[0]);
    let (rhs_fp8, rhs_saved) = prepare(&rhs, weight, save[1]);
    let amaxes = [&lhs_fp8, &rhs_fp8].map(|operand| operand.as_ref()?.quantization().amax);
    if let Some(tap) = &gemms.tap {
        let seen = [(input, &lhs, &lhs_fp8), (weight, &rhs, &rhs_fp8)].map(|(operand, x, fp8)| {
            (operand, x.clone(), fp8.as_ref().map(Quantized::quantization))
        });
        tap.see::<B>(seen, &[GemmRole::Output], &gemms.recipe);
    }

    let role = GemmRole::Output;
    let output = match (lhs_fp8, rhs_fp8) {
        (Some(lhs), Some(rhs)) if in_fp8(&role) => {
            let factors = [lhs.place(input, role, gemms), rhs.place(weight, role, gemms)];
            gemms.multiply(role, factors, bias, dtype, quantizer)
        }
        _ => {
            let (lhs, rhs) = (gemms.join::<B>(lhs), gemms.join::<B>(rhs));
            add_bias::<B>(gemms.multiply_high::<B>(role, lhs, rhs), bias)
        }
    };
    let output = match gemms.is_flat() {
        true => reshape::<B>(output, shape),
        false => output,
    };
    Forward { output, saved: [lhs_saved, rhs_saved], amaxes }
}

/// The product of the backward pass that an operand of the forward pass is in again: that for the gradient of the other one.
fn again(operand: Operand) -> GemmRole {
    match operand {
        Operand::Weight => GemmRole::GradInput,
        _ => GemmRole::GradWeight,
    }
}

/// The gradients of a product.
pub(crate) struct Gradients<B: Fp8Engine> {
    /// Those of the operands, of their shapes, where the counterpart was saved.
    pub(crate) operands: [Option<FloatTensor<B>>; 2],
    /// The amax of the output gradient, where it was quantized.
    pub(crate) amax: Option<ScalarOf<B>>,
}

/// The gradients of the operands of a forward product, of the shapes of those operands.
///
/// The gradient of the left operand needs the right one saved, and the other way round; where the operand was not saved
/// its counterpart's gradient is not computed.
pub(crate) fn backward<B: Fp8Engine>(
    output_grad: FloatTensor<B>,
    [lhs, rhs]: [Option<SavedOperand<B>>; 2],
    [lhs_shape, rhs_shape]: [Shape; 2],
    quantizer: &impl Quantizer<B>,
) -> Gradients<B> {
    let gemms = quantizer.gemms();
    let dtype = output_grad.dtype();
    let in_fp8 = |saved: &Option<SavedOperand<B>>| {
        saved.as_ref().is_some_and(|saved| !matches!(saved, SavedOperand::High(_)))
    };
    let uses = [(in_fp8(&rhs), GemmRole::GradInput), (in_fp8(&lhs), GemmRole::GradWeight)];
    let uses = Uses::now(uses.into_iter().filter_map(|(is, role)| is.then_some(role)));
    let quantized = (!uses.now.is_empty())
        .then(|| Quantized::<B>::new(&output_grad, Operand::OutputGrad, &uses, quantizer));
    let amax = quantized.as_ref().and_then(|quantized| quantized.quantization().amax);
    if let Some(tap) = &gemms.tap {
        let fp8 = quantized.as_ref().map(Quantized::quantization);
        tap.see::<B>([(Operand::OutputGrad, output_grad.clone(), fp8)], &uses.now, &gemms.recipe);
    }
    let gradient = |role| {
        let quantized = quantized.as_ref().expect("quantized where an operand is in FP8");
        quantized.place(Operand::OutputGrad, role, gemms)
    };

    let grad_lhs = rhs.map(|rhs| {
        let role = GemmRole::GradInput;
        let grad = match rhs {
            SavedOperand::High(rhs) => {
                let rhs = B::float_transpose(gemms.join::<B>(rhs));
                let output_grad = gemms.join::<B>(output_grad.clone());
                gemms.multiply_high::<B>(role, output_grad, rhs)
            }
            SavedOperand::Fp8(rhs) => {
                let rhs = rhs.place(Operand::Weight, role, gemms);
                gemms.multiply(role, [gradient(role), rhs], None, dtype, quantizer)
            }
        };
        reduce::<B>(grad, lhs_shape)
    });
    let grad_rhs = lhs.map(|lhs| {
        let role = GemmRole::GradWeight;
        let grad = match lhs {
            SavedOperand::High(lhs) => {
                let lhs = B::float_transpose(gemms.join::<B>(lhs));
                gemms.multiply_high::<B>(role, lhs, gemms.join::<B>(output_grad))
            }
            SavedOperand::Fp8(lhs) => {
                let lhs = lhs.place(Operand::Input, role, gemms);
                gemms.multiply(role, [lhs, gradient(role)], None, dtype, quantizer)
            }
        };
        reduce::<B>(grad, rhs_shape)
    });
    Gradients { operands: [grad_lhs, grad_rhs], amax }
}

/// `output_grad` `[…, N]` times `weight` `[K, N]` transposed.
pub(crate) fn linear_x_backward<B: Fp8Engine>(
    weight: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    quantizer: &impl Quantizer<B>,
) -> FloatTensor<B> {
    let mut shape = output_grad.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[0];
    let grad = gradient::<B>(GemmRole::GradInput, [&output_grad, &weight], quantizer);
    reshape::<B>(grad, shape)
}

/// `x` `[…, K]` transposed times `output_grad` `[…, N]`, summed over the leading dimensions by joining them in one GEMM.
pub(crate) fn linear_weight_backward<B: Fp8Engine>(
    x: FloatTensor<B>,
    output_grad: FloatTensor<B>,
    quantizer: &impl Quantizer<B>,
) -> FloatTensor<B> {
    gradient::<B>(GemmRole::GradWeight, [&x, &output_grad], quantizer)
}

/// A product of the backward pass by itself, of operands that nobody has quantized.
pub(crate) fn gradient<B: Fp8Engine>(
    role: GemmRole,
    tensors: [&FloatTensor<B>; 2],
    quantizer: &impl Quantizer<B>,
) -> FloatTensor<B> {
    let gemms = quantizer.gemms();
    if !gemms.recipe.products.in_fp8(role) {
        let [lhs, rhs] = tensors.map(|tensor| gemms.join::<B>(tensor.clone()));
        let [lhs, rhs] = match role {
            GemmRole::Output => [lhs, rhs],
            GemmRole::GradInput => [lhs, B::float_transpose(rhs)],
            GemmRole::GradWeight => [B::float_transpose(lhs), rhs],
        };
        return gemms.multiply_high::<B>(role, lhs, rhs);
    }
    let [lhs, rhs] = role.operands();
    let factor = |tensor: &FloatTensor<B>, operand| {
        let quantized = Quantized::<B>::new(tensor, operand, &Uses::now([role]), quantizer);
        if let Some(tap) = &gemms.tap {
            let fp8 = Some(quantized.quantization());
            tap.see::<B>([(operand, tensor.clone(), fp8)], &[role], &gemms.recipe);
        }
        quantized.place(operand, role, gemms)
    };
    let factors = [factor(tensors[0], lhs), factor(tensors[1], rhs)];
    // Both are tensors of the backward pass of one layer, of one type.
    gemms.multiply(role, factors, None, tensors[0].dtype(), quantizer)
}

/// Sums a gradient over the dimensions along which its operand was broadcast, and gives it the operand's shape.
pub(crate) fn reduce<B: Backend>(mut grad: FloatTensor<B>, shape: Shape) -> FloatTensor<B> {
    if grad.rank() == shape.num_dims() {
        for dim in 0..shape.num_dims() {
            if shape[dim] == 1 && grad.shape()[dim] != 1 {
                grad = B::float_sum_dim(grad, dim);
            }
        }
    }
    reshape::<B>(grad, shape)
}
