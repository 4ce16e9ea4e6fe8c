//! The three products on a matrix unit of the CPU: codes as they were quantized, multiplied as they lie.
//!
//! An operand is quantized once, in the layout it has, and kept as it is: one byte an element. In its place in a product it is a view.

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use burn_fp8_core::{GemmRole, Operand};

use super::operand::{SavedCodes, SavedOperand};
use super::scheme::{Gemms, Quantizer, Scheme, Uses};
use crate::engine::{
    CodesPrimitive, Fp8Engine, QuantizedCodes, Scalar, UnitOperand, UnitOptions, UnitScale,
    portable,
};
use crate::report::{self, PendingOperand, PendingRan, new_note};

/// A matrix unit of the CPU.
pub(crate) struct Units;

/// A quantized tensor on its way into a product.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredCodes<B: Fp8Engine> {
    pub(crate) quantized: QuantizedCodes<B>,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Engine> MeasuredCodes<B> {
    /// A tensor that has been quantized.
    pub(crate) fn new(tensor: &FloatTensor<B>, quantized: QuantizedCodes<B>) -> Self {
        let saturated = report::is_tracing()
            .then(|| portable::count_saturated::<B>(tensor, &quantized.scale, quantized.format));
        Self { quantized, saturated }
    }

    /// What a trace is told of it.
    pub(crate) fn pending(&self) -> PendingOperand {
        let QuantizedCodes { format, scale, .. } = &self.quantized;
        PendingOperand::per_tensor::<B>(*format, scale.clone(), self.saturated.clone())
    }
}

impl<B: Fp8Engine, Q: Quantizer<B>> Scheme<B, Q> for Units {
    type Quantized = MeasuredCodes<B>;
    type Factor = MeasuredCodes<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        _uses: &Uses,
        quantizer: &Q,
        _gemms: &Gemms,
    ) -> MeasuredCodes<B> {
        MeasuredCodes::new(tensor, quantizer.quantize_codes(tensor, operand))
    }

    fn amax(quantized: &MeasuredCodes<B>) -> Option<Scalar<B>> {
        quantized.quantized.amax.clone()
    }

    fn scale(quantized: &MeasuredCodes<B>) -> Option<Scalar<B>> {
        Some(quantized.quantized.scale.clone())
    }

    fn factor(
        quantized: &MeasuredCodes<B>,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> MeasuredCodes<B> {
        place(quantized.clone(), operand, role, gemms)
    }

    fn keep(quantized: &MeasuredCodes<B>, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
        let MeasuredCodes { quantized, saturated } = quantized.clone();
        let QuantizedCodes { codes, scale, format, .. } = quantized;
        SavedOperand::Fp8(SavedCodes { codes, scale, format, saturated })
    }

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> MeasuredCodes<B> {
        let SavedOperand::Fp8(SavedCodes { codes, scale, format, saturated }) = saved else {
            unreachable!("a product on a matrix unit finds the codes that it has kept");
        };
        let quantized = QuantizedCodes { codes, scale, amax: None, format };
        place(MeasuredCodes { quantized, saturated }, operand, role, gemms)
    }

    fn multiply(
        role: GemmRole,
        factors: [MeasuredCodes<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        let pending = || factors.each_ref().map(MeasuredCodes::pending);
        let operands = factors.each_ref().map(|MeasuredCodes { quantized, .. }| UnitOperand {
            codes: quantized.codes.clone(),
            scale: UnitScale::Tensor(quantized.scale.clone()),
        });
        multiply::<B>(role, operands, pending, dtype, gemms)
    }
}

/// Multiplies two operands, and records the product.
pub(super) fn multiply<B: Fp8Engine>(
    role: GemmRole,
    [lhs, rhs]: [UnitOperand<B>; 2],
    pending: impl FnOnce() -> [PendingOperand; 2],
    dtype: DType,
    gemms: &Gemms,
) -> FloatTensor<B> {
    let note = new_note();
    if let Some(note) = &note {
        let ran = PendingRan::noted::<B>(note, lhs.codes.device());
        gemms.record(role, pending, ran);
    }
    B::fp8_matmul_on_unit(lhs, rhs, UnitOptions { dtype, otherwise: gemms.otherwise(), note })
}

/// An operand as it stands in a product.
fn place<B: Fp8Engine>(
    operand: MeasuredCodes<B>,
    which: Operand,
    role: GemmRole,
    gemms: &Gemms,
) -> MeasuredCodes<B> {
    let MeasuredCodes { quantized, saturated } = operand;
    let codes = match gemms.is_flat() {
        true => join::<B>(quantized.codes),
        false => quantized.codes,
    };
    let codes = match is_transposed(which, role) {
        true => transpose::<B>(codes),
        false => codes,
    };
    MeasuredCodes { quantized: QuantizedCodes { codes, ..quantized }, saturated }
}

/// Whether an operand stands transposed in a product.
pub(super) fn is_transposed(operand: Operand, role: GemmRole) -> bool {
    matches!(
        (role, operand),
        (GemmRole::GradInput, Operand::Weight) | (GemmRole::GradWeight, Operand::Input)
    )
}

/// Whether a product sums over the last dimension of an operand, as it lies before it is transposed: see the table in [`rowwise`](super::rowwise).
pub(super) fn sums_columns(operand: Operand, role: GemmRole) -> bool {
    match role {
        GemmRole::Output => operand == Operand::Input,
        GemmRole::GradInput => true,
        GemmRole::GradWeight => false,
    }
}

/// Joins all dimensions but the last.
fn join<B: Fp8Engine>(codes: CodesPrimitive<B>) -> CodesPrimitive<B> {
    let shape = codes.shape();
    let columns = shape[shape.num_dims() - 1];
    let joined = Shape::new([shape.num_elements() / columns, columns]);
    match joined == shape {
        true => codes,
        false => map::<B>(codes, |codes| B::int_reshape(codes, joined)),
    }
}

/// Swaps the last two dimensions.
pub(super) fn transpose<B: Fp8Engine>(codes: CodesPrimitive<B>) -> CodesPrimitive<B> {
    map::<B>(codes, B::int_transpose)
}

fn map<B: Fp8Engine>(
    codes: CodesPrimitive<B>,
    f: impl FnOnce(IntTensor<B>) -> IntTensor<B>,
) -> CodesPrimitive<B> {
    match codes {
        CodesPrimitive::Bytes(codes, format) => CodesPrimitive::Bytes(f(codes), format),
        _ => unreachable!("a matrix unit takes codes of one byte"),
    }
}
