//! Burn's own quantization to E4M3: what it gives alone, and under `Fp8Backend`. The three functions show what Burn 0.21 lacks, in a few lines each.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param, Quantizer};
use burn::nn::Linear;
use burn::tensor::backend::Backend;
use burn::tensor::quantization::{Calibration, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{Distribution, Tensor, TensorData};
use burn_fp8::{Fp8Backend, high_precision, trace};

/// How far the outputs of a layer are from those of its numbers once a quantizer has taken its weight, relative to their norm. FP8 rounds no input here.
fn error<B: Backend>([x, weight]: &[TensorData; 2], value: QuantValue) -> f32 {
    let device = Default::default();
    let x = Tensor::<B, 2>::from_data(x.clone(), &device);
    let weight = Param::from_data(weight.clone(), &device);
    let layer = Linear::<B> { weight, bias: None };
    let exact = high_precision(|| layer.forward(x.clone()));
    let scheme = QuantScheme::default().with_value(value).with_store(QuantStore::Native);
    let mut quantizer = Quantizer { calibration: Calibration::MinMax, scheme };
    let y = high_precision(|| layer.quantize_weights(&mut quantizer).forward(x));
    let norm = |x: Tensor<B, 2>| x.powi_scalar(2).sum().sqrt().into_data().iter::<f32>().next();
    norm(y - exact.clone()).expect("a number") / norm(exact).expect("a number")
}

/// Burn 0.21 and 0.22 on Flex: `x / scale` of an E4M3 scheme is rounded to an integer, and squeezed into an `i8`.
fn e4m3_is_integers() -> Vec<f32> {
    let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
    let x = Tensor::<Flex, 1>::from_floats([448.0, 300.0, 3.25, 0.4], &Default::default());
    x.quantize_dynamic(&scheme).dequantize().into_data().to_vec().expect("f32")
}

/// Burn's `q_matmul` decodes the whole weight first, and the product is one of numbers: the time of a row, over that of the same weight in f32.
fn q_matmul_decodes<B: Backend>(x: Tensor<B, 2>, weight: Tensor<B, 2>) -> f64 {
    let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
    let quantized = weight.clone().quantize_dynamic(&scheme);
    let [high, low] = [weight, quantized].map(|weight| {
        let run = || drop(x.clone().matmul(weight.clone()).into_data());
        (0..9).fold(f64::MAX, |least, _| {
            let start = std::time::Instant::now();
            run();
            least.min(start.elapsed().as_secs_f64())
        })
    });
    low / high
}

/// Burn's Autodiff has no quantized tensors: it panics, where LoRA would need the gradient of the input of a quantized weight.
fn autodiff_quantizes(weight: TensorData, scheme: &QuantScheme) -> bool {
    let weight = Tensor::<Autodiff<Flex>, 2>::from_data(weight, &Default::default());
    std::panic::set_hook(Box::new(|_| {}));
    let result = catch_unwind(AssertUnwindSafe(|| weight.quantize_dynamic(scheme)));
    drop(std::panic::take_hook());
    result.is_ok()
}

fn main() {
    let device = Default::default();
    let normal = |shape, deviation| {
        Tensor::<Flex, 2>::random(shape, Distribution::Normal(0.0, deviation), &device).into_data()
    };
    let operands = [normal([64, 512], 1.0), normal([512, 512], 0.02)];
    println!("448, 300, 3.25 and 0.4 in E4M3, by Burn on Flex: {:?}", e4m3_is_integers());
    let (integers, alone) =
        (error::<Flex>(&operands, QuantValue::Q8S), error::<Flex>(&operands, QuantValue::E4M3));
    let ours = error::<Fp8Backend<Flex>>(&operands, QuantValue::E4M3);
    println!("outputs off by: Q8S {integers:.4}, E4M3 {alone:.4}; E4M3 under Fp8Backend {ours:.4}");

    let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
    let [row, weight] = [normal([1, 2048], 1.0), normal([2048, 2048], 0.02)];
    let times = [
        q_matmul_decodes::<Flex>(
            Tensor::from_data(row.clone(), &device),
            Tensor::from_data(weight.clone(), &device),
        ),
        q_matmul_decodes::<Fp8Backend<Flex>>(
            Tensor::from_data(row, &device),
            Tensor::from_data(weight.clone(), &device),
        ),
    ];
    println!(
        "a row takes {:.1} times as long as in f32 by Burn, {:.2} times under Fp8Backend",
        times[0], times[1]
    );

    let quantizes = autodiff_quantizes(weight.clone(), &scheme);
    println!("Burn's Autodiff quantizes a weight: {quantizes}");
    type B = Fp8Backend<Autodiff<Flex>>;
    let weight = Tensor::<B, 2>::from_data(weight, &device).quantize_dynamic(&scheme);
    let x = Tensor::<B, 2>::ones([32, 2048], &device).require_grad();
    let (y, report) = trace(|| x.clone().matmul(weight));
    let grads = y.sum().backward();
    println!(
        "Fp8Backend: {} product in FP8, gradient of the input {:?}",
        report.fp8().count(),
        x.grad(&grads).expect("it has one").dims()
    );
}
