//! `burn::vision` on the decorator.

use burn::backend::Flex;
use burn::tensor::quantization::{QuantParam, QuantScheme, QuantValue};
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_fp8::Fp8Backend;
use burn_vision::{
    BorderType, ConnectedComponents, ConnectedStatsOptions, Connectivity, KernelShape,
    MorphOptions, Morphology, Nms, NmsOptions, Size, VisionBackend, create_structuring_element,
};

/// What every operation makes of one picture.
fn everything<B: VisionBackend>() -> Vec<TensorData> {
    let device = Default::default();
    // The same picture on every backend.
    let noise = (0..24 * 20).map(|i| f32::from((i * i * 7 + i * 13) as u8));
    let data = TensorData::new(noise.collect::<Vec<_>>(), [24, 20, 1]);
    let grey = Tensor::<B, 3>::from_data(data, &device);
    let white = grey.clone().greater_elem(110.0);
    let counts: Tensor<B, 3, Int> = grey.clone().int();
    let kernel =
        || create_structuring_element::<B>(KernelShape::Cross, Size::new(3, 3), None, &device);
    fn bordered<B: VisionBackend, K: burn::tensor::BasicOps<B>>(
        border: Tensor<B, 1, K>,
    ) -> MorphOptions<B, K> {
        MorphOptions {
            iterations: 2,
            border_type: BorderType::Constant,
            border_value: Some(border),
            ..MorphOptions::default()
        }
    }
    let (labels, stats) = white
        .clone()
        .squeeze_dim::<2>(2)
        .connected_components_with_stats(Connectivity::Four, ConnectedStatsOptions::all());
    let corners = Tensor::<B, 2>::from_data(
        [[0.0, 0.0, 9.0, 9.0], [1.0, 1.0, 9.0, 9.0], [20.0, 20.0, 30.0, 30.0]],
        &device,
    );
    let scores = Tensor::<B, 1>::from_data([0.8, 0.9, 0.7], &device);
    let border = || Tensor::<B, 1>::from_data([200.0], &device);
    vec![
        white.clone().squeeze_dim::<2>(2).connected_components(Connectivity::Eight).into_data(),
        labels.into_data(),
        stats.area.into_data(),
        stats.left.into_data(),
        stats.top.into_data(),
        stats.right.into_data(),
        stats.bottom.into_data(),
        stats.max_label.into_data(),
        grey.clone().erode(kernel(), bordered(border())).into_data(),
        grey.dilate(kernel(), bordered(border())).into_data(),
        counts.clone().erode(kernel(), bordered(border().int())).into_data(),
        counts.dilate(kernel(), bordered(border().int())).into_data(),
        white.clone().erode(kernel(), bordered(border().bool())).into_data(),
        white.dilate(kernel(), bordered(border().bool())).into_data(),
        corners.nms(scores, NmsOptions { iou_threshold: 0.5, ..NmsOptions::default() }).into_data(),
    ]
}

#[test]
fn its_operations_are_those_of_the_backend() {
    let results = everything::<Fp8Backend<Flex>>();
    // The second box hides the first one.
    results.last().expect("boxes").assert_eq(&TensorData::from([1, 2]).convert::<i32>(), false);
    assert_eq!(results, everything::<Flex>());
}

/// What is in FP8 is dequantized, and quantized again.
#[test]
fn pictures_in_fp8_stay_in_fp8() {
    type B = Fp8Backend<Flex>;
    let device = Default::default();
    // Powers of two, which are numbers of the format with every scale that comes up.
    let numbers = (0..64).map(|i| 2f32.powi(i * 5 % 9));
    let data = TensorData::new(numbers.collect::<Vec<_>>(), [8, 8, 1]);
    let grey = Tensor::<B, 3>::from_data(data, &device);
    let kernel =
        || create_structuring_element::<B>(KernelShape::Cross, Size::new(3, 3), None, &device);
    let scheme = QuantScheme::default().with_value(QuantValue::E4M3).with_param(QuantParam::UE8M0);
    let codes = grey.clone().quantize_dynamic(&scheme);
    for (moved, expected) in [
        (
            codes.clone().erode(kernel(), MorphOptions::default()),
            grey.clone().erode(kernel(), MorphOptions::default()),
        ),
        (
            codes.dilate(kernel(), MorphOptions::default()),
            grey.dilate(kernel(), MorphOptions::default()),
        ),
    ] {
        assert!(matches!(moved.dtype(), DType::QFloat(_)));
        assert_eq!(moved.dequantize().into_data(), expected.into_data());
    }
}
