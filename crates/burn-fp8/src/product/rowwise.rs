//! The three products with a scale for each row of the left operand and each column of the right one, emulated.
//!
//! A scale must be the same for all elements that are summed, and the three products sum over different dimensions:
//!
//! | role          | summed over | left: scales             | right: scales            |
//! |---------------|-------------|--------------------------|--------------------------|
//! | `output`      | K           | x `[M, K]`: `[M, 1]`     | w `[K, N]`: `[1, N]`     |
//! | `grad_input`  | N           | g `[M, N]`: `[M, 1]`     | wᵀ `[N, K]`: `[1, K]`    |
//! | `grad_weight` | M           | xᵀ `[K, M]`: `[K, 1]`    | g `[M, N]`: `[1, N]`     |
//!
//! so each operand is quantized once for each product that it is in.

use core::marker::PhantomData;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::operand::{Rows, SavedOperand};
use super::scheme::{Gemms, Scheme, Uses};
use super::units;
use crate::engine::{
    CodesPrimitive, Fp8Engine, QuantizeRows, Scalar, UnitOperand, UnitScale, portable,
};
use crate::report;

/// Codes with scales per row or column. `F` says in which form they are multiplied.
pub(crate) struct Rowwise<F = OfValues>(PhantomData<F>);

/// In which form codes are multiplied.
pub(crate) trait Form<B: Fp8Engine> {
    /// That form.
    type Operand: Clone;
    /// Whether it is made without codes.
    const VALUES: bool;

    fn of(codes: CodesPrimitive<B>) -> Self::Operand;

    fn transpose(operand: Self::Operand) -> Self::Operand;

    /// Multiplies two operands, and records the product.
    fn multiply(
        role: GemmRole,
        operands: [Rows<B, Self::Operand>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B>;
}

/// Decoded, in f32.
pub(crate) struct OfValues;

impl<B: Fp8Engine> Form<B> for OfValues {
    type Operand = FloatTensor<B>;
    const VALUES: bool = true;

    fn of(codes: CodesPrimitive<B>) -> FloatTensor<B> {
        B::fp8_values(codes)
    }

    fn transpose(values: FloatTensor<B>) -> FloatTensor<B> {
        B::float_transpose(values)
    }

    fn multiply(
        role: GemmRole,
        operands: [Rows<B, FloatTensor<B>>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        gemms.record_emulated(role, || operands.each_ref().map(Rows::pending));
        let [lhs, rhs] = operands;
        let output = B::fp8_matmul_values(lhs.codes, rhs.codes);
        let output = B::fp8_rescale_rows(output, lhs.scales, rhs.scales);
        match dtype {
            DType::F32 => output,
            dtype => B::float_cast(output, dtype.into()),
        }
    }
}

/// As they are, on a matrix unit of the CPU.
pub(crate) struct OfCodes;

impl<B: Fp8Engine> Form<B> for OfCodes {
    type Operand = CodesPrimitive<B>;
    const VALUES: bool = false;

    fn of(codes: CodesPrimitive<B>) -> CodesPrimitive<B> {
        codes
    }

    fn transpose(codes: CodesPrimitive<B>) -> CodesPrimitive<B> {
        units::transpose::<B>(codes)
    }

    fn multiply(
        role: GemmRole,
        operands: [Rows<B, CodesPrimitive<B>>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        let pending = || operands.each_ref().map(Rows::pending);
        let factors = operands.each_ref().map(|rows| UnitOperand {
            codes: rows.codes.clone(),
            scale: UnitScale::Rows(rows.scales.clone()),
        });
        units::multiply::<B>(role, factors, pending, dtype, gemms)
    }
}

/// An operand quantized for each of its products.
pub(crate) struct QuantizedRows<B: Fp8Engine, T> {
    now: Vec<(GemmRole, Rows<B, T>)>,
    later: Option<Rows<B, CodesPrimitive<B>>>,
}

/// Whoever chooses the scales of whole tensors has no say here.
impl<B: Fp8Engine, Q, F: Form<B>> Scheme<B, Q> for Rowwise<F> {
    type Quantized = QuantizedRows<B, F::Operand>;
    type Factor = Rows<B, F::Operand>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        _quantizer: &Q,
        gemms: &Gemms,
    ) -> Self::Quantized {
        let tensor = gemms.join::<B>(tensor.clone());
        let last = tensor.rank() - 1;
        let recipe = gemms.recipe;
        let format = recipe.formats.of(operand);
        let quantize = |role, values| {
            let dim = if units::sums_columns(operand, role) { last } else { last - 1 };
            let request = QuantizeRows { dim, format, recipe, values };
            let (codes, scales) = B::fp8_quantize_rows(tensor.clone(), request);
            let saturated = report::is_tracing()
                .then(|| portable::count_saturated_by::<B>(&tensor, scales.clone(), format));
            Rows { codes, scales, format, saturated }
        };
        let now = uses.now.iter().map(|&role| (role, quantize(role, F::VALUES).map(F::of)));
        QuantizedRows { now: now.collect(), later: uses.later.map(|role| quantize(role, false)) }
    }

    /// There is no history of scales per row.
    fn amax(_quantized: &Self::Quantized) -> Option<Scalar<B>> {
        None
    }

    fn scale(_quantized: &Self::Quantized) -> Option<Scalar<B>> {
        None
    }

    fn factor(
        quantized: &Self::Quantized,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> Self::Factor {
        let of_role = quantized.now.iter().find(|(quantized_for, _)| *quantized_for == role);
        let (_, rows) = of_role.expect("quantized for the products of this pass");
        place::<B, F>(rows.clone(), operand, role)
    }

    fn keep(quantized: &Self::Quantized, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
        SavedOperand::Rows(quantized.later.clone().expect("quantized for the later product"))
    }

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> Self::Factor {
        let SavedOperand::Rows(rows) = saved else {
            unreachable!("a row-wise product finds the rows that it has kept");
        };
        place::<B, F>(rows.map(F::of), operand, role)
    }

    fn multiply(
        role: GemmRole,
        factors: [Self::Factor; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        F::multiply(role, factors, dtype, gemms)
    }
}

/// An operand as it stands in a product.
fn place<B: Fp8Engine, F: Form<B>>(
    rows: Rows<B, F::Operand>,
    operand: Operand,
    role: GemmRole,
) -> Rows<B, F::Operand> {
    match units::is_transposed(operand, role) {
        true => {
            let scales = B::float_transpose(rows.scales.clone());
            Rows { scales, ..rows.map(F::transpose) }
        }
        false => rows,
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Distribution, Shape, Tensor};
    use burn_fp8_core::{Fp8Format, Gemm, ProductKind, Recipe};

    use super::*;
    use crate::config::Fp8Config;
    use crate::product::gemms::{Forward, forward};
    use crate::product::plan::Product;

    /// The input is kept for `grad_weight`, with a scale for each of its columns, the weight for `grad_input`.
    #[test]
    fn saved_operands_take_one_byte_an_element_and_a_scale_per_row() {
        let random = |shape: [usize; 2]| {
            let tensor =
                Tensor::<Flex, 2>::random(shape, Distribution::Default, &Default::default());
            tensor.into_primitive().tensor()
        };
        let (x, w) = (random([16, 48]), random([48, 24]));
        let product = Fp8Config::default().with_recipe(Recipe::rowwise()).scope(|| {
            let gemm = Gemm::matrix(16, 24, 48);
            Product::plan::<Flex>(ProductKind::Matmul, GemmRole::Output, gemm, [&x, &w])
                .expect("large enough")
        });
        let Forward { saved, .. } =
            forward::<Flex, (), Rowwise>(x, w, &(), &product.gemms, [true, true]);
        let scales = [Shape::new([1, 48]), Shape::new([48, 1])];
        for ((saved, elements), scales) in saved.into_iter().zip([16 * 48, 48 * 24]).zip(scales) {
            let Some(SavedOperand::Rows(rows)) = saved else { panic!("in FP8") };
            let CodesPrimitive::Bytes(codes, Fp8Format::E4M3) = rows.codes else {
                panic!("Flex holds bytes");
            };
            assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            assert_eq!(rows.scales.shape(), scales);
        }
    }
}
