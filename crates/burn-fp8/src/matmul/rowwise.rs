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

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, TensorMetadata};
use burn_fp8_core::{Fp8Format, GemmRole, Operand, Overflow, Recipe};

use super::products::{Engine, Uses};
use super::{Codes, Fp8Matmul, Product, Quantize, SavedOperand, ScaleRule, portable};
use crate::scaling::device;
use crate::{Scalar, report};

/// Decoded codes with scales per row or column.
pub(super) struct Rowwise;

/// An operand quantized for each of its products.
pub(super) struct QuantizedRows<B: Fp8Matmul> {
    now: Vec<(GemmRole, Rows<B, FloatTensor<B>>)>,
    later: Option<Rows<B, Codes<B>>>,
}

/// Codes, or their values, with scales that broadcast against them.
#[derive(Clone, Debug)]
pub(crate) struct Rows<B: Fp8Matmul, T> {
    codes: T,
    /// f32, 1 along the dimension that is summed over.
    pub(crate) scales: FloatTensor<B>,
    pub(crate) format: Fp8Format,
    /// How many finite elements were beyond the largest number. Counted while a trace runs.
    pub(crate) saturated: Option<IntTensor<B>>,
}

impl<B: Fp8Matmul, T> Rows<B, T> {
    fn map<U>(self, codes: impl FnOnce(T) -> U) -> Rows<B, U> {
        let Self { codes: old, scales, format, saturated } = self;
        Rows { codes: codes(old), scales, format, saturated }
    }
}

impl<B: Fp8Matmul> Rows<B, FloatTensor<B>> {
    /// The operand as it stands in a product.
    fn place(self, operand: Operand, role: GemmRole) -> Self {
        let transposed = matches!(
            (role, operand),
            (GemmRole::GradInput, Operand::Weight) | (GemmRole::GradWeight, Operand::Input)
        );
        match transposed {
            true => {
                let scales = B::float_transpose(self.scales.clone());
                Self { scales, ..self.map(B::float_transpose) }
            }
            false => self,
        }
    }
}

/// What to quantize a tensor to, with a scale for all elements along one dimension.
#[derive(Clone, Copy, Debug)]
pub struct QuantizeRows {
    /// The dimension along which elements share a scale: the last one, or the one before.
    pub dim: usize,
    /// The format of the codes.
    pub format: Fp8Format,
    /// How a scale follows from an amax.
    pub recipe: Recipe,
    /// Whether the values are wanted, to be multiplied, or codes, to be kept.
    pub values: bool,
}

/// Codes or their values, and scales that broadcast against them, f32, from tensor operations and [`Fp8Matmul::fp8_quantize`].
pub(super) fn quantize_rows<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    request: QuantizeRows,
) -> (Codes<B>, FloatTensor<B>) {
    let QuantizeRows { dim, format, recipe, values } = request;
    let tensor = B::float_cast(tensor, FloatDType::F32);
    let amax = device::amax_dim::<B>(tensor.clone(), dim);
    let scales = device::from_amax::<B>(amax, format, recipe);
    let quotient = B::float_div(tensor, scales.clone());
    // The division is done: what is left to quantize has the scale 1, and dividing by that is exact.
    let scale = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
    let codes = match values {
        true => {
            Codes::Values(B::fp8_quantize(quotient, Quantize { format, scale, save: false }).values)
        }
        false => B::fp8_quantize_codes(quotient, format, scale).0,
    };
    (codes, scales)
}

impl<B: Fp8Matmul> Engine<B> for Rowwise {
    type Quantized = QuantizedRows<B>;
    type Factor = Rows<B, FloatTensor<B>>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        product: &Product,
    ) -> QuantizedRows<B> {
        let tensor = product.join::<B>(tensor.clone());
        let last = tensor.rank() - 1;
        let recipe = *product.recipe();
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
        _product: &Product,
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
        _product: &Product,
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
        product: &Product,
    ) -> FloatTensor<B> {
        product.record_rows(role, factors.each_ref());
        let [lhs, rhs] = factors;
        let output = B::fp8_plain_matmul(lhs.codes, rhs.codes);
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
    use burn_fp8_core::{Gemm, ProductKind};

    use super::*;
    use crate::Fp8Config;
    use crate::matmul::products::{Forward, forward};

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
        let Forward { saved, .. } = forward::<Flex, Rowwise>(x, w, &product, [true, true]);
        let scales = [Shape::new([1, 48]), Shape::new([48, 1])];
        for ((saved, elements), scales) in saved.into_iter().zip([16 * 48, 48 * 24]).zip(scales) {
            let Some(SavedOperand::Rows(rows)) = saved else { panic!("in FP8") };
            let Codes::Bytes(codes, Fp8Format::E4M3) = rows.codes else {
                panic!("Flex holds bytes");
            };
            assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            assert_eq!(rows.scales.shape(), scales);
        }
    }
}
