//! The backend decorator.
//!
//! `delegate` forwards every method of Burn's backend traits to `B`; it is generated, and `forward` the macro
//! that it is written in. `intercept` holds the few that may run in FP8, or as one operation.

/// Keeps what `delegate` has for this version of Burn.
macro_rules! burn_0_21 {
    ($($item:tt)*) => { $($item)* };
}

/// Drops what it has for others.
macro_rules! burn_0_22 {
    ($($item:tt)*) => {};
}

#[macro_use]
#[path = "../shared/backend/forward.rs"]
mod forward;

#[cfg(feature = "distributed")]
mod collective;
#[macro_use]
#[path = "../shared/backend/mod.rs"]
mod common;
#[path = "../shared/backend/delegate.rs"]
mod delegate;
mod quantized;
#[cfg(feature = "vision")]
mod vision;

/// What the delegation does not forward as it is.
mod intercept {
    pub(super) use super::common::intercept::*;
    pub(super) use super::common::quantized::{
        q_cat, q_from_data, q_into_data, q_is_require_grad, q_matmul, quantize, quantize_dynamic,
        tr_execute,
    };
    pub(super) use super::quantized::{dequantize, q_device, q_from_inner, q_inner};
}

use core::marker::PhantomData;

use burn_backend::quantization::QuantizationParametersPrimitive;

use crate::engine::Capability;
pub(crate) use common::{convert, convolution};
use convert::{Rewrap, SameTensors};

pub use crate::engine::Graph as Fp8Matmul;
pub use quantized::{Fp8QTensor, QCodes};
pub(crate) use quantized::{from_matrix, into_matrix};

/// A backend that runs the matrix products of `B` in FP8, and everything else on `B`; attention, layer normalization and GELU as one operation each where
/// [`Fp8Config::attention`](crate::Fp8Config::attention) says so.
///
/// Tensors, devices and element types are those of `B`. What runs in FP8 is told by [`Fp8Config`](crate::Fp8Config).
///
/// | type | what it does |
/// |---|---|
/// | `Fp8Backend<Autodiff<B>>` | The documented order. Sees every product with its role, quantizes each operand once a pass, saves codes for the backward pass, routes output gradients to E5M2, knows delayed scaling. |
/// | `Autodiff<Fp8Backend<B>>` | Works, with less: linear layers are routed alike; the gradients of a plain `matmul` use E4M3, since Burn's Autodiff does not tell which operand is a gradient; operands are saved in high precision; scaling is always current; the backward products use the configuration ambient at `backward` and are filtered one by one. |
/// | `Fp8Backend<B>` | Inference. |
///
/// Burn's quantized tensors of E4M3 and E5M2 ([`Fp8QTensor`]) are this crate's codes, and products take them as they are, FP8 on or off; integers go to `B`, products and all.
/// Attention keeps the fused kernels of `B` unless the filter takes batched products.
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::tensor::Tensor;
/// use burn_fp8::Fp8Backend;
///
/// type B = Fp8Backend<Autodiff<Flex>>;
///
/// let device = Default::default();
/// let x = Tensor::<B, 2>::ones([32, 64], &device);
/// let weight = Tensor::<B, 2>::full([64, 16], 0.5, &device).require_grad();
/// let grads = x.matmul(weight.clone()).sum().backward();
/// assert_eq!(weight.grad(&grads).unwrap().dims(), [64, 16]);
/// ```
///
/// # Numerical code wants [`high_precision`](crate::high_precision)
/// The filter sees shapes, not purposes: **every** plain product of two matrices with dimensions of at least 16 runs in FP8, that of a solver too. Burn's own
/// `linalg::lu` and `linalg::det` (from 256 rows on) and `Tensor::cov` multiply so, and lose what makes them useful: P·L·U of a random 500×500 matrix is off by
/// more than 1 where f32 has 1e-5. Run such code in `high_precision`, or leave plain products alone altogether with
/// [`Filter::linear_only`](crate::Filter::linear_only):
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor, linalg};
/// use burn_fp8::{Fp8Backend, high_precision};
///
/// type B = Fp8Backend<Flex>;
///
/// let a = Tensor::<B, 2>::random([300, 300], Distribution::Uniform(-1.0, 1.0), &Default::default());
/// let error = |[p, l, u]: [Tensor<B, 2>; 3]| {
///     high_precision(|| (p.matmul(l.matmul(u)) - a.clone()).abs().max().into_scalar())
/// };
/// let (p, l, u) = high_precision(|| linalg::lu::<B, 2, 1>(a.clone()));
/// assert!(error([p, l, u]) < 1e-4);
///
/// let (p, l, u) = linalg::lu::<B, 2, 1>(a.clone()); // by blocks, in FP8
/// assert!(error([p, l, u]) > 0.01);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Fp8Backend<B> {
    backend: PhantomData<B>,
}

convert::rewrap_fields! {
    QuantizationParametersPrimitive { scales }
}

impl<B: Fp8Matmul> Fp8Backend<B> {
    /// What a device can do in FP8, and why it does not do more.
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn_fp8::Fp8Backend;
    ///
    /// let capability = Fp8Backend::<Flex>::capability(&Default::default());
    /// println!("{capability}"); // native: AVX512-BF16 of AMD EPYC …, or fake-quantized, and why
    /// ```
    pub fn capability(device: &B::Device) -> Capability {
        B::fp8_capability(device, None)
    }
}

/// Both orders of decorators are backends with gradients, whatever features are on.
#[cfg(any(feature = "flex", feature = "cuda"))]
const _: fn() = || {
    use burn::backend::Autodiff;
    use burn::tensor::backend::AutodiffBackend;

    fn has_gradients<B: AutodiffBackend>() {}

    #[cfg(feature = "flex")]
    {
        has_gradients::<Fp8Backend<Autodiff<burn::backend::Flex>>>();
        has_gradients::<Autodiff<Fp8Backend<burn::backend::Flex>>>();
    }
    #[cfg(feature = "cuda")]
    {
        has_gradients::<Fp8Backend<Autodiff<burn::backend::Cuda>>>();
        has_gradients::<Autodiff<Fp8Backend<burn::backend::Cuda>>>();
    }
};
