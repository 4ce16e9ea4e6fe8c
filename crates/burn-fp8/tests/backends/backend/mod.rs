//! A backend that is not Burn's: a thin decorator, which has nothing to do with FP8.
//!
//! Its methods are those that `cargo xtask delegate` writes for `Fp8Backend`, compiled once more around another type: they find it, the
//! structs that it rewraps and the operations that it does itself under the names of `burn_fp8`'s own modules.

use std::marker::PhantomData;

use burn::tensor::TensorPrimitive;
use burn::tensor::backend::{Backend, BackendTypes};
use burn::tensor::ops::{QuantizedTensor, TransactionPrimitive};
use burn::tensor::quantization::QuantizationParametersPrimitive;
use convert::{Rewrap, SameTensors};

#[path = "../../../src/shared/backend/convert.rs"]
pub(crate) mod convert;
#[path = "../../../src/shared/backend/convolution.rs"]
pub(crate) mod convolution;
pub(crate) mod intercept;

/// Of the delegation for all versions of Burn, what is there for this one.
macro_rules! burn_0_21 {
    ($($item:tt)*) => { $($item)* };
}
macro_rules! burn_0_22 {
    ($($item:tt)*) => {};
}
#[macro_use]
#[path = "../../../src/shared/backend/forward.rs"]
mod forward;
/// Its quantized tensors are those of `B`.
macro_rules! quantized {
    (rewrapped [$($taken:ident)+] $name:ident $($argument:ident)*) => {
        B::$name($($argument),*).rewrap()
    };
    ($crossing:ident [$($taken:ident)+] $name:ident $($argument:ident)*) => {
        B::$name($($argument),*)
    };
}
#[path = "../../../src/shared/backend/delegate.rs"]
mod delegate;

pub(crate) type Fp8QTensor<B> = QuantizedTensor<B>;

/// Where the delegation looks for its bound: this backend asks nothing more of the one that it decorates.
pub(crate) use burn::tensor::backend::Backend as Fp8Matmul;

/// Does what `B` does, in its own name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Foreign<B> {
    backend: PhantomData<B>,
}

pub(crate) use self::Foreign as Fp8Backend;

convert::rewrap_fields! {
    QuantizationParametersPrimitive { scales }
}

impl<A, B> Rewrap<TensorPrimitive<B>> for TensorPrimitive<A>
where
    A: Backend,
    B: SameTensors<A> + BackendTypes<QuantizedTensorPrimitive = A::QuantizedTensorPrimitive>,
{
    fn rewrap(self) -> TensorPrimitive<B> {
        match self {
            Self::Float(tensor) => TensorPrimitive::Float(tensor),
            Self::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    }
}

impl<A, B> Rewrap<TransactionPrimitive<B>> for TransactionPrimitive<A>
where
    A: Backend,
    B: SameTensors<A> + BackendTypes<QuantizedTensorPrimitive = A::QuantizedTensorPrimitive>,
{
    fn rewrap(self) -> TransactionPrimitive<B> {
        let Self { read_floats, read_qfloats, read_ints, read_bools, .. } = self;
        TransactionPrimitive::new(read_floats, read_qfloats, read_ints, read_bools)
    }
}
