//! The three products, emulated: quantize, multiply the decoded codes in f32, apply both scales.

use burn::tensor::DType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn_fp8_core::{GemmRole, Operand};

use super::operand::Measured;
use super::products::{Engine, Uses};
use super::{Fp8Matmul, Product, SavedOperand};
use crate::Scalar;

/// Decoded codes. Operands are quantized in the layout they have and joined to matrices afterwards: quantizing takes any layout
/// without a copy, joining dimensions does not.
pub(super) struct Emulated;

impl<B: Fp8Matmul> Engine<B> for Emulated {
    type Quantized = Measured<B>;
    type Factor = Measured<B>;

    fn quantize(
        tensor: &FloatTensor<B>,
        operand: Operand,
        uses: &Uses,
        product: &Product,
    ) -> Measured<B> {
        let save = uses.later.is_some();
        match operand {
            Operand::Weight => product.quantize_weight::<B>(tensor, save),
            operand => Measured::quantize(tensor, product.quantize::<B>(operand, save, tensor)),
        }
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
        product: &Product,
    ) -> Measured<B> {
        place(quantized.clone(), operand, role, product)
    }

    fn keep(quantized: &Measured<B>, _operand: Operand, _role: GemmRole) -> SavedOperand<B> {
        SavedOperand::Fp8(quantized.codes().expect("codes were asked for"))
    }

    fn restore(
        saved: SavedOperand<B>,
        operand: Operand,
        role: GemmRole,
        product: &Product,
    ) -> Measured<B> {
        let SavedOperand::Fp8(codes) = saved else {
            unreachable!("an emulated product finds the codes that it has kept");
        };
        place(codes.restore(None), operand, role, product)
    }

    fn multiply(
        role: GemmRole,
        factors: [Measured<B>; 2],
        dtype: DType,
        product: &Product,
    ) -> FloatTensor<B> {
        product.record(role, factors.each_ref());
        let [lhs, rhs] = factors.map(|factor| factor.quantized);
        let output = B::fp8_plain_matmul(lhs.values, rhs.values);
        let output = B::fp8_rescale(output, &lhs.scale, &rhs.scale);
        match dtype {
            DType::F32 => output,
            dtype => B::float_cast(output, dtype.into()),
        }
    }
}

/// An operand as it stands in a product.
fn place<B: Backend>(
    operand: Measured<B>,
    which: Operand,
    role: GemmRole,
    product: &Product,
) -> Measured<B> {
    let operand = operand.map(|values| product.join::<B>(values));
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
    use crate::matmul::Codes;
    use crate::matmul::operand::SavedCodes;
    use crate::matmul::products::{Forward, forward};

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
                forward::<Flex, Emulated>(x.clone(), w.clone(), &product, save);
            assert_eq!(output.shape(), Shape::new([2, 16, 24]));
            for (saved, (save, elements)) in saved.iter().zip(save.iter().zip([1024, 768])) {
                assert_eq!(saved.is_some(), *save);
                let Some(saved) = saved else { continue };
                let SavedOperand::Fp8(SavedCodes { codes, .. }) = saved else {
                    panic!("in FP8");
                };
                let Codes::Bytes(codes, Fp8Format::E4M3) = codes else {
                    panic!("Flex holds bytes");
                };
                assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, elements));
            }
        }
    }
}
