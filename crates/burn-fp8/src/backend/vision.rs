//! The operations of `burn::vision`: they are those of `B`, with its kernels where it has some.

use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn::tensor::{Bool, Float, Int, Tensor};
use burn_vision::{
    BoolVisionOps, ConnectedStatsOptions, ConnectedStatsPrimitive, Connectivity, FloatVisionOps,
    IntVisionOps, MorphOptions, NmsOptions, QVisionOps, VisionBackend,
};

use super::convert::{Rewrap, SameTensors, rewrap_fields};
use super::{Fp8Backend, Fp8Matmul};

rewrap_fields! {
    ConnectedStatsPrimitive { area, left, top, right, bottom, max_label }
}

/// Morphology of one kind of tensors. The options go along, with a border value that is a tensor of the other backend.
macro_rules! morphology {
    ($tensor:ident, $kind:ident, |$border:ident| $crossed:expr => $($name:ident)*) => {$(
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
            B::$name(input, kernel, opts)
        }
    )*};
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
    morphology! { BoolTensor, Bool, |border| border => bool_erode bool_dilate }
}

impl<B: Fp8Matmul + IntVisionOps> IntVisionOps for Fp8Backend<B> {
    morphology! { IntTensor, Int, |border| border => int_erode int_dilate }
}

impl<B: Fp8Matmul + FloatVisionOps> FloatVisionOps for Fp8Backend<B> {
    morphology! { FloatTensor, Float, |border| border.rewrap() => float_erode float_dilate }
    forward! { [plain]
        fn nms(
            boxes: FloatTensor<Self>, scores: FloatTensor<Self>, options: NmsOptions,
        ) -> IntTensor<Self>;
    }
}

impl<B: Fp8Matmul + QVisionOps> QVisionOps for Fp8Backend<B> {
    morphology! { QuantizedTensor, Float, |border| border.rewrap() => q_erode q_dilate }
}

impl<B: Fp8Matmul + VisionBackend> VisionBackend for Fp8Backend<B> {}
