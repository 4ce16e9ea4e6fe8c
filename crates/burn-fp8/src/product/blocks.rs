//! The three products with a scale for each block: MXFP8, and blocks of 128.
//!
//! Elements that are summed have several scales, so operands are multiplied by theirs before the product: in f32, or, where they are powers of two, on a
//! matrix unit of the CPU, whose bf16 numbers take them without loss; tensor cores take codes and scales. The three products sum
//! over different dimensions. An operand whose blocks are longer than wide is quantized for each of its products, from what it was before;
//! square blocks serve both.

use core::marker::PhantomData;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use burn_fp8_core::{Block, GemmRole, Operand};

use super::operand::{MeasuredBlocks, SavedOperand};
use super::scheme::{Gemms, Scheme, Uses};
use super::{native, units};
use crate::engine::{
    BlockCodes, Fp8Engine, QuantizeBlocks, Scalar, UnitOperand, UnitScale, native_gemm_of_blocks,
    portable,
};
use crate::report::{self, PendingRan};

/// Codes with a scale for each block. `F` says in which form they are multiplied.
pub(crate) struct Blocks<F = OfValues>(PhantomData<F>);

/// In which form codes are multiplied.
pub(crate) trait Form<B: Fp8Engine> {
    /// Whether an operand is quantized transposed, to have the dimension contiguous that is summed over.
    fn turns(_operand: Operand, _role: GemmRole) -> bool {
        false
    }

    /// Multiplies two operands, and records the product.
    fn multiply(
        role: GemmRole,
        factors: [Factor<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B>;
}

/// Decoded and multiplied by their scales, in f32.
pub(crate) struct OfValues;

impl<B: Fp8Engine> Form<B> for OfValues {
    fn multiply(
        role: GemmRole,
        factors: [Factor<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        gemms.record_emulated(role, || factors.each_ref().map(|factor| factor.operand.pending()));
        let [lhs, rhs] = factors.map(|Factor { operand, transposed }| {
            let values = B::fp8_dequantize_blocks(operand.codes);
            if transposed { B::float_transpose(values) } else { values }
        });
        let output = B::fp8_matmul_values(lhs, rhs);
        match dtype {
            DType::F32 => output,
            dtype => B::float_cast(output, dtype.into()),
        }
    }
}

/// As they are, on a matrix unit of the CPU.
pub(crate) struct OfCodes;

impl<B: Fp8Engine> Form<B> for OfCodes {
    fn multiply(
        role: GemmRole,
        factors: [Factor<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        let pending = || factors.each_ref().map(|factor| factor.operand.pending());
        let operands = factors.each_ref().map(|Factor { operand, transposed }| {
            let BlockCodes { codes, scales, block: [rows, columns], .. } = operand.codes.clone();
            let (codes, scales, block) = match transposed {
                true => {
                    let scales = B::float_transpose(scales);
                    (units::transpose::<B>(codes), scales, [columns, rows])
                }
                false => (codes, scales, [rows, columns]),
            };
            let are_powers_of_two = gemms.recipe.has_powers_of_two();
            UnitOperand { codes, scale: UnitScale::Blocks { scales, block, are_powers_of_two } }
        });
        units::multiply::<B>(role, operands, pending, dtype, gemms)
    }
}

/// As they are, on tensor cores, which want the dimension contiguous that is summed over: see the table in [`native`].
pub(crate) struct OfTensorCores;

impl<B: Fp8Engine> Form<B> for OfTensorCores {
    fn turns(operand: Operand, role: GemmRole) -> bool {
        native::is_transposed(operand, role)
    }

    fn multiply(
        role: GemmRole,
        factors: [Factor<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        let options = native::options(role, dtype, gemms);
        if let Some(note) = &options.note {
            let ran = PendingRan::noted::<B>(note, factors[0].operand.codes.codes.device());
            gemms.record(role, || factors.each_ref().map(|factor| factor.operand.pending()), ran);
        }
        let [lhs, rhs] = factors.map(|factor| factor.operand.codes);
        native_gemm_of_blocks::<B>(lhs, rhs, options)
    }
}

/// An operand quantized for each of its products.
pub(crate) struct QuantizedBlocks<B: Fp8Engine> {
    now: Vec<(GemmRole, MeasuredBlocks<B>)>,
    later: Option<MeasuredBlocks<B>>,
}

/// An operand in its place in a product.
pub(crate) struct Factor<B: Fp8Engine> {
    operand: MeasuredBlocks<B>,
    transposed: bool,
}

/// Whoever chooses the scales of whole tensors has no say here.
impl<B: Fp8Engine, Q, F: Form<B>> Scheme<B, Q> for Blocks<F> {
    type Quantized = QuantizedBlocks<B>;
    type Factor = Factor<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        _quantizer: &Q,
        gemms: &Gemms,
    ) -> QuantizedBlocks<B> {
        let tensor = gemms.join::<B>(tensor.clone());
        let mut known: Vec<(bool, MeasuredBlocks<B>)> = vec![];
        let mut quantize = |role| {
            let turned = F::turns(operand, role);
            let [rows, columns] = block_in_memory(operand, role, gemms);
            let block = if turned { [columns, rows] } else { [rows, columns] };
            let is_same = |known: &&(bool, MeasuredBlocks<B>)| {
                known.0 == turned && known.1.codes.block == block
            };
            if let Some((_, known)) = known.iter().find(is_same) {
                return known.clone();
            }
            let tensor = match turned {
                true => B::float_transpose(tensor.clone()),
                false => tensor.clone(),
            };
            let quantized = quantize::<B>(&tensor, operand, block, gemms);
            known.push((turned, quantized.clone()));
            quantized
        };
        let now = uses.now.iter().map(|role| (*role, quantize(*role))).collect();
        QuantizedBlocks { now, later: uses.later.map(quantize) }
    }

    /// There is no history of scales of blocks.
    fn amax(_quantized: &QuantizedBlocks<B>) -> Option<Scalar<B>> {
        None
    }

    fn scale(_quantized: &QuantizedBlocks<B>) -> Option<Scalar<B>> {
        None
    }

    fn factor(
        quantized: &QuantizedBlocks<B>,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> Factor<B> {
        let of_role = quantized.now.iter().find(|(quantized_for, _)| *quantized_for == role);
        let (_, blocks) = of_role.expect("quantized for the products of this pass");
        place(blocks.clone(), operand, role)
    }

    fn keep(quantized: &QuantizedBlocks<B>, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
        SavedOperand::Blocks(quantized.later.clone().expect("quantized for the later product"))
    }

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> Factor<B> {
        let SavedOperand::Blocks(blocks) = saved else {
            unreachable!("a product of blocks finds the blocks that it has kept");
        };
        place(blocks, operand, role)
    }

    fn multiply(
        role: GemmRole,
        factors: [Factor<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        F::multiply(role, factors, dtype, gemms)
    }
}

fn quantize<B: Fp8Engine>(
    tensor: &FloatTensor<B>,
    operand: Operand,
    block: [usize; 2],
    gemms: &Gemms,
) -> MeasuredBlocks<B> {
    let recipe = gemms.recipe;
    let format = recipe.formats.of(operand);
    let codes = B::fp8_quantize_blocks(tensor.clone(), QuantizeBlocks { block, format, recipe });
    let saturated = report::is_tracing().then(|| {
        let shape = tensor.shape();
        let grid = portable::blocks::Grid::new(&shape, block);
        let scales = grid.spread::<B>(codes.scales.clone(), shape);
        portable::count_saturated_by::<B>(tensor, scales, format)
    });
    MeasuredBlocks { codes, granularity: recipe.granularity(), saturated }
}

/// The rows and columns of a block of an operand, as it lies before it is transposed.
fn block_in_memory(operand: Operand, role: GemmRole, gemms: &Gemms) -> [usize; 2] {
    let block = gemms.recipe.granularity().block(operand);
    let Block { along, across } = block.expect("a recipe with blocks");
    match units::sums_columns(operand, role) {
        true => [across, along],
        false => [along, across],
    }
}

/// An operand as it stands in a product.
fn place<B: Fp8Engine>(operand: MeasuredBlocks<B>, which: Operand, role: GemmRole) -> Factor<B> {
    Factor { operand, transposed: units::is_transposed(which, role) }
}
