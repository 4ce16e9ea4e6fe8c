//! Structs over a backend, carried from `Fp8Backend<B>` to `B` and back.
//!
//! `FloatTensor<Fp8Backend<B>>` and `FloatTensor<B>` are one type, so most arguments need nothing. A struct such as
//! `TensorPrimitive<B>` is a new type for every `B`, though its fields are the same: its fields move, nothing is copied.

use burn::tensor::backend::{Backend, BackendTypes};
use burn::tensor::ops::{
    DeformConv2dBackward, MaxPool1dBackward, MaxPool1dWithIndices, MaxPool2dBackward,
    MaxPool2dWithIndices,
};
use burn::tensor::quantization::QuantizationParametersPrimitive;
use burn::tensor::{TensorPrimitive, TransactionPrimitive};

use crate::engine::{
    CodesPrimitive, GemmOperand, OutputType, Quantize, QuantizeMatrix, Quantized, QuantizedMatrix,
    Scalar, ScaleRule, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues,
};

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
        // The private field `orders` starts empty in the copy. Nothing is lost: `TransactionPrimitive::execute_async` takes
        // the orders out before it calls `tr_execute`, the only method that a transaction is passed to.
        TransactionPrimitive::new(
            self.read_floats,
            self.read_qfloats,
            self.read_ints,
            self.read_bools,
        )
    }
}

/// `Rewrap` for structs whose fields are all public.
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

impl<A: Backend, B: SameTensors<A>> Rewrap<Scalar<B>> for Scalar<A> {
    fn rewrap(self) -> Scalar<B> {
        match self {
            Self::Host(value) => Scalar::Host(value),
            Self::Device(tensor) => Scalar::Device(tensor),
        }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<CodesPrimitive<B>> for CodesPrimitive<A> {
    fn rewrap(self) -> CodesPrimitive<B> {
        match self {
            Self::Bytes(codes, format) => CodesPrimitive::Bytes(codes, format),
            Self::Packed(words, shape, format) => CodesPrimitive::Packed(words, shape, format),
            Self::Values(values) => CodesPrimitive::Values(values),
        }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<ScaleRule<B>> for ScaleRule<A> {
    fn rewrap(self) -> ScaleRule<B> {
        match self {
            Self::Current(recipe) => ScaleRule::Current(recipe),
            Self::Delayed(amax, recipe) => ScaleRule::Delayed(amax.rewrap(), recipe),
            Self::Given(scale, overflow) => ScaleRule::Given(scale.rewrap(), overflow),
        }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<Quantize<B>> for Quantize<A> {
    fn rewrap(self) -> Quantize<B> {
        let Self { format, scale, save } = self;
        Quantize { format, scale: scale.rewrap(), save }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<QuantizeMatrix<B>> for QuantizeMatrix<A> {
    fn rewrap(self) -> QuantizeMatrix<B> {
        let Self { format, scale, layouts } = self;
        QuantizeMatrix { format, scale: scale.rewrap(), layouts }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<QuantizedMatrix<B>> for QuantizedMatrix<A> {
    fn rewrap(self) -> QuantizedMatrix<B> {
        let Self { rows, transposed, shape, scale, amax, format } = self;
        let (scale, amax) = (scale.rewrap(), amax.map(Rewrap::rewrap));
        QuantizedMatrix { rows, transposed, shape, scale, amax, format }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<GemmOperand<B>> for GemmOperand<A> {
    fn rewrap(self) -> GemmOperand<B> {
        let Self { words, rows, format, scale } = self;
        GemmOperand { words, rows, format, scale: scale.rewrap() }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<Quantized<B>> for Quantized<A> {
    fn rewrap(self) -> Quantized<B> {
        let Self { values, codes, scale, amax, format } = self;
        let (codes, amax) = (codes.map(Rewrap::rewrap), amax.map(Rewrap::rewrap));
        Quantized { values, codes, scale: scale.rewrap(), amax, format }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<ScaledOperand<B>> for ScaledOperand<A> {
    fn rewrap(self) -> ScaledOperand<B> {
        let Self { codes, format, scale } = self;
        ScaledOperand { codes: codes.rewrap(), format, scale: scale.rewrap() }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<ScaledRequest<B>> for ScaledRequest<A> {
    fn rewrap(self) -> ScaledRequest<B> {
        let Self { output, bias, activation, amax, fast_accumulation, otherwise, note } = self;
        let output = match output {
            OutputType::Float(dtype) => OutputType::Float(dtype),
            OutputType::Fp8 { format, scale } => OutputType::Fp8 { format, scale: scale.rewrap() },
        };
        ScaledRequest { output, bias, activation, amax, fast_accumulation, otherwise, note }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<ScaledProduct<B>> for ScaledProduct<A> {
    fn rewrap(self) -> ScaledProduct<B> {
        let Self { values, amax } = self;
        let values = match values {
            ScaledValues::Float(values) => ScaledValues::Float(values),
            ScaledValues::Codes(codes) => ScaledValues::Codes(codes.rewrap()),
        };
        ScaledProduct { values, amax }
    }
}

#[cfg(feature = "distributed")]
mod distributed {
    use burn::tensor::backend::Backend;
    use burn::tensor::backend::distributed::{CollectiveTensor, DistributedBackend, TensorRef};

    use super::{Rewrap, SameTensors};

    impl<A: Backend, B: SameTensors<A>> Rewrap<TensorRef<B>> for TensorRef<A> {
        fn rewrap(self) -> TensorRef<B> {
            TensorRef(self.0)
        }
    }

    impl<A: DistributedBackend, B: SameTensors<A> + DistributedBackend> Rewrap<CollectiveTensor<B>>
        for CollectiveTensor<A>
    {
        #[allow(unsafe_code)]
        fn rewrap(self) -> CollectiveTensor<B> {
            // SAFETY: nothing reads the tensor here; it goes straight into a `CollectiveTensor` again, so whoever wants it
            // still has to resolve it, and `Fp8Backend::sync_collective` is that of the wrapped backend.
            CollectiveTensor::new(unsafe { self.assume_resolved() })
        }
    }
}
