//! The trait by which a backend tells what it does with codes.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use super::capability::{Capability, Fallback};
use super::matrix::{MatrixOf, Scales};
use super::portable;
use super::problem::Problem;
use super::product::{EpilogueOf, OperandOf, ProductOf, Run};
use super::request::RequestOf;

/// What a backend does with FP8 codes: two verbs, to quantize and to multiply, and what goes with them.
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

    /// What this device can do in FP8. Asked for each product: the answer must be at hand.
    fn fp8_capability(device: &Self::Device) -> Capability {
        let _ = device;
        Capability::FakeQuantized { reason: "burn-fp8 has no native path for this backend".into() }
    }

    /// Whether a device with tensor cores has an algorithm for a product, else why not. On the calling thread, also where products run on
    /// another one.
    fn fp8_check(device: &Self::Device, problem: &Problem) -> Result<(), Fallback> {
        let _ = (device, problem);
        Ok(())
    }

    /// Quantizes a non-empty tensor `[…, R, C]` of type f32, f16, bf16 or flex32, in any layout; with one scale also of one dimension.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        portable::quantize::<Self>(tensor, request)
    }

    /// The numbers that codes and scales stand for, f32 `[…, R, C]`, each rounded once.
    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        portable::dequantize::<Self>(matrix)
    }

    /// Multiplies `lhs` `[…, M, K]` by `rhs` `[…, K, N]`, of one rank, neither empty, whose leading dimensions broadcast; with what the epilogue
    /// asks for. Where the target does not take the product it is emulated, or refused as [`Run::otherwise`] says.
    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        portable::multiply::<Self>(lhs, rhs, epilogue, run)
    }

    /// Multiplies an f32 tensor `[…, M, N]`, a product of codes, by the scales of both operands, which are one for each row of the left and each
    /// column of the right one at most.
    ///
    /// The scales are multiplied with each other first, in f32, and kept finite.
    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        portable::rescale::<Self>(product, scales)
    }

    /// The largest magnitude of a tensor of any float type; NaN and infinities propagate. f32, shape `[1]`.
    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::scale::amax_with_non_finite::<Self>(tensor)
    }
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
