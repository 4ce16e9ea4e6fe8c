//! Times a step of training of a perceptron, in turns: in f32, with FP8 layers, and unmodified on an FP8 device.
//!
//! `cargo run --release -p burn-fp8-next --features device --example device`

use std::time::Instant;

use burn::nn::LinearConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_fp8_next::nn::Fp8Linear;
use burn_fp8_next::{device, ops};

/// Rows, inputs, hidden, outputs; steps in a turn.
const SHAPES: [([usize; 4], usize); 2] = [([256, 1024, 4096, 1024], 1), ([64, 32, 64, 8], 100)];
const TURNS: usize = 9;

type Step = Box<dyn FnMut()>;

fn main() {
    for (shape, steps) in SHAPES {
        let local = Device::flex().autodiff();
        let mut kinds: [(&str, Step); 4] = [
            ("f32", step(shape, &local, false)),
            ("f32 layers, FP8 device", step(shape, &device::flex().autodiff(), false)),
            ("FP8 layers", step(shape, &local, true)),
            ("f32, again", step(shape, &local, false)),
        ];
        let mut times = [const { Vec::new() }; 4];
        // The first turn warms up.
        for turn in 0..=TURNS {
            for ((_, step), times) in kinds.iter_mut().zip(&mut times) {
                let start = Instant::now();
                (0..steps).for_each(|_| step());
                if turn > 0 {
                    times.push(start.elapsed().as_secs_f64() * 1e3 / steps as f64);
                }
            }
        }
        println!("{shape:?}, milliseconds a step, median of {TURNS} turns, and the least:");
        for ((name, _), times) in kinds.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            println!("  {name:<24}{:>9.3}{:>9.3}", times[TURNS / 2], times[0]);
        }
    }
}

/// A step with plain descent, whose loss is read.
fn step([rows, inputs, hidden, outputs]: [usize; 4], device: &Device, in_fp8: bool) -> Step {
    let layers = [(inputs, hidden), (hidden, outputs)]
        .map(|(inputs, outputs)| LinearConfig::new(inputs, outputs).init(device));
    let x = Tensor::<2>::random([rows, inputs], Distribution::Normal(0.0, 1.0), device);
    macro_rules! step {
        ($layers:expr) => {{
            let mut layers = $layers;
            Box::new(move || {
                let y = layers[1].forward(relu(layers[0].forward(x.clone())));
                let loss = y.powi_scalar(2).mean();
                let value = loss.clone().inner();
                let gradients = ops::backward(loss);
                for layer in &mut layers {
                    let weight = layer.weight.clone();
                    let gradient = weight.val().grad(&gradients).expect("it has one");
                    let descend = |value: Tensor<2>| {
                        Tensor::from_inner(value.inner() - gradient * 1e-3).require_grad()
                    };
                    layer.weight = weight.map(descend);
                }
                assert!(value.into_scalar::<f32>().is_finite());
            })
        }};
    }
    if in_fp8 { step!(layers.map(Fp8Linear::from)) } else { step!(layers) }
}
