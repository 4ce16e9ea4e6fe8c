//! The operations of `burn::vision`: they are those of `B`, with its kernels where it has some.

use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor, QTensorOps, QuantizedTensor};
use burn::tensor::quantization::QTensorPrimitive;
use burn::tensor::{Bool, Float, FloatDType, Int, Tensor, TensorPrimitive};
use burn_vision::{
    BoolVisionOps, ConnectedStatsOptions, ConnectedStatsPrimitive, Connectivity, FloatVisionOps,
    IntVisionOps, MorphOptions, NmsOptions, QVisionOps, VisionBackend,
};

use super::convert::{Rewrap, SameTensors, rewrap_fields};
use super::{Fp8Backend, Fp8Matmul, Fp8QTensor};

rewrap_fields! {
    ConnectedStatsPrimitive { area, left, top, right, bottom, max_label }
}

/// Morphology of one kind of tensors; of FP8 by an operation on floats. The options go along, with a border value that is a tensor of the other backend.
macro_rules! morphology {
    ($tensor:ident, $kind:ident, |$border:ident| $crossed:expr => $($name:ident $(or $of_floats:ident)?),*) => {$(
        fn $name(
            input: $tensor<Self>,
            kernel: BoolTensor<Self>,
            opts: MorphOptions<Self, $kind>,
        ) -> $tensor<Self> {
            let MorphOptions { anchor, iterations, border_type, border_value } = opts;
            let border_value = border_value.map(|border| {
                let $border = border.into_primitive();
                Tensor::from_primitive($crossed)
            });
            let opts = MorphOptions { anchor, iterations, border_type, border_value };
            morphology!(@ [$($of_floats)?] $name input kernel opts)
        }
    )*};
    (@ [$of_floats:ident] $name:ident $input:ident $kernel:ident $opts:ident) => {
        match $input {
            Fp8QTensor::Other(input) => Fp8QTensor::Other(B::$name(input, $kernel, $opts)),
            // FP8 is quantized again, as other schemes are.
            codes => {
                let scheme = *codes.scheme();
                let numbers = Self::dequantize(codes, FloatDType::F32);
                Self::quantize_dynamic(B::$of_floats(numbers, $kernel, $opts), &scheme)
            }
        }
    };
    (@ [] $name:ident $input:ident $kernel:ident $opts:ident) => {
        B::$name($input, $kernel, $opts)
    };
}

/// The value of a border, for the backend inside.
fn border<B: Fp8Matmul>(value: TensorPrimitive<Fp8Backend<B>>) -> TensorPrimitive<B> {
    match value {
        TensorPrimitive::Float(value) => TensorPrimitive::Float(value),
        TensorPrimitive::QFloat(Fp8QTensor::Other(value)) => TensorPrimitive::QFloat(value),
        TensorPrimitive::QFloat(codes) => {
            TensorPrimitive::Float(Fp8Backend::<B>::dequantize(codes, FloatDType::F32))
        }
    }
}

impl<B: Fp8Matmul + BoolVisionOps> BoolVisionOps for Fp8Backend<B> {
    fn connected_components_with_stats(
        img: BoolTensor<Self>,
        connectivity: Connectivity,
        opts: ConnectedStatsOptions,
    ) -> (IntTensor<Self>, ConnectedStatsPrimitive<Self>) {
        let (labels, stats) = B::connected_components_with_stats(img, connectivity, opts);
        (labels, stats.rewrap())
    }

    forward! { [plain]
        fn connected_components(
            img: BoolTensor<Self>, connectivity: Connectivity,
        ) -> IntTensor<Self>;
    }
    morphology! { BoolTensor, Bool, |border| border => bool_erode, bool_dilate }
}

impl<B: Fp8Matmul + IntVisionOps> IntVisionOps for Fp8Backend<B> {
    morphology! { IntTensor, Int, |border| border => int_erode, int_dilate }
}

impl<B: Fp8Matmul + FloatVisionOps> FloatVisionOps for Fp8Backend<B> {
    morphology! { FloatTensor, Float, |value| border(value) => float_erode, float_dilate }
    forward! { [plain]
        fn nms(
            boxes: FloatTensor<Self>, scores: FloatTensor<Self>, options: NmsOptions,
        ) -> IntTensor<Self>;
    }
}

impl<B: Fp8Matmul + FloatVisionOps + QVisionOps> QVisionOps for Fp8Backend<B> {
    morphology! { QuantizedTensor, Float, |value| border(value) => q_erode or float_erode, q_dilate or float_dilate }
}

impl<B: Fp8Matmul + VisionBackend> VisionBackend for Fp8Backend<B> {}
