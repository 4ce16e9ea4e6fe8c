//! The observatory, from a training step to its report.
#![cfg(feature = "flex")]
#![allow(missing_docs)]

mod common;

use burn::backend::Flex;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Tensor};
use burn_fp8::report::sample::{Alternative, Prediction, ProductStats};
use burn_fp8::report::{Advice, Observations, Observatory, ObservatoryOptions, log, named};
use burn_fp8::{Filter, Fp8Config, Fp8Format, GemmRole, Recipe, trace};
use common::{Inner, Outer, Random, panic_of, tensor, values};

const M: usize = 20;
const K: usize = 24;
const N: usize = 16;

fn every_step() -> Observatory {
    Observatory::new(ObservatoryOptions::default().with_every(1)).expect("valid options")
}

fn operands(seed: u64) -> [Vec<f32>; 3] {
    let mut random = Random(seed);
    [M * K, K * N, M * N].map(|count| random.spread(count))
}

/// `x · w`, and the gradients of both for a given gradient of the result.
fn products<B: AutodiffBackend>([x, w, g]: &[Vec<f32>; 3]) -> [Vec<f32>; 3] {
    let x = tensor::<B, 2>(x, [M, K]).require_grad();
    let w = tensor::<B, 2>(w, [K, N]).require_grad();
    let y = named("up", || x.clone().matmul(w.clone()));
    let gradients = (y.clone() * tensor(g, [M, N])).sum().backward();
    let grad = |tensor: &Tensor<B, 2>| values(tensor.grad(&gradients).expect("tracked"));
    [values(y.inner()), grad(&x), grad(&w)]
}

/// The number that is nearest to `x / scale` in the table of codes, the one of even code of two, times the scale.
fn nearest(x: f32, scale: f32, format: Fp8Format) -> f64 {
    let quotient = f64::from(x / scale).abs().min(f64::from(format.max()));
    let finite = (0..=0x7Fu8).filter(|code| format.decode(*code).is_finite());
    let distance = |code: &u8| (f64::from(format.decode(*code)) - quotient).abs();
    let code =
        finite.min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
    f64::from(format.decode(code.expect("there are codes"))).copysign(f64::from(x))
        * f64::from(scale)
}

fn decibels(stats: Option<&ProductStats>) -> f64 {
    stats.expect("measured").sqnr.whole.decibels().expect("a signal")
}

fn predicted(stats: Option<&ProductStats>, alternative: Alternative) -> f64 {
    let is_it = |prediction: &&Prediction| prediction.alternative == alternative;
    let prediction = stats.expect("measured").alternatives.iter().find(is_it);
    prediction.expect("predicted").sqnr.whole.decibels().expect("a signal")
}

fn sites<B: Backend>(observatory: &Observatory) -> Observations {
    assert_eq!(observatory.failure(), None);
    observatory.report()
}

#[test]
fn the_three_products_of_a_layer_are_measured() {
    let tensors = operands(1);
    let observatory = every_step();
    let (_, report) = trace(|| observatory.step(|| products::<Outer<Flex>>(&tensors)));
    let seen = sites::<Flex>(&observatory);
    assert_eq!((seen.steps, seen.sites.len()), (1, 1));
    let site = &seen.sites[0];
    assert_eq!(site.label(), "up #1");
    assert_eq!((site.last.gemm.m, site.last.gemm.n, site.last.gemm.k), (20, 16, 24));

    // Scales are those that the trace tells, and the SQNRs those of a product made with the table of codes.
    let formats = [Fp8Format::E4M3, Fp8Format::E4M3, Fp8Format::E5M2];
    let traced = &report.products;
    let [x, w, g] =
        [traced[0].lhs, traced[0].rhs, traced[1].lhs].map(|operand| operand.expect("FP8"));
    let stats = &site.last.operands;
    for (stats, (traced, values)) in [&stats.input, &stats.weight, &stats.output_grad]
        .into_iter()
        .zip([x, w, g].iter().zip(&tensors))
    {
        let stats = stats.as_ref().expect("measured");
        assert_eq!((stats.scale, stats.format), (traced.scale, traced.format));
        assert_eq!(stats.amax, values.iter().fold(0f32, |amax, x| amax.max(x.abs())));
        assert_eq!((stats.sampled, stats.elements), (values.len() as u64, values.len() as u64));
        let flushed = |x: &&f32| **x != 0.0 && nearest(**x, traced.scale, traced.format) == 0.0;
        assert_eq!(stats.flushed, values.iter().filter(flushed).count() as u64);
    }
    let quantized: Vec<Vec<f64>> = tensors
        .iter()
        .zip([x, w, g].iter().zip(formats))
        .map(|(values, (traced, format))| {
            values.iter().map(|x| nearest(*x, traced.scale, format)).collect()
        })
        .collect();
    let exact: Vec<Vec<f64>> =
        tensors.iter().map(|x| x.iter().copied().map(f64::from).collect()).collect();
    let expected = |role: GemmRole| {
        let entry = |tensors: &[Vec<f64>], row: usize, column: usize| -> f64 {
            let [x, w, g] = [&tensors[0], &tensors[1], &tensors[2]];
            match role {
                GemmRole::Output => (0..K).map(|i| x[row * K + i] * w[i * N + column]).sum(),
                GemmRole::GradInput => (0..N).map(|i| g[row * N + i] * w[column * N + i]).sum(),
                GemmRole::GradWeight => (0..M).map(|i| x[i * K + row] * g[i * N + column]).sum(),
            }
        };
        let [rows, columns] = match role {
            GemmRole::Output => [M, N],
            GemmRole::GradInput => [M, K],
            GemmRole::GradWeight => [K, N],
        };
        let (mut signal, mut noise) = (0.0, 0.0);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let reference = entry(&exact, row, column);
            signal += reference * reference;
            noise += (reference - entry(&quantized, row, column)).powi(2);
        }
        10.0 * f64::log10(signal / noise)
    };
    for role in GemmRole::ALL {
        let measured = decibels(site.last.products.of(role));
        assert!((measured - expected(role)).abs() < 1e-6, "{role}: {measured}");
    }
}

#[test]
fn watching_changes_no_bit() {
    let tensors = operands(2);
    let plain = products::<Outer<Flex>>(&tensors);
    assert!(every_step().step(|| products::<Outer<Flex>>(&tensors)) == plain);
}

#[test]
fn only_sampled_steps_are_seen() {
    let tensors = operands(3);
    let observatory = Observatory::new(ObservatoryOptions::default().with_every(3)).expect("valid");
    products::<Outer<Flex>>(&tensors);
    for _ in 0..7 {
        observatory.step(|| products::<Outer<Flex>>(&tensors));
        products::<Outer<Flex>>(&tensors);
    }
    let seen = sites::<Flex>(&observatory);
    assert_eq!((seen.steps, seen.span, seen.sites.len()), (3, Some([0, 6]), 1));
    assert_eq!(seen.sites[0].points.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 3, 6]);
    for (every, elements, expected) in [(0, 1, "every = 0"), (1, 0, "max_elements = 0")] {
        let options = ObservatoryOptions::default().with_every(every).with_max_elements(elements);
        let error = Observatory::new(options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn only_products_that_run_in_fp8_are_measured() {
    let observatory = every_step();
    let [x, w, _] = operands(4);
    let config = Fp8Config::default().with_recipe(
        Recipe::current().with_precision(GemmRole::GradWeight, burn_fp8::Precision::High),
    );
    observatory.step(|| {
        // Left out by the filter; without a gradient; two gradients of which one is in high precision.
        let narrow = tensor::<Outer<Flex>, 2>(&x[..8 * K], [8, K]);
        narrow.matmul(tensor(&w, [K, N]));
        let weight = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
        let y = tensor::<Outer<Flex>, 2>(&x, [M, K]).matmul(weight);
        y.sum().backward();
        config.scope(|| products::<Outer<Flex>>(&operands(5)));
    });
    let seen = sites::<Flex>(&observatory);
    let roles: Vec<Vec<GemmRole>> = seen
        .sites
        .iter()
        .map(|site| {
            GemmRole::ALL
                .into_iter()
                .filter(|role| site.last.products.of(*role).is_some())
                .collect()
        })
        .collect();
    assert_eq!(
        roles,
        [vec![GemmRole::Output, GemmRole::GradWeight], vec![GemmRole::Output, GemmRole::GradInput]]
    );
    assert!(seen.sites[1].last.recipe.contains("grad_weight in high precision"));
}

#[test]
fn an_outlier_is_found_and_row_wise_scales_are_advised() {
    let [mut x, w, g] = operands(6);
    x[2 * K + 5] = 3e6;
    let observatory = every_step();
    observatory.step(|| products::<Outer<Flex>>(&[x, w, g]));
    let seen = sites::<Flex>(&observatory);
    let output = seen.sites[0].last.products.of(GemmRole::Output);
    // Beside the row of the outlier nothing is left; of the whole result it is nearly all of the power.
    let line = output.expect("measured").sqnr.line.decibels().expect("a signal");
    assert!(line < 10.0 && decibels(output) > 20.0, "{line}");
    let advised = seen.ranked().iter().any(|ranked| {
        matches!(ranked.advice, Advice::Change { alternative: Alternative::PerRow, .. })
    });
    assert!(advised, "{seen}");
}

#[test]
fn delayed_scales_that_saturate_are_told() {
    let [x, w, g] = operands(7);
    let larger: Vec<f32> = x.iter().map(|x| 64.0 * x).collect();
    let observatory = every_step();
    Fp8Config::default().with_recipe(Recipe::delayed()).scope(|| {
        burn_fp8::DelayedState::new().scope(|| {
            observatory.step(|| products::<Outer<Flex>>(&[x.clone(), w.clone(), g.clone()]));
            observatory.step(|| products::<Outer<Flex>>(&[larger.clone(), w, g]));
        });
    });
    let seen = sites::<Flex>(&observatory);
    let stats = seen.sites[0].last.operands.input.clone().expect("measured");
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    assert_eq!(stats.scale, amax / 448.0, "that of the step before");
    let beyond = larger.iter().filter(|x| (**x / stats.scale).abs() > 448.0).count();
    assert!(beyond > 0);
    assert_eq!(stats.saturated, beyond as u64);
    let output = seen.sites[0].last.products.of(GemmRole::Output);
    assert!(predicted(output, Alternative::CurrentScale) > decibels(output) + 10.0);
    let summary = observatory.summary().expect("sampled");
    assert_eq!(summary.saturated, beyond as f64 / (M * K + K * N + M * N) as f64);
    assert_eq!(summary.step, 1);
}

#[test]
fn samples_are_bounded_and_scales_are_those_of_whole_tensors() {
    const SIDE: usize = 96;
    let mut random = Random(8);
    let mut values = || (0..SIDE * SIDE).map(|_| random.unit()).collect::<Vec<f32>>();
    let [mut x, w] = [values(), values()];
    // An outlier in every row, all in one column: most samples do not meet it.
    x.iter_mut().step_by(SIDE).for_each(|x| *x = 5000.0);
    let observatory =
        Observatory::new(ObservatoryOptions::default().with_every(1).with_max_elements(256))
            .expect("valid");
    observatory
        .step(|| tensor::<Outer<Flex>, 2>(&x, [SIDE, SIDE]).matmul(tensor(&w, [SIDE, SIDE])));
    let seen = sites::<Flex>(&observatory);
    let site = &seen.sites[0].last;
    let stats = site.operands.input.as_ref().expect("measured");
    assert_eq!((stats.sampled, stats.elements), (256, (SIDE * SIDE) as u64));
    assert_eq!((stats.amax, stats.scale), (5000.0, 5000.0 / 448.0));
    let output = site.products.of(GemmRole::Output);
    assert_eq!(output.expect("measured").terms, 16);
    // Rows have the same outlier: scales of their own gain little, whatever the sample has met.
    let gain = predicted(output, Alternative::PerRow) - decibels(output);
    assert!(gain.abs() < 3.0, "{gain}");
}

#[test]
fn the_inner_order_has_a_site_for_each_product() {
    let observatory = every_step();
    observatory.step(|| {
        let layer = burn::nn::LinearConfig::new(K, N).init::<Inner<Flex>>(&Default::default());
        let x = tensor::<Inner<Flex>, 2>(&operands(9)[0], [M, K]).require_grad();
        layer.forward(x).powi_scalar(2).sum().backward()
    });
    let seen = sites::<Flex>(&observatory);
    let mut roles: Vec<_> = seen.ranked().iter().map(|ranked| ranked.role.to_string()).collect();
    roles.sort();
    assert_eq!(
        (seen.sites.len(), roles),
        (3, ["grad_input", "grad_weight", "output"].map(String::from).into())
    );
    assert!(seen.sites[1].label().contains("(backward)"), "{}", seen.sites[1].label());
}

#[test]
fn batches_and_narrow_types_are_sampled() {
    let observatory = every_step();
    let config = Fp8Config::default().with_filter(Filter::every_matmul());
    let x = Random(10).spread(3 * 4 * 5);
    let w = Random(11).spread(3 * 5 * 6);
    observatory.step(|| {
        config.scope(|| {
            tensor::<Outer<Flex>, 3>(&x, [3, 4, 5]).matmul(tensor(&w, [3, 5, 6]));
            // Leading dimensions join M; in f16.
            let x = tensor::<Outer<Flex>, 3>(&x, [3, 4, 5]).cast(FloatDType::F16);
            x.matmul(tensor::<Outer<Flex>, 3>(&w[..30], [1, 5, 6]).cast(FloatDType::F16));
        })
    });
    let seen = sites::<Flex>(&observatory);
    let [batched, joined] = [&seen.sites[0].last, &seen.sites[1].last];
    let sampled = |entry: &log::SiteEntry| {
        let [input, weight] = [&entry.operands.input, &entry.operands.weight];
        [input, weight].map(|stats| stats.as_ref().expect("measured").sampled)
    };
    assert_eq!((sampled(batched), batched.gemm.batch), ([20, 30], 3));
    assert_eq!((sampled(joined), joined.gemm.m), ([60, 30], 12));
    // The pair in the middle.
    let middle = x[20..40].iter().filter(|x| **x != 0.0).count() as u64;
    let histogram = &batched.operands.input.as_ref().expect("measured").histogram;
    assert_eq!(histogram.counts.iter().sum::<u64>(), middle);
    let largest = x[20..40].iter().fold(0f32, |amax, x| amax.max(x.abs()));
    let last = histogram.first + histogram.counts.len() as i32 - 1;
    assert_eq!(last, largest.log2().floor() as i32);
    assert!(seen.sites.iter().all(|site| decibels(site.last.products.of(GemmRole::Output)) > 10.0));
}

#[test]
fn steps_nest_and_panics_leave_nothing() {
    let tensors = operands(12);
    let (outer, inner) = (every_step(), every_step());
    outer.step(|| {
        named("outer", || {
            products::<Outer<Flex>>(&tensors);
            inner.step(|| products::<Outer<Flex>>(&tensors));
            let message = panic_of(|| {
                inner.step(|| {
                    named("lost", || -> () {
                        panic!("{:?}", products::<Outer<Flex>>(&tensors)[0].len())
                    })
                })
            });
            assert_eq!(message, (M * N).to_string());
            products::<Outer<Flex>>(&tensors);
        })
    });
    let labels = |observatory: &Observatory| -> Vec<String> {
        sites::<Flex>(observatory).sites.iter().map(|site| site.label()).collect()
    };
    assert_eq!(labels(&outer), ["outer.up #1", "outer.up #2"]);
    assert_eq!((labels(&inner), inner.report().steps), (vec!["up #1".to_string()], 1));
    // Nothing is left on the thread.
    products::<Outer<Flex>>(&tensors);
    assert_eq!(outer.report().sites.len(), 2);
}

#[test]
fn a_backward_pass_after_its_step_is_not_sampled() {
    let [x, w, _] = operands(13);
    let observatory = every_step();
    let weight = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
    let y = observatory.step(|| tensor::<Outer<Flex>, 2>(&x, [M, K]).matmul(weight.clone()));
    let gradients = y.sum().backward();
    assert!(weight.grad(&gradients).is_some());
    assert!(observatory.report().sites[0].last.products.grad_weight.is_none());
}

#[test]
fn the_log_holds_what_was_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    let options = || ObservatoryOptions::default().with_every(1).with_log(&path);
    let observatory = Observatory::new(options()).expect("created");
    for seed in 0..3 {
        observatory.step(|| products::<Outer<Flex>>(&operands(seed)));
        // Flushed after each step.
        assert_eq!(log::read(&path).expect("whole").steps, seed + 1);
    }
    let (seen, read) = (sites::<Flex>(&observatory), log::read(&path).expect("whole"));
    assert_eq!(seen.to_string(), read.to_string());
    assert_eq!(seen.to_html(), read.to_html());
    let error = Observatory::new(options()).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("run.jsonl"), "{error}");
}

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

/// Prints what watching costs on a model of four layers, and writes the log of one of its runs: to the file that `OBSERVATORY_LOG` names, if it is set.
///
/// `OBSERVATORY_LOG=/tmp/fp8.jsonl cargo test --test observatory -- --ignored --nocapture`, then `cargo xtask report /tmp/fp8.jsonl`.
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
