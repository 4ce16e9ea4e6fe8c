//! Times forward and backward pass of a perceptron on Burn 0.21 and on this Burn, in turns: f32 and FP8 with current scaling, on Flex.
//!
//! `cargo run --release -p burn-fp8-next --example step`

use std::time::Instant;

use burn_fp8::Fp8Backend;
use burn_fp8_next::nn::Fp8Linear;
use burn_fp8_next::{high_precision, trace};

/// Rows, inputs and outputs, hidden.
const SHAPE: [usize; 3] = [256, 1024, 4096];
const TURNS: usize = 9;

type Step = Box<dyn Fn()>;
type Old = Fp8Backend<burn_021::backend::Autodiff<burn_021::backend::Flex>>;

fn main() {
    let steps: [(&str, Step); 4] = [
        ("f32, Burn 0.21", old(false)),
        ("f32, this Burn", new(false)),
        ("FP8, Burn 0.21", old(true)),
        ("FP8, this Burn", new(true)),
    ];
    let mut times = [const { Vec::new() }; 4];
    // The first turn warms up.
    for turn in 0..=TURNS {
        for ((_, step), times) in steps.iter().zip(&mut times) {
            let start = Instant::now();
            step();
            if turn > 0 {
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    println!("forward and backward pass, {SHAPE:?}, median of {TURNS} turns:");
    for ((name, _), times) in steps.iter().zip(&mut times) {
        times.sort_by(f64::total_cmp);
        println!("{name}: {:.1} ms, from {:.1}", times[TURNS / 2], times[0]);
    }
    for (name, [old, new]) in [("f32", [0, 1]), ("FP8", [2, 3])] {
        println!(
            "{name}: {:.2} of the speed on Burn 0.21",
            times[old][TURNS / 2] / times[new][TURNS / 2]
        );
    }
}

fn old(in_fp8: bool) -> Step {
    use burn_021::nn::{Linear, LinearConfig};
    use burn_021::tensor::{Distribution, Tensor, activation::relu};

    let [rows, width, hidden] = SHAPE;
    let device = Default::default();
    let layers: [Linear<Old>; 2] = [[width, hidden], [hidden, width]]
        .map(|[inputs, outputs]| LinearConfig::new(inputs, outputs).init(&device));
    let x = Tensor::<Old, 2>::random([rows, width], Distribution::Normal(0.0, 1.0), &device);
    let step = move || {
        let y = layers[1].forward(relu(layers[0].forward(x.clone())));
        drop(y.powi_scalar(2).mean().backward());
    };
    assert_eq!(burn_fp8::trace(&step).1.fp8().count(), 5);
    match in_fp8 {
        true => Box::new(step),
        false => Box::new(move || burn_fp8::high_precision(&step)),
    }
}

fn new(in_fp8: bool) -> Step {
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Distribution, Tensor, activation::relu};

    let [rows, width, hidden] = SHAPE;
    let device = Device::flex().autodiff();
    let layers: [Fp8Linear; 2] = [[width, hidden], [hidden, width]]
        .map(|[inputs, outputs]| LinearConfig::new(inputs, outputs).init(&device).into());
    let x = Tensor::<2>::random([rows, width], Distribution::Normal(0.0, 1.0), &device);
    let step = move || {
        let y = layers[1].forward(relu(layers[0].forward(x.clone())));
        drop(y.powi_scalar(2).mean().backward());
    };
    assert_eq!(trace(&step).1.fp8().count(), 5);
    match in_fp8 {
        true => Box::new(step),
        false => Box::new(move || high_precision(&step)),
    }
}
