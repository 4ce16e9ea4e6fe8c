//! Models whose weights Burn has quantized: they are not rounded a second time.

use burn::module::Quantizer;
use burn::tensor::quantization::{Calibration, QuantScheme};

use crate::common::models::initialized;
use crate::common::*;

#[derive(Module, Debug)]
struct Layers<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

fn forward<B: Backend>(model: &Layers<B>) -> Vec<u32> {
    bits(&values(model.second.forward(model.first.forward(random(3, [16, 32])))))
}

fn model<B: Backend>() -> Layers<B> {
    let layer = |seed, shape| linear(random(seed, shape), None);
    initialized(Layers { first: layer(7, [32, 48]), second: layer(8, [48, 32]) })
}

#[test]
fn products_of_quantized_weights_are_those_of_the_backend() {
    let mut quantizer =
        Quantizer { calibration: Calibration::MinMax, scheme: QuantScheme::default() };
    let plain = forward(&model::<Flex>().quantize_weights(&mut quantizer));
    let (decorated, report) =
        trace(|| forward(&model::<Fp8Backend<Flex>>().quantize_weights(&mut quantizer)));
    assert_eq!(decorated, plain, "{report}");
    assert_eq!(reasons(&report), [HighPrecision::Quantized; 2]);
    says(&report, ["an operand is quantized already, by Burn"]);
    assert_eq!(report.products[0].gemm.flops(), 2 * 16 * 32 * 48);
    assert_eq!(report.share_in_fp8(), Some(0.0));
    // The same layers of numbers run in FP8.
    let (_, report) = trace(|| forward(&model::<Fp8Backend<Flex>>()));
    assert_eq!(report.fp8().count(), 2);
}

/// Who dequantizes a weight and keeps the numbers has a model like any other.
#[test]
fn a_weight_that_a_user_has_dequantized_runs_in_fp8() {
    type B = Fp8Backend<Flex>;
    let weight = model::<B>().first.weight.val().quantize_dynamic(&QuantScheme::default());
    let layer = linear::<B>(weight.dequantize(), None);
    let (_, report) = trace(|| layer.forward(random::<B, 2>(3, [16, 32])));
    assert_eq!(report.fp8().count(), 1, "{report}");
}
