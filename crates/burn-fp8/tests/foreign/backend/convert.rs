//! Burn's structs over a backend, carried from [`Foreign<B>`](super::Foreign) to `B` and back.

use burn::tensor::backend::{Backend, BackendTypes};
use burn::tensor::ops::{
    DeformConv2dBackward, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward,
    MaxPool2dWithIndices,
};
use burn::tensor::quantization::QuantizationParametersPrimitive;
use burn::tensor::{TensorPrimitive, TransactionPrimitive};

pub(crate) trait Rewrap<Target> {
    fn rewrap(self) -> Target;
}

/// A backend whose tensors are those of `A`.
pub(crate) trait SameTensors<A: BackendTypes>:
    Backend<
        FloatTensorPrimitive = A::FloatTensorPrimitive,
        IntTensorPrimitive = A::IntTensorPrimitive,
        BoolTensorPrimitive = A::BoolTensorPrimitive,
        QuantizedTensorPrimitive = A::QuantizedTensorPrimitive,
    >
{
}

impl<A, B> SameTensors<A> for B
where
    A: BackendTypes,
    B: Backend<
            FloatTensorPrimitive = A::FloatTensorPrimitive,
            IntTensorPrimitive = A::IntTensorPrimitive,
            BoolTensorPrimitive = A::BoolTensorPrimitive,
            QuantizedTensorPrimitive = A::QuantizedTensorPrimitive,
        >,
{
}

impl<A: Backend, B: SameTensors<A>> Rewrap<TensorPrimitive<B>> for TensorPrimitive<A> {
    fn rewrap(self) -> TensorPrimitive<B> {
        match self {
            Self::Float(tensor) => TensorPrimitive::Float(tensor),
            Self::QFloat(tensor) => TensorPrimitive::QFloat(tensor),
        }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<TransactionPrimitive<B>> for TransactionPrimitive<A> {
    fn rewrap(self) -> TransactionPrimitive<B> {
        TransactionPrimitive::new(
            self.read_floats,
            self.read_qfloats,
            self.read_ints,
            self.read_bools,
        )
    }
}

macro_rules! rewrap_fields {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl<A: Backend, B: SameTensors<A>> Rewrap<$name<B>> for $name<A> {
            fn rewrap(self) -> $name<B> {
                let Self { $($field),+ } = self;
                $name { $($field),+ }
            }
        }
    )+};
}

rewrap_fields! {
    QuantizationParametersPrimitive { scales }
    DeformConv2dBackward { x_grad, offset_grad, weight_grad, mask_grad, bias_grad }
    MaxPool1dBackward { x_grad }
    MaxPool1dWithIndices { output, indices }
    MaxPool2dBackward { x_grad }
    MaxPool2dWithIndices { output, indices }
}
