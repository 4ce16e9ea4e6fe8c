//! The operations of `burn::vision`: they are those of `B`, with its kernels where it has some.

use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn::tensor::{Bool, Float, Int, Tensor, TensorKind};
use burn_backend::Backend;
use burn_vision::{
    BoolVisionOps, ConnectedStatsOptions, ConnectedStatsPrimitive, Connectivity, FloatVisionOps,
    IntVisionOps, MorphOptions, NmsOptions, QVisionOps, VisionBackend,
};

use super::convert::{Rewrap, SameTensors, rewrap_fields};
use super::{Fp8Backend, Fp8Matmul};

rewrap_fields! {
    ConnectedStatsPrimitive { area, left, top, right, bottom, max_label }
}

/// The same options, whose border value is a tensor of the other backend.
fn over<A: Backend, B: Backend, K: TensorKind<A> + TensorKind<B>>(
    options: MorphOptions<A, K>,
    border: impl FnOnce(Tensor<A, 1, K>) -> Tensor<B, 1, K>,
) -> MorphOptions<B, K> {
    let MorphOptions { anchor, iterations, border_type, border_value } = options;
    MorphOptions { anchor, iterations, border_type, border_value: border_value.map(border) }
}

fn bools<A: Backend, B: SameTensors<A>>(border: Tensor<A, 1, Bool>) -> Tensor<B, 1, Bool> {
    Tensor::from_primitive(border.into_primitive())
}

fn ints<A: Backend, B: SameTensors<A>>(border: Tensor<A, 1, Int>) -> Tensor<B, 1, Int> {
    Tensor::from_primitive(border.into_primitive())
}

fn floats<A: Backend, B: SameTensors<A>>(border: Tensor<A, 1>) -> Tensor<B, 1> {
    Tensor::from_primitive(border.into_primitive().rewrap())
}

impl<B: Fp8Matmul + BoolVisionOps> BoolVisionOps for Fp8Backend<B> {
    fn connected_components(img: BoolTensor<Self>, connectivity: Connectivity) -> IntTensor<Self> {
        B::connected_components(img, connectivity)
    }

    fn connected_components_with_stats(
        img: BoolTensor<Self>,
        connectivity: Connectivity,
        opts: ConnectedStatsOptions,
    ) -> (IntTensor<Self>, ConnectedStatsPrimitive<Self>) {
        let (labels, stats) = B::connected_components_with_stats(img, connectivity, opts);
        (labels, stats.rewrap())
    }

    fn bool_erode(
        input: BoolTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Bool>,
    ) -> BoolTensor<Self> {
        B::bool_erode(input, kernel, over(opts, bools))
    }

    fn bool_dilate(
        input: BoolTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Bool>,
    ) -> BoolTensor<Self> {
        B::bool_dilate(input, kernel, over(opts, bools))
    }
}

impl<B: Fp8Matmul + IntVisionOps> IntVisionOps for Fp8Backend<B> {
    fn int_erode(
        input: IntTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Int>,
    ) -> IntTensor<Self> {
        B::int_erode(input, kernel, over(opts, ints))
    }

    fn int_dilate(
        input: IntTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Int>,
    ) -> IntTensor<Self> {
        B::int_dilate(input, kernel, over(opts, ints))
    }
}

impl<B: Fp8Matmul + FloatVisionOps> FloatVisionOps for Fp8Backend<B> {
    fn float_erode(
        input: FloatTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Float>,
    ) -> FloatTensor<Self> {
        B::float_erode(input, kernel, over(opts, floats))
    }

    fn float_dilate(
        input: FloatTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Float>,
    ) -> FloatTensor<Self> {
        B::float_dilate(input, kernel, over(opts, floats))
    }

    fn nms(
        boxes: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        options: NmsOptions,
    ) -> IntTensor<Self> {
        B::nms(boxes, scores, options)
    }
}

impl<B: Fp8Matmul + QVisionOps> QVisionOps for Fp8Backend<B> {
    fn q_erode(
        input: QuantizedTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Float>,
    ) -> QuantizedTensor<Self> {
        B::q_erode(input, kernel, over(opts, floats))
    }

    fn q_dilate(
        input: QuantizedTensor<Self>,
        kernel: BoolTensor<Self>,
        opts: MorphOptions<Self, Float>,
    ) -> QuantizedTensor<Self> {
        B::q_dilate(input, kernel, over(opts, floats))
    }
}

impl<B: Fp8Matmul + VisionBackend> VisionBackend for Fp8Backend<B> {}
