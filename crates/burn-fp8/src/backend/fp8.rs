//! What the FP8 layers need of a backend, for `Fp8Backend<B>`: it is what `B` does. Nothing is quantized twice.

use burn::tensor::ops::FloatTensor;

use super::convert::Rewrap;
use crate::matmul::{Codes, Fp8Matmul, Product, Quantize, Quantized};
use crate::{Fp8Backend, Scalar};

impl<B: Fp8Matmul> Fp8Matmul for Fp8Backend<B> {
    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        B::fp8_quantize(tensor, request.rewrap()).rewrap()
    }

    fn fp8_values(codes: Codes<Self>) -> FloatTensor<Self> {
        B::fp8_values(codes.rewrap())
    }

    fn fp8_rescale(
        tensor: FloatTensor<Self>,
        lhs: &Scalar<Self>,
        rhs: &Scalar<Self>,
    ) -> FloatTensor<Self> {
        B::fp8_rescale(tensor, &lhs.clone().rewrap(), &rhs.clone().rewrap())
    }

    fn fp8_native(device: &Self::Device) -> Result<(), String> {
        B::fp8_native(device)
    }

    fn fp8_plain_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_plain_matmul(lhs, rhs)
    }

    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: Codes<Self>) -> FloatTensor<Self> {
        B::fp8_matmul_codes(x, codes.rewrap())
    }

    fn fp8_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_matmul(lhs, rhs, product)
    }

    fn fp8_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear(x, weight, bias, product)
    }

    fn fp8_linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear_x_backward(weight, output_grad, product)
    }

    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        B::fp8_linear_weight_backward(x, output_grad, product)
    }
}
