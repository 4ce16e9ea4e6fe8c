//! Structs over a backend, carried from `Fp8Backend<B>` to `B` and back.
//!
//! `FloatTensor<Fp8Backend<B>>` and `FloatTensor<B>` are one type, so most arguments need nothing. A struct such as
//! `MaxPool2dBackward<B>` is a new type for every `B`, though its fields are the same: its fields move, nothing is copied.

use burn_backend::ops::{
    DeformConv2dBackward, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward,
    MaxPool2dWithIndices,
};
use burn_backend::{Backend, BackendTypes};

/// Turns a struct over one backend into the same struct over another one with the same tensor types.
pub(crate) trait Rewrap<Target> {
    /// The same fields, as a struct over the other backend.
    fn rewrap(self) -> Target;
}

/// A backend whose tensors are those of `A`.
pub(crate) trait SameTensors<A: BackendTypes>:
    Backend<
        FloatTensorPrimitive = A::FloatTensorPrimitive,
        IntTensorPrimitive = A::IntTensorPrimitive,
        BoolTensorPrimitive = A::BoolTensorPrimitive,
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
        >,
{
}

/// `Rewrap` for structs whose fields are all public.
macro_rules! rewrap_fields {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl<A: burn_backend::Backend, B: SameTensors<A>> Rewrap<$name<B>> for $name<A> {
            fn rewrap(self) -> $name<B> {
                let Self { $($field),+ } = self;
                $name { $($field),+ }
            }
        }
    )+};
}
// Others have other fields in another version of Burn.
pub(crate) use rewrap_fields;

rewrap_fields! {
    DeformConv2dBackward { x_grad, offset_grad, weight_grad, mask_grad, bias_grad }
    MaxPool1dBackward { x_grad }
    MaxPool1dWithIndices { output, indices }
    MaxPool2dBackward { x_grad }
    MaxPool2dWithIndices { output, indices }
}
