//! What watching costs, and a log to look at.
#![cfg(feature = "flex")]
#![allow(missing_docs)]

mod common;

use burn::backend::Flex;
use burn::tensor::backend::Backend;
use burn_fp8::report::{Observatory, ObservatoryOptions, named};
use burn_fp8::{Fp8Config, Recipe};
use common::{Outer, Random, tensor};

/// A block of a model that trains on inputs with outliers, as language models have them.
fn outliers(seed: u64, rows: usize, width: usize) -> Vec<f32> {
    let mut random = Random(seed);
    let mut values: Vec<f32> = (0..rows * width).map(|_| random.unit()).collect();
    // Two channels, and one row as a whole.
    values.iter_mut().skip(3).step_by(width).for_each(|x| *x *= 60.0);
    values.iter_mut().skip(7).step_by(width).for_each(|x| *x *= 200.0);
    values[5 * width..6 * width].iter_mut().for_each(|x| *x *= 5000.0);
    values
}

/// Prints what watching costs on a model of four layers, and writes the log of one of its runs: to the file that
/// `OBSERVATORY_LOG` names, if it is set.
///
/// `OBSERVATORY_LOG=fp8.jsonl cargo test --test observatory_overhead -- --ignored --nocapture`, then `cargo xtask report
/// fp8.jsonl`.
#[test]
#[ignore = "measures time"]
fn overhead() {
    use std::time::Instant;

    use burn::nn::{Linear, LinearConfig};
    use burn::optim::{AdamConfig, GradientsParams, Optimizer};

    type B = Outer<Flex>;
    const ROWS: usize = 256;
    const WIDTH: usize = 256;
    const STEPS: usize = 200;

    #[derive(burn::module::Module, Debug)]
    struct Net<B: Backend> {
        layers: Vec<Linear<B>>,
    }

    let run = |observatory: Option<Observatory>, recipe: Recipe| {
        let device = Default::default();
        let layers = (0..4).map(|_| LinearConfig::new(WIDTH, WIDTH).init(&device)).collect();
        let mut net = Net::<B> { layers };
        let mut optimizer = AdamConfig::new().init();
        let config = Fp8Config::default().with_recipe(recipe);
        let mut times = Vec::new();
        for step in 0..STEPS {
            let x = tensor::<B, 2>(&outliers(step as u64, ROWS, WIDTH), [ROWS, WIDTH]);
            let start = Instant::now();
            let pass = || {
                let mut y = x;
                for (index, layer) in net.layers.iter().enumerate() {
                    y = named(&format!("layers.{index}"), || layer.forward(y));
                    y = burn::tensor::activation::relu(y);
                }
                y.powi_scalar(2).mean().backward()
            };
            let gradients = config.scope(|| match &observatory {
                Some(observatory) => observatory.step(pass),
                None => pass(),
            });
            let gradients = GradientsParams::from_grads(gradients, &net);
            net = optimizer.step(1e-3, net, gradients);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        (times.iter().sum::<f64>() / STEPS as f64, times[STEPS / 2])
    };
    let options = ObservatoryOptions::default();
    let observatory =
        |every| Some(Observatory::new(options.clone().with_every(every)).expect("valid"));
    for (name, observatory) in [
        ("no observatory", None),
        ("every 1000 steps", observatory(1000)),
        ("every 100 steps", observatory(100)),
        ("every 10 steps", observatory(10)),
        ("every step", observatory(1)),
    ] {
        let (mean, median) = run(observatory, Recipe::current());
        println!("{name:>18}: {mean:7.2} ms a step, median {median:7.2} ms");
    }
    if let Some(path) = std::env::var_os("OBSERVATORY_LOG") {
        let options = options.with_every(5).with_log(path);
        let watching = Observatory::new(options).expect("created");
        burn_fp8::DelayedState::new()
            .scope(|| run(Some(watching.clone()), Recipe::delayed().with_history_length(16)));
        println!("{}", watching.report());
    }
}
