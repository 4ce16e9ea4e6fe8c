//! The trait by which a backend tells what it does with codes.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};
use burn_fp8_core::{Fp8Format, Overflow};

use super::blocks::{BlockCodes, QuantizeBlocks};
use super::capability::{Capability, Fallback};
use super::codes::CodesPrimitive;
use super::launch::{Launched, note};
use super::matrix::{GemmOperand, GemmOptions, QuantizeMatrix, QuantizedMatrix};
use super::portable::epilogue::{activate, reciprocal};
use super::portable::{self, blocks, scale};
use super::problem::NativeProblem;
use super::quantize::{Quantize, QuantizeRows, Quantized, ScaleRule};
use super::scalar::Scalar;
use super::scaled::{OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues};
use super::tensor::add_bias;
use super::unit::{QuantizedCodes, UnitOperand, UnitOptions};
use crate::error::Fp8Error;

/// What a backend does with FP8 codes: quantizes, decodes, multiplies.
///
/// It knows formats, scales and matrices. It knows nothing of what should run in FP8, of training, or of what is reported.
///
/// Implemented for Burn's backends behind the features of their names. Every method has a portable default, in tensor operations, so that
/// [`fp8_backend!`](crate::fp8_backend) opts another backend in with one line. A backend with something faster overrides how tensors are
/// quantized, perhaps with the slice functions of [`burn_fp8_core::slice`](mod@burn_fp8_core::slice). Every override must give the same
/// codes and scales, bit for bit; sign and payload of NaN are free.
pub trait Fp8Engine: Backend {
    /// Whether codes are made by kernels: packed, with scales and amaxes left on the device.
    const FP8_KERNELS: bool = false;

    /// Quantizes a non-empty tensor of type f32, f16, bf16 or flex32, of any shape and layout.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        portable::quantize::<Self>(tensor, request)
    }

    /// The codes of such a tensor and their scale, where nothing else is wanted.
    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        let quantized = Self::fp8_quantize(tensor, Quantize { format, scale, save: true });
        (quantized.codes.expect("asked for"), quantized.scale)
    }

    /// The codes of such a tensor, or their values, with a scale for all elements along a dimension. The scales broadcast against it.
    fn fp8_quantize_rows(
        tensor: FloatTensor<Self>,
        request: QuantizeRows,
    ) -> (CodesPrimitive<Self>, FloatTensor<Self>) {
        quantize_rows::<Self>(tensor, request)
    }

    /// Quantizes a tensor, as [`fp8_quantize`](Self::fp8_quantize) but to codes alone, for products on a matrix unit.
    fn fp8_quantize_for_unit(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> QuantizedCodes<Self> {
        let quantized = Self::fp8_quantize(tensor, Quantize { format, scale, save: true });
        let Quantized { codes, scale, amax, format, .. } = quantized;
        QuantizedCodes { codes: codes.expect("asked for"), scale, amax, format }
    }

    /// The values of saved codes, without their scale: an f32 tensor of the shape that was quantized.
    fn fp8_values(codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
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
    fn fp8_rescale_rows(
        tensor: FloatTensor<Self>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        portable::rescale_by::<Self>(tensor, lhs, rhs)
    }

    /// Quantizes a non-empty tensor, with a scale for each block. Finite elements saturate, the others stay visible.
    fn fp8_quantize_blocks(tensor: FloatTensor<Self>, request: QuantizeBlocks) -> BlockCodes<Self> {
        quantize_blocks::<Self>(tensor, request)
    }

    /// The numbers that codes stand for, times the scales of their blocks. f32.
    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FloatTensor<Self> {
        dequantize_blocks::<Self>(codes)
    }

    /// A product in high precision, as the backend multiplies by itself.
    fn fp8_plain_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }

    /// Multiplies the values of codes, f32, in f32: `lhs` `[…, M, K]` by `rhs` `[…, K, N]`.
    fn fp8_matmul_values(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::fp8_plain_matmul(lhs, rhs)
    }

    /// Multiplies `x` `[M, K]`, f32, by the values of codes `[K, N]`, in f32.
    fn fp8_matmul_codes(x: FloatTensor<Self>, codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        Self::fp8_matmul_values(x, Self::fp8_values(codes))
    }

    /// Multiplies `x` `[M, K]`, f32, by codes `[K, N]` times the scales of their blocks, in f32.
    fn fp8_matmul_block_codes(x: FloatTensor<Self>, codes: BlockCodes<Self>) -> FloatTensor<Self> {
        Self::fp8_plain_matmul(x, Self::fp8_dequantize_blocks(codes))
    }

    /// Multiplies codes on the matrix unit that [`fp8_capability`](Self::fp8_capability) announces: `lhs` `[…, M, K]` by `rhs` `[…, K, N]`, of one
    /// rank, none of them empty, whose leading dimensions broadcast; then by their scales.
    fn fp8_matmul_on_unit(
        lhs: UnitOperand<Self>,
        rhs: UnitOperand<Self>,
        options: UnitOptions,
    ) -> FloatTensor<Self> {
        let _ = (rhs, options);
        let name = Self::name(&lhs.codes.device());
        panic!("{name} announces a matrix unit for FP8, but has not implemented it")
    }

    /// What this device can do in FP8. Asked for each product: the answer must be at hand.
    fn fp8_capability(device: &Self::Device) -> Capability {
        let _ = device;
        Capability::FakeQuantized { reason: "burn-fp8 has no native path for this backend".into() }
    }

    /// What a device can do, or [`Fp8Error::DeviceUnusable`].
    fn fp8_usable(device: &Self::Device) -> Result<Capability, Fp8Error> {
        match Self::fp8_capability(device) {
            Capability::Unusable { reason } => Err(Fp8Error::DeviceUnusable {
                backend: Self::name(device),
                reason: reason.into_owned(),
            }),
            capability => Ok(capability),
        }
    }

    /// Whether a device with tensor cores has an algorithm for a product, else why not. On the calling thread, also where products run on
    /// another one.
    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        let _ = (device, problem);
        Ok(())
    }

    /// Quantizes a non-empty tensor, seen as a matrix, for products on tensor cores.
    fn fp8_quantize_matrix(
        tensor: FloatTensor<Self>,
        request: QuantizeMatrix<Self>,
    ) -> QuantizedMatrix<Self> {
        let _ = request;
        no_tensor_cores::<Self>(&Self::float_device(&tensor))
    }

    /// Multiplies `lhs` `[M, K]` by `rhs` `[N, K]` transposed, on tensor cores.
    fn fp8_gemm(
        lhs: GemmOperand<Self>,
        rhs: GemmOperand<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        let _ = (rhs, options);
        no_tensor_cores::<Self>(&Self::int_device(&lhs.words))
    }

    /// The same of codes with scales of blocks: `[1, 32]`, `[1, 128]`, `[128, 128]`, or rows of at least K elements, in pairs that
    /// [`scaled_matmul`](crate::scaled_matmul) names. Those of `[1, 32]` are powers of two: rows as short as that are given as longer ones.
    fn fp8_gemm_of_blocks(
        lhs: BlockCodes<Self>,
        rhs: BlockCodes<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        let _ = (rhs, options);
        no_tensor_cores::<Self>(&lhs.codes.device())
    }

    /// A product of codes with its epilogue: `a` `[M, K]` times the transpose of `b_t` `[N, K]`, neither empty, never both E5M2. On tensor
    /// cores where the device has them, else emulated.
    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        Self::fp8_scaled_matmul_emulated(a, b_t, request)
    }

    /// The same, emulated in f32 whatever the device can do.
    fn fp8_scaled_matmul_emulated(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        emulate::<Self>(a, b_t, request)
    }

    /// The largest magnitude of a tensor of any float type; NaN and infinities propagate. f32, shape `[1]`.
    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        scale::amax_with_non_finite::<Self>(tensor)
    }
}

pub(crate) fn no_tensor_cores<B: Fp8Engine>(device: &B::Device) -> ! {
    panic!("{} announces tensor cores for FP8, but has not implemented them", B::name(device))
}

/// Codes or their values, and scales that broadcast against them, f32, from tensor operations and [`Fp8Engine::fp8_quantize`].
pub(crate) fn quantize_rows<B: Fp8Engine>(
    tensor: FloatTensor<B>,
    request: QuantizeRows,
) -> (CodesPrimitive<B>, FloatTensor<B>) {
    let QuantizeRows { dim, format, recipe, values } = request;
    let tensor = B::float_cast(tensor, FloatDType::F32);
    let amax = scale::amax_dim::<B>(tensor.clone(), dim);
    let scales = scale::from_amax::<B>(amax, format, recipe);
    let quotient = B::float_div(tensor, scales.clone());
    // The division is done: what is left to quantize has the scale 1, and dividing by that is exact.
    let rule = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
    let codes = match values {
        true => CodesPrimitive::Values(
            B::fp8_quantize(quotient, Quantize { format, scale: rule, save: false }).values,
        ),
        false => B::fp8_quantize_codes(quotient, format, rule).0,
    };
    (codes, scales)
}

/// Codes and the scales of their blocks, from tensor operations and [`Fp8Engine::fp8_quantize_codes`].
pub(crate) fn quantize_blocks<B: Fp8Engine>(
    tensor: FloatTensor<B>,
    request: QuantizeBlocks,
) -> BlockCodes<B> {
    let QuantizeBlocks { block, format, recipe } = request;
    let tensor = B::float_cast(tensor, FloatDType::F32);
    let [quotient, scales] = blocks::divide::<B>(tensor, block, format, recipe);
    let rule = ScaleRule::Given(Scalar::Host(1.0), Overflow::SaturateFinite);
    let (codes, _) = B::fp8_quantize_codes(quotient, format, rule);
    BlockCodes { codes, scales, block, format }
}

/// Decoded codes times the scales of their blocks, in tensor operations.
pub(crate) fn dequantize_blocks<B: Fp8Engine>(codes: BlockCodes<B>) -> FloatTensor<B> {
    let BlockCodes { codes, scales, block, .. } = codes;
    let values = B::fp8_values(codes);
    let shape = values.shape();
    let scales = blocks::Grid::new(&shape, block).spread::<B>(scales, shape);
    B::float_mul(values, scales)
}

/// `a` `[M, K]` times the transpose of `b_t` `[N, K]`, emulated in f32.
fn emulate<B: Fp8Engine>(
    a: ScaledOperand<B>,
    b_t: ScaledOperand<B>,
    request: ScaledRequest<B>,
) -> ScaledProduct<B> {
    note(&request.note, || Launched::FakeQuantized);
    let b = B::float_transpose(B::fp8_values(b_t.codes));
    let product = B::fp8_matmul_values(B::fp8_values(a.codes), b);
    finish::<B>(B::fp8_rescale(product, &a.scale, &b_t.scale), request)
}

/// What is asked for beside a product, in f32: bias, activation, amax, the type of the result.
pub(crate) fn finish<B: Fp8Engine>(
    product: FloatTensor<B>,
    request: ScaledRequest<B>,
) -> ScaledProduct<B> {
    let bias = request.bias.map(|bias| B::float_cast(bias, FloatDType::F32));
    let product = activate::<B>(add_bias::<B>(product, bias), request.activation);
    let amax = request.amax.then(|| B::fp8_amax(product.clone()));
    let values = match request.output {
        OutputType::Float(FloatDType::F32) => ScaledValues::Float(product),
        OutputType::Float(dtype) => ScaledValues::Float(B::float_cast(product, dtype)),
        OutputType::Fp8 { format, scale } => {
            let (factor, one) = (reciprocal::<B>(scale), Scalar::Host(1.0));
            let scaled = B::fp8_rescale(product, &factor, &one);
            let scale = ScaleRule::Given(one, Overflow::Saturate);
            ScaledValues::Codes(B::fp8_quantize_codes(scaled, format, scale).0)
        }
    };
    ScaledProduct { values, amax }
}

/// A backend without gradients of its own: neither `Autodiff<B>` nor a decorator around one.
///
/// FP8 products of such a backend just run. Those of `Autodiff<B>` run on `B` and register their backward steps.
pub trait Untracked: Fp8Engine {}

/// Opts a backend in, with one line: its FP8 products are emulated in tensor operations.
///
/// ```text
/// burn_fp8::fp8_backend!(MyBackend);
/// burn_fp8::fp8_backend!([E: MyElement] MyBackend<E>);
/// burn_fp8::fp8_backend!([E] MyBackend<E> where E: MyElement);
/// ```
///
/// The backend must have no gradients of its own. One with something faster implements [`Fp8Engine`](crate::engine::Fp8Engine) and
/// [`Untracked`](crate::engine::Untracked) itself.
#[macro_export]
macro_rules! fp8_backend {
    ([$($generics:tt)*] $backend:ty $(where $($bounds:tt)*)?) => {
        impl<$($generics)*> $crate::engine::Fp8Engine for $backend $(where $($bounds)*)? {}
        impl<$($generics)*> $crate::engine::Untracked for $backend $(where $($bounds)*)? {}
    };
    ($backend:ty) => {
        $crate::fp8_backend!([] $backend);
    };
}
