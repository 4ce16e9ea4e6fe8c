//! The three products, emulated: quantize, multiply the decoded codes in f32, apply both scales.

use core::marker::PhantomData;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use burn_fp8_core::{GemmRole, Operand};

use super::operand::{Measured, SavedOperand};
use super::scheme::{Gemms, Quantizer, Scheme, Uses};
use crate::engine::{Fp8Engine, Quantized, Scalar};

/// Decoded codes. Operands are quantized in the layout they have and joined to matrices afterwards: quantizing takes any layout
/// without a copy, joining dimensions does not.
/// `M` says how two operands are multiplied.
pub(crate) struct Emulated<M = ByCodes>(PhantomData<M>);

/// How two quantized operands are multiplied.
pub(crate) trait Multiply<B: Fp8Engine> {
    /// The product, in f32 or already of this type.
    fn multiply(factors: [Quantized<B>; 2], dtype: DType) -> FloatTensor<B>;
}

/// Codes are multiplied, in f32 whatever the type of the result (products of codes overflow f16), the product then by both scales.
pub(crate) struct ByCodes;

impl<B: Fp8Engine> Multiply<B> for ByCodes {
    fn multiply([lhs, rhs]: [Quantized<B>; 2], _dtype: DType) -> FloatTensor<B> {
        let output = B::fp8_matmul_values(lhs.values, rhs.values);
        B::fp8_rescale(output, &lhs.scale, &rhs.scale)
    }
}

impl<B: Fp8Engine, Q: Quantizer<B>, M: Multiply<B>> Scheme<B, Q> for Emulated<M> {
    type Quantized = Measured<B>;
    type Factor = Measured<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        quantizer: &Q,
        _gemms: &Gemms,
    ) -> Measured<B> {
        Measured::new(tensor, quantizer.quantize(tensor, operand, uses.later.is_some()))
    }

    fn amax(quantized: &Measured<B>) -> Option<Scalar<B>> {
        quantized.quantized.amax.clone()
    }

    fn scale(quantized: &Measured<B>) -> Option<Scalar<B>> {
        Some(quantized.quantized.scale.clone())
    }

    fn factor(
        quantized: &Measured<B>,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> Measured<B> {
        place(quantized.clone(), operand, role, gemms)
    }

    fn keep(quantized: &Measured<B>, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
        SavedOperand::Fp8(quantized.codes().expect("codes were asked for"))
    }

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        gemms: &Gemms,
    ) -> Measured<B> {
        let SavedOperand::Fp8(codes) = saved else {
            unreachable!("an emulated product finds the codes that it has kept");
        };
        place(codes.restore(), operand, role, gemms)
    }

    fn multiply(
        role: GemmRole,
        factors: [Measured<B>; 2],
        dtype: DType,
        gemms: &Gemms,
    ) -> FloatTensor<B> {
        gemms.record_emulated(role, || factors.each_ref().map(Measured::pending));
        let output = M::multiply(factors.map(|factor| factor.quantized), dtype);
        match output.dtype() == dtype {
            true => output,
            false => B::float_cast(output, dtype.into()),
        }
    }
}

/// An operand as it stands in a product.
fn place<B: Backend>(
    operand: Measured<B>,
    which: Operand,
    role: GemmRole,
    gemms: &Gemms,
) -> Measured<B> {
    let operand = operand.map(|values| gemms.join::<B>(values));
    match (role, which) {
        (GemmRole::GradInput, Operand::Weight) | (GemmRole::GradWeight, Operand::Input) => {
            operand.map(B::float_transpose)
        }
        _ => operand,
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{DType, Distribution, Shape, Tensor, TensorMetadata};
    use burn_fp8_core::{Fp8Format, Gemm, GemmRole, ProductKind};

    use super::*;
    use crate::engine::CodesPrimitive;
    use crate::product::gemms::{Forward, forward};
    use crate::product::operand::SavedCodes;
    use crate::product::plan::Product;

    /// What a backward step keeps of its operands: those asked for, one byte an element.
    #[test]
    fn saved_operands_take_one_byte_an_element() {
        let random = |shape: [usize; 3]| {
            let tensor =
                Tensor::<Flex, 3>::random(shape, Distribution::Default, &Default::default());
            tensor.into_primitive().tensor()
        };
        let (x, w) = (random([2, 16, 32]), random([1, 32, 24]));
        let gemm = Gemm::from_shapes(&x.shape(), &w.shape()).expect("the shapes multiply");
        let product = Product::plan::<Flex>(ProductKind::Matmul, GemmRole::Output, gemm, [&x, &w])
            .expect("large enough");
        for save in [[true, false], [false, true], [true, true], [false, false]] {
            let Forward { output, saved, .. } =
                forward::<Flex, _, Emulated>(x.clone(), w.clone(), &product, &product.gemms, save);
            assert_eq!(output.shape(), Shape::new([2, 16, 24]));
            for (saved, (save, elements)) in saved.iter().zip(save.iter().zip([1024, 768])) {
                assert_eq!(saved.is_some(), *save);
                let Some(saved) = saved else { continue };
                let SavedOperand::Fp8(SavedCodes { codes, .. }) = saved else {
                    panic!("in FP8");
                };
                let CodesPrimitive::Bytes(codes, Fp8Format::E4M3) = codes else {
                    panic!("Flex holds bytes");
                };
                assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            }
        }
    }
}
