//! How FP8 products run.
//!
//! ```text
//! intercept → Product::plan (FP8 or not?) → Fp8Matmul::fp8_matmul / fp8_linear
//!                 Autodiff<B>: autodiff (quantizes once, saves codes, registers the backward step)
//!                 any other B: run
//!                     native (on tensor cores): Fp8Matmul::fp8_quantize_matrix, fp8_gemm
//!                     emulated (quantize → multiply codes → apply both scales):
//!                                  Fp8Matmul::fp8_quantize: portable tensor operations, or slices on Flex
//! ```

mod autodiff;
mod backends;
#[cfg(feature = "cubecl")]
mod cube;
mod emulated;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "fusion")]
mod fusion;
mod matrix;
mod native;
mod operand;
pub(crate) mod portable;
mod problem;
mod product;
mod products;
mod rowwise;
mod run;
mod scaled;

use burn::tensor::FloatDType;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

pub(crate) use matrix::{
    GemmNote, MeasuredMatrix, MeasuredOperand, Otherwise, native_gemm, new_note,
};
pub use matrix::{GemmOperand, GemmOptions, QuantizeMatrix, QuantizedMatrix};
pub use operand::{Codes, Quantize, Quantized, ScaleRule};
pub(crate) use operand::{Measured, SavedOperand};
pub(crate) use portable::on_device;
pub use problem::NativeProblem;
pub use product::Product;
pub(crate) use product::{linear_gemm, native_unavailable, record_high_precision, runs_natively};
pub(crate) use products::{add_bias, join, reshape};
#[doc(hidden)]
pub use rowwise::QuantizeRows;
pub(crate) use rowwise::Rows;
pub(crate) use scaled::emulated as emulated_scaled_matmul;
pub use scaled::{OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues};

use crate::ops::{DotOptions, QdqOptions, forward};
use crate::scaling::device;
use crate::{Capability, Fallback, Fp8Format, Scalar};

/// A backend whose matrix products [`Fp8Backend`](crate::Fp8Backend) can run in FP8.
///
/// Implemented for Burn's backends behind the features of their names, and for `Autodiff` of each. The owner of another
/// backend opts in with one line, and products are emulated with portable tensor operations:
///
/// ```text
/// impl burn_fp8::Fp8Matmul for MyBackend {}
/// ```
///
/// A backend with something faster overrides how tensors are quantized, perhaps with the slice functions of
/// [`burn_fp8_core::slice`](mod@burn_fp8_core::slice). Every override must give the same codes and scales, bit for
/// bit; sign and payload of NaN are free.
pub trait Fp8Matmul: Backend {
    /// Whether codes are made by kernels: packed, with scales and amaxes left on the device.
    #[doc(hidden)]
    const FP8_KERNELS: bool = false;

    /// Quantizes a non-empty tensor of type f32, f16, bf16 or flex32, of any shape and layout.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        portable::quantize::<Self>(tensor, request)
    }

    /// The codes of such a tensor and their scale, where nothing else is wanted.
    #[doc(hidden)]
    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (Codes<Self>, Scalar<Self>) {
        let quantized = Self::fp8_quantize(tensor, Quantize { format, scale, save: true });
        (quantized.codes.expect("asked for"), quantized.scale)
    }

    /// The codes of such a tensor, or their values, with a scale for all elements along a dimension. The scales broadcast against it.
    #[doc(hidden)]
    fn fp8_quantize_rows(
        tensor: FloatTensor<Self>,
        request: QuantizeRows,
    ) -> (Codes<Self>, FloatTensor<Self>) {
        rowwise::quantize_rows::<Self>(tensor, request)
    }

    /// The values of saved codes, without their scale: an f32 tensor of the shape that was quantized.
    fn fp8_values(codes: Codes<Self>) -> FloatTensor<Self> {
        portable::values::<Self>(codes)
    }

    /// Multiplies an f32 tensor, a product of codes, by both scales.
    ///
    /// The scales are multiplied with each other first, in f32, and kept finite.
    fn fp8_rescale(
        tensor: FloatTensor<Self>,
        lhs: &Scalar<Self>,
        rhs: &Scalar<Self>,
    ) -> FloatTensor<Self> {
        portable::rescale::<Self>(tensor, lhs, rhs)
    }

    /// The same with scales per row and column: `lhs` `[…, M, 1]` and `rhs` `[…, 1, N]`, f32.
    #[doc(hidden)]
    fn fp8_rescale_rows(
        tensor: FloatTensor<Self>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::rescale_by::<Self>(tensor, lhs, rhs)
    }

    /// Whether gradients are tracked for one of two tensors.
    #[doc(hidden)]
    fn fp8_is_tracked(tensors: [&FloatTensor<Self>; 2]) -> bool {
        let _ = tensors;
        false
    }

    /// A product in high precision, past any decorator.
    #[doc(hidden)]
    fn fp8_plain_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }

    /// Multiplies `x` `[M, K]`, f32, by the values of codes `[K, N]`, in f32.
    #[doc(hidden)]
    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: Codes<Self>) -> FloatTensor<Self> {
        Self::fp8_plain_matmul(x, Self::fp8_values(codes))
    }

    /// What this device can do in FP8. Asked for each product: the answer must be at hand.
    #[doc(hidden)]
    fn fp8_capability(device: &Self::Device) -> Capability {
        let _ = device;
        Capability::FakeQuantized { reason: "burn-fp8 has no native path for this backend".into() }
    }

    /// Whether a device with tensor cores has an algorithm for a product, else why not. On the calling thread, also where products run on
    /// another one.
    #[doc(hidden)]
    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        let _ = (device, problem);
        Ok(())
    }

    /// Quantizes a non-empty tensor, seen as a matrix, for products on tensor cores.
    #[doc(hidden)]
    fn fp8_quantize_matrix(
        tensor: FloatTensor<Self>,
        request: QuantizeMatrix<Self>,
    ) -> QuantizedMatrix<Self> {
        let _ = request;
        no_tensor_cores::<Self>(&Self::float_device(&tensor))
    }

    /// Multiplies `lhs` `[M, K]` by `rhs` `[N, K]` transposed, on tensor cores.
    #[doc(hidden)]
    fn fp8_gemm(
        lhs: GemmOperand<Self>,
        rhs: GemmOperand<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        let _ = (rhs, options);
        no_tensor_cores::<Self>(&Self::int_device(&lhs.words))
    }

    /// Runs `lhs` `[…, M, K]` times `rhs` `[…, K, N]` in FP8. The result has the type of `lhs`.
    #[doc(hidden)]
    fn fp8_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        run::matmul::<Self>(lhs, rhs, &product)
    }

    /// Runs `x` `[…, K]` times `weight` `[K, N]` in FP8 and adds `bias` `[N]`.
    #[doc(hidden)]
    fn fp8_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        product: Product,
    ) -> FloatTensor<Self> {
        run::linear::<Self>(x, weight, bias, &product)
    }

    /// Runs `output_grad` `[…, N]` times `weight` `[K, N]` transposed in FP8.
    #[doc(hidden)]
    fn fp8_linear_x_backward(
        weight: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        run::linear_x_backward::<Self>(weight, output_grad, &product)
    }

    /// Runs `x` `[…, K]` transposed times `output_grad` `[…, N]` in FP8, as one product over all leading dimensions.
    #[doc(hidden)]
    fn fp8_linear_weight_backward(
        x: FloatTensor<Self>,
        output_grad: FloatTensor<Self>,
        product: Product,
    ) -> FloatTensor<Self> {
        run::linear_weight_backward::<Self>(x, output_grad, &product)
    }

    /// [`scaled_matmul`](crate::scaled_matmul): `a` `[M, K]` times the transpose of `b_t` `[N, K]`, neither empty, never both E5M2.
    #[doc(hidden)]
    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        scaled::emulated::<Self>(a, b_t, request)
    }

    /// The largest magnitude of a tensor of any float type; NaN and infinities propagate. f32, shape `[1]`.
    #[doc(hidden)]
    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        device::amax_with_non_finite::<Self>(tensor)
    }

    /// [`ops::quantize_dequantize`](crate::ops::quantize_dequantize).
    #[doc(hidden)]
    fn fp8_quantize_dequantize(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        format: Fp8Format,
        compute_dtype: FloatDType,
    ) -> FloatTensor<Self> {
        forward::quantize_dequantize::<Self>(x, scale, format, compute_dtype)
    }

    /// [`ops::in_qdq`](crate::ops::in_qdq); `state` is the scale and the amax history.
    #[doc(hidden)]
    fn fp8_in_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        forward::in_qdq::<Self>(x, state, options).0
    }

    /// [`ops::out_qdq`](crate::ops::out_qdq); `state` is the scale and the amax history.
    #[doc(hidden)]
    fn fp8_out_qdq(
        x: FloatTensor<Self>,
        state: [FloatTensor<Self>; 2],
        options: QdqOptions,
    ) -> FloatTensor<Self> {
        let _ = (state, options);
        x
    }

    /// The product of [`nn::Fp8DotGeneral`](crate::nn::Fp8DotGeneral): `x` `[…, K]` times `kernel` `[K, N]`, neither empty;
    /// `states` are scale and amax history of input, kernel and output gradient.
    #[doc(hidden)]
    fn fp8_dot(
        x: FloatTensor<Self>,
        kernel: FloatTensor<Self>,
        states: [[FloatTensor<Self>; 2]; 3],
        options: DotOptions,
    ) -> FloatTensor<Self> {
        let [input, kernel_state, _] = states;
        forward::dot::<Self>(x, kernel, [input, kernel_state], options, [false, false]).output
    }
}

pub(crate) fn no_tensor_cores<B: Fp8Matmul>(device: &B::Device) -> ! {
    panic!("{} announces tensor cores for FP8, but has not implemented them", B::name(device))
}
