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
    let x = tensor::<B, 2>(&Random(3).spread(16 * 32), [16, 32]);
    bits(&values(model.second.forward(model.first.forward(x))))
}

fn model<B: Backend>() -> Layers<B> {
    let mut random = Random(7);
    let mut layer = |inputs: usize, outputs: usize| {
        let weight = tensor::<B, 2>(&random.spread(inputs * outputs), [inputs, outputs]);
        Linear { weight: Param::from_tensor(weight), bias: None }
    };
    initialized(Layers { first: layer(32, 48), second: layer(48, 32) })
}

#[test]
fn products_of_quantized_weights_are_those_of_the_backend() {
    let mut quantizer =
        Quantizer { calibration: Calibration::MinMax, scheme: QuantScheme::default() };
    let plain = forward(&model::<Flex>().quantize_weights(&mut quantizer));
    let (decorated, report) =
        trace(|| forward(&model::<Fp8Backend<Flex>>().quantize_weights(&mut quantizer)));
    assert_eq!(decorated, plain, "{report}");
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason.to_string()).collect();
    assert_eq!(reasons, ["an operand is quantized already, by Burn"; 2]);
    // The same layers of numbers run in FP8.
    let (_, report) = trace(|| forward(&model::<Fp8Backend<Flex>>()));
    assert_eq!(report.fp8().count(), 2);
}

/// Who dequantizes a weight and keeps the numbers has a model like any other.
#[test]
fn a_weight_that_a_user_has_dequantized_runs_in_fp8() {
    let mut layer = model::<Fp8Backend<Flex>>().first;
    let quantized = layer.weight.val().quantize_dynamic(&QuantScheme::default());
    layer.weight = Param::from_tensor(quantized.dequantize());
    let x = tensor::<Fp8Backend<Flex>, 2>(&Random(3).spread(16 * 32), [16, 32]);
    let (_, report) = trace(|| layer.forward(x));
    assert_eq!(report.fp8().count(), 1, "{report}");
}
