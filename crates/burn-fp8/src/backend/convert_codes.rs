//! The engine's structs, carried from `Fp8Backend<B>` to `B` and back.

use burn::tensor::backend::Backend;

use super::convert::{Rewrap, SameTensors};
use crate::engine::{
    BlockCodes, CodesPrimitive, GemmOperand, OutputType, Quantize, QuantizeMatrix, Quantized,
    QuantizedCodes, QuantizedMatrix, Scalar, ScaleRule, ScaledOperand, ScaledProduct,
    ScaledRequest, ScaledValues, UnitOperand, UnitScale,
};

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

impl<A: Backend, B: SameTensors<A>> Rewrap<QuantizedCodes<B>> for QuantizedCodes<A> {
    fn rewrap(self) -> QuantizedCodes<B> {
        let Self { codes, scale, amax, format } = self;
        let (codes, amax) = (codes.rewrap(), amax.map(Rewrap::rewrap));
        QuantizedCodes { codes, scale: scale.rewrap(), amax, format }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<UnitOperand<B>> for UnitOperand<A> {
    fn rewrap(self) -> UnitOperand<B> {
        let scale = match self.scale {
            UnitScale::Tensor(scale) => UnitScale::Tensor(scale.rewrap()),
            UnitScale::Rows(scales) => UnitScale::Rows(scales),
            UnitScale::Blocks { scales, block, are_powers_of_two } => {
                UnitScale::Blocks { scales, block, are_powers_of_two }
            }
        };
        UnitOperand { codes: self.codes.rewrap(), scale }
    }
}

impl<A: Backend, B: SameTensors<A>> Rewrap<BlockCodes<B>> for BlockCodes<A> {
    fn rewrap(self) -> BlockCodes<B> {
        let Self { codes, scales, block, format } = self;
        BlockCodes { codes: codes.rewrap(), scales, block, format }
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
