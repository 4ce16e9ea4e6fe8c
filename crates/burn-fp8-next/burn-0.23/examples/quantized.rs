//! Burn's own quantization on Burn 0.23, on Flex and on the served device: the error of a layer's outputs, and the time of eight larger ones.
//!
//! ```sh
//! cargo run --release --manifest-path crates/burn-fp8-next/burn-0.23/Cargo.toml --features device --example quantized
//! ```

use std::time::Instant;

use burn::module::{Module, Param, Quantizer};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::quantization::{Calibration, QuantScheme, QuantValue};
use burn::tensor::{Device, Distribution, Tensor};
use burn_fp8_next::device;

fn main() {
    let flex = Device::flex();
    let random = |shape| Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), &flex);
    let layer = |size: usize| -> Linear {
        let weight = Param::from_tensor(random([size, size]));
        Linear { weight, ..LinearConfig::new(size, size).with_bias(false).init(&flex) }
    };
    let quantized = |layer: &Linear, value: Option<QuantValue>, device: &Device| {
        let layer = layer.clone().fork(device);
        match value {
            Some(value) => {
                let scheme = QuantScheme::default().with_value(value);
                layer.quantize_weights(&mut Quantizer::new(Calibration::MinMax, scheme))
            }
            None => layer,
        }
    };

    let (small, x) = (layer(512), random([64, 512]));
    let exact = small.forward(x.clone());
    let large: Vec<_> = (0..8).map(|_| layer(4096)).collect();
    let row = random([1, 4096]);
    println!("device   weights   error   8 × 4096×4096, one row");
    for (name, device) in [("Flex", flex.clone()), ("served", device::flex())] {
        for value in [Some(QuantValue::E4M3), Some(QuantValue::Q8S), None] {
            let to_here = |x: &Tensor<2>| Tensor::<2>::from_data(x.to_data(), &device);
            let y = quantized(&small, value, &device).forward(to_here(&x));
            let y = Tensor::<2>::from_data(y.into_data(), &flex);
            let error = (y - exact.clone()).square().sum() / exact.clone().square().sum();
            let error = error.sqrt().into_scalar::<f32>();

            let layers: Vec<_> = large.iter().map(|it| quantized(it, value, &device)).collect();
            let row = to_here(&row);
            let mut best = f64::INFINITY;
            for _ in 0..6 {
                let start = Instant::now();
                layers.iter().for_each(|layer| drop(layer.forward(row.clone()).into_data()));
                best = best.min(start.elapsed().as_secs_f64() * 1e3);
            }
            let weights = value.map_or("f32".into(), |value| format!("{value:?}"));
            println!("{name:<8} {weights:<9} {error:.4}  {best:.1} ms");
        }
    }
}
