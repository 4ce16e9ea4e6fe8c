//! Burn's quantized tensors, where they hold FP8.
//!
//! A [`QuantScheme`] whose values are E4M3 or E5M2 gets the codes and scales of this crate, whatever the configuration says: Burn 0.21 and 0.22 on Flex round such
//! values to integers, and NdArray refuses them. Tensors of other schemes are those of the backend inside, and go to it; where that is right about FP8, as Burn
//! 0.23's Flex is, so do those that this crate does not hold: scales of scales, and blocks that do not divide a tensor or span more than its last two dimensions.
//!
//! `scheme` reads what a scheme says, in the words of the crate's version of Burn, `crate::backend::quantized`. `make` quantizes, and reads and writes data. `view`
//! moves codes and scales. `ops` is what Burn's traits ask for: what it does not do itself are Burn's defaults, which dequantize.

/// What the delegation does with an operation on quantized tensors: FP8 is this crate's, everything else goes to `B`.
macro_rules! quantized {
    ($crossing:ident [$($taken:ident)+] $name:ident $($argument:ident)*) => {
        if [$(super::common::quantized::is_fp8(&$taken)),+].contains(&true) {
            super::common::quantized::OnCodes::<B>::$name($($argument),*)
        } else {
            $(let $taken = super::common::quantized::other($taken);)+
            quantized!(@ $crossing B::$name($($argument),*))
        }
    };
    (@ as_it_is $result:expr) => { $result };
    (@ $crossing:ident $result:expr) => { super::common::quantized::Own::own($result) };
}

mod make;
mod ops;
mod scheme;
mod view;

use core::fmt;

use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::{IntTensor, QuantizedTensor};
use burn_backend::{Backend, BackendTypes, Shape, TensorPrimitive};

use crate::backend::{Fp8Backend, Fp8Matmul};
use crate::engine::MatrixOf;
use crate::product::Held;

pub(crate) use make::shaped;
pub(crate) use ops::{
    OnCodes, q_cat, q_from_data, q_into_data, q_is_require_grad, q_matmul, quantize,
    quantize_dynamic, tr_execute,
};
pub(crate) use scheme::with_block;
pub(crate) use view::View;

/// A quantized tensor of [`Fp8Backend<B>`].
pub enum Fp8QTensor<B: BackendTypes> {
    /// Of a scheme whose values are E4M3 or E5M2, in this crate's form.
    Fp8(QCodes<B>),
    /// Of another one.
    Other(B::QuantizedTensorPrimitive),
}

/// Codes of FP8 and their scales, of a tensor of any rank.
pub struct QCodes<B: BackendTypes> {
    pub(crate) shape: Shape,
    pub(crate) scheme: QuantScheme,
    pub(crate) device: B::Device,
    /// `[…, R, C]`; `[R, C]` where it is one matrix, such as `[1, C]` of one dimension.
    pub(crate) held: Held<B>,
}

impl<B: BackendTypes> Clone for Fp8QTensor<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Fp8(codes) => Self::Fp8(codes.clone()),
            Self::Other(tensor) => Self::Other(tensor.clone()),
        }
    }
}

impl<B: BackendTypes> Clone for QCodes<B> {
    fn clone(&self) -> Self {
        let Self { shape, scheme, device, held } = self;
        Self { shape: shape.clone(), scheme: *scheme, device: device.clone(), held: held.clone() }
    }
}

impl<B: BackendTypes> fmt::Debug for Fp8QTensor<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp8(codes) => codes.fmt(f),
            Self::Other(tensor) => tensor.fmt(f),
        }
    }
}

impl<B: BackendTypes> fmt::Debug for QCodes<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, scheme, held, .. } = self;
        let mut shown = f.debug_struct("QCodes");
        shown.field("shape", shape).field("scheme", scheme).field("held", held).finish()
    }
}

impl<B: Backend> QCodes<B> {
    /// The codes as they lie.
    pub(crate) fn matrix(&self) -> MatrixOf<B> {
        self.held.get()
    }
}

/// Whether a tensor holds FP8.
pub(crate) fn is_fp8<B: BackendTypes>(tensor: &Fp8QTensor<B>) -> bool {
    matches!(tensor, Fp8QTensor::Fp8(_))
}

/// A tensor that does not, as the backend inside has it.
pub(crate) fn other<B: BackendTypes>(tensor: Fp8QTensor<B>) -> B::QuantizedTensorPrimitive {
    match tensor {
        Fp8QTensor::Other(tensor) => tensor,
        Fp8QTensor::Fp8(_) => unreachable!("FP8 has operations of its own"),
    }
}

/// What the backend inside gives, as the decorator has it.
pub(crate) trait Own<Target> {
    fn own(self) -> Target;
}

impl<B: BackendTypes> Own<Fp8QTensor<B>> for QuantizedTensor<B> {
    fn own(self) -> Fp8QTensor<B> {
        Fp8QTensor::Other(self)
    }
}

impl<B: BackendTypes> Own<(Fp8QTensor<B>, IntTensor<B>)> for (QuantizedTensor<B>, IntTensor<B>) {
    fn own(self) -> (Fp8QTensor<B>, IntTensor<B>) {
        (Fp8QTensor::Other(self.0), self.1)
    }
}

impl<B: Fp8Matmul> Own<TensorPrimitive<Fp8Backend<B>>> for TensorPrimitive<B> {
    fn own(self) -> TensorPrimitive<Fp8Backend<B>> {
        match self {
            Self::Float(tensor) => TensorPrimitive::Float(tensor),
            Self::QFloat(tensor) => TensorPrimitive::QFloat(Fp8QTensor::Other(tensor)),
        }
    }
}
