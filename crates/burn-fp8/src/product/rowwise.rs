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

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::operand::{Rows, SavedOperand};
use super::scheme::{Gemms, Scheme, Uses};
use crate::engine::{CodesPrimitive, Fp8Engine, QuantizeRows, Scalar, portable};
use crate::report;

/// Decoded codes with scales per row or column.
pub(crate) struct Rowwise;

/// An operand quantized for each of its products.
pub(crate) struct QuantizedRows<B: Fp8Engine> {
    now: Vec<(GemmRole, Rows<B, FloatTensor<B>>)>,
    later: Option<Rows<B, CodesPrimitive<B>>>,
}

/// Whoever chooses the scales of whole tensors has no say here.
impl<B: Fp8Engine, Q> Scheme<B, Q> for Rowwise {
    type Quantized = QuantizedRows<B>;
    type Factor = Rows<B, FloatTensor<B>>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        _quantizer: &Q,
        gemms: &Gemms,
    ) -> QuantizedRows<B> {
        let tensor = gemms.join::<B>(tensor.clone());
        let last = tensor.rank() - 1;
        let recipe = gemms.recipe;
        let format = recipe.formats.of(operand);
        let quantize = |role, values| {
            let dim = if sums_columns(operand, role) { last } else { last - 1 };
            let request = QuantizeRows { dim, format, recipe, values };
            let (codes, scales) = B::fp8_quantize_rows(tensor.clone(), request);
            let saturated = report::is_tracing()
                .then(|| portable::count_saturated_by::<B>(&tensor, scales.clone(), format));
            Rows { codes, scales, format, saturated }
        };
        let now = uses.now.iter().map(|&role| (role, quantize(role, true).map(B::fp8_values)));
        QuantizedRows { now: now.collect(), later: uses.later.map(|role| quantize(role, false)) }
    }

    /// There is no history of scales per row.
    fn amax(_quantized: &QuantizedRows<B>) -> Option<Scalar<B>> {
        None
    }

    fn scale(_quantized: &QuantizedRows<B>) -> Option<Scalar<B>> {
        None
    }

    fn factor(
        quantized: &QuantizedRows<B>,
        operand: Operand,
        role: GemmRole,
        _gemms: &Gemms,
    ) -> Self::Factor {
        let of_role = quantized.now.iter().find(|(quantized_for, _)| *quantized_for == role);
        let (_, rows) = of_role.expect("quantized for the products of this pass");
        rows.clone().place(operand, role)
    }

    fn keep(quantized: &QuantizedRows<B>, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
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
        rows.map(B::fp8_values).place(operand, role)
    }

    fn multiply(
        role: GemmRole,
        factors: [Self::Factor; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        gemms.record_emulated(role, || factors.each_ref().map(Rows::pending));
        let [lhs, rhs] = factors;
        let output = B::fp8_matmul_values(lhs.codes, rhs.codes);
        let output = B::fp8_rescale_rows(output, lhs.scales, rhs.scales);
        match dtype {
            DType::F32 => output,
            dtype => B::float_cast(output, dtype.into()),
        }
    }
}

/// Whether a product sums over the last dimension of an operand, as it lies before it is transposed: see the table above.
fn sums_columns(operand: Operand, role: GemmRole) -> bool {
    match role {
        GemmRole::Output => operand == Operand::Input,
        GemmRole::GradInput => true,
        GemmRole::GradWeight => false,
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
