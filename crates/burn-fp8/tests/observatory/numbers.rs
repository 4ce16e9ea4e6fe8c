//! The observatory, from a training step to its report: numbers. How they are made of slices is tested in `burn-fp8-report`.

use burn_fp8::report::sample::{Alternative, Prediction};
use burn_fp8::report::{Advice, Observatory, ObservatoryOptions, log, named};
use burn_fp8::sums::{Accumulation, Sums};

use crate::common::delayed::under;
use crate::common::observatory::{
    K, M, N, decibels, every_step, operands, predicted, products, sites,
};
use crate::common::*;

type B = Outer<Flex>;

#[test]
fn the_three_products_of_a_layer_are_measured() {
    let tensors = operands(1);
    let observatory = every_step();
    let (_, report) = trace(|| observatory.step(|| products::<B>(&tensors)));
    let seen = sites(&observatory);
    assert_eq!((seen.steps, seen.sites.len()), (1, 1));
    let site = &seen.sites[0];
    assert_eq!(site.label(), "up #1");
    assert_eq!(
        [site.last.gemm.m, site.last.gemm.n, site.last.gemm.k],
        [M, N, K].map(|size| size as u64)
    );

    // Scales are those that the trace tells, and the SQNRs those of a product by definition.
    let traced = &report.products;
    let traced = [traced[0].lhs, traced[0].rhs, traced[1].lhs].map(|of| of.expect("FP8"));
    let stats = &site.last.operands;
    let stats = [&stats.input, &stats.weight, &stats.output_grad];
    let held = [0, 1, 2].map(|i| {
        let (stats, traced, x) = (stats[i].as_ref().expect("measured"), traced[i], &tensors[i]);
        assert_eq!((stats.scale, stats.format), (traced.scale, traced.format));
        assert_eq!(stats.amax, fp8::amax(x));
        assert_eq!((stats.sampled, stats.elements), (x.len() as u64, x.len() as u64));
        let held = fp8::quantize_dequantize_by(x, traced.scale, traced.format);
        let flushed = x.iter().zip(&held).filter(|(x, held)| **x != 0.0 && **held == 0.0);
        assert_eq!(stats.flushed, flushed.count() as u64);
        held
    });
    let step = |x: [Vec<f64>; 3]| Exact::step(x.each_ref().map(Vec::as_slice), [M, K, N]);
    let exact = step(tensors.each_ref().map(|x| wide(x)));
    for ((role, exact), held) in GemmRole::ALL.into_iter().zip(exact).zip(step(held)) {
        let measured = decibels(site.last.products.of(role));
        let expected = sqnr(&exact.values, &held.values);
        assert!((measured - expected).abs() < 1e-6, "{role}: {measured}");
    }
}

#[test]
fn only_products_that_run_in_fp8_are_measured() {
    use GemmRole::{GradInput, GradWeight, Output};
    let observatory = every_step();
    let config = Fp8Config::default()
        .with_recipe(Recipe::current().with_precision(GradWeight, Precision::High));
    observatory.step(|| {
        // Left out by the filter; without a gradient of the input; two gradients of which one is in high precision.
        random::<B, 2>(1, [8, K]).matmul(random(2, [K, N]));
        random::<B, 2>(1, [M, K]).matmul(random(2, [K, N]).require_grad()).sum().backward();
        config.scope(|| products::<B>(&operands(5)));
    });
    let seen = sites(&observatory);
    let measured = seen.sites.iter().map(|site| {
        let is_measured = |role: &GemmRole| site.last.products.of(*role).is_some();
        GemmRole::ALL.into_iter().filter(is_measured).collect::<Vec<_>>()
    });
    assert_eq!(measured.collect::<Vec<_>>(), [[Output, GradWeight], [Output, GradInput]]);
    assert!(seen.sites[1].last.recipe.contains("grad_weight in high precision"));
}

/// An outlier is found, and what was predicted is what comes of following the advice; both are what the products themselves are worth.
#[test]
fn scales_per_row_are_advised_and_have_the_sqnr_that_was_predicted() {
    let [mut x, w, g] = operands(12);
    x[3] = 2f32.powi(20);
    let tensors = [x, w, g];
    let observe = |recipe: Recipe| {
        let observatory = every_step();
        let config = Fp8Config::default().with_recipe(recipe);
        let products = config.scope(|| observatory.step(|| products::<B>(&tensors)));
        (sites(&observatory), products)
    };
    let (before, _) = observe(Recipe::current());
    let is_per_row = |alternative: &Alternative| *alternative == Alternative::PerRow;
    let advised = before.ranked().iter().any(|ranked| {
        matches!(&ranked.advice, Advice::Change { alternative, .. } if is_per_row(alternative))
    });
    assert!(advised, "{before}");
    // Beside the row of the outlier nothing is left; of the whole result it is nearly all of the power.
    let output = before.sites[0].last.products.of(GemmRole::Output);
    let line = output.expect("measured").sqnr.line.decibels().expect("a signal");
    assert!(line < 10.0 && decibels(output) > 20.0, "{line}");

    let (after, outputs) = observe(Recipe::rowwise());
    let [before, after] = [&before, &after].map(|seen| &seen.sites[0].last);
    assert_eq!(after.recipe, Recipe::rowwise().to_string());
    let exact = Fp8Config::off().scope(|| products::<B>(&tensors));
    for (index, role) in GemmRole::ALL.into_iter().enumerate() {
        let (before, after) = (before.products.of(role), after.products.of(role));
        let now = decibels(after);
        assert_eq!(now, predicted(before, Alternative::PerRow), "{role}");
        let alternatives = &after.expect("measured").alternatives;
        assert!(!alternatives.iter().any(|p: &Prediction| is_per_row(&p.alternative)), "{role}");
        let measured = sqnr(&wide(&exact[index]), &wide(&outputs[index]));
        assert!((measured - now).abs() < 0.05, "{role}: {measured} dB, said to be {now} dB");
    }
}

/// What training computes with the sums of a card is as far from the exact sums of its codes as the observatory says.
#[test]
fn emulated_sums_are_measured_as_training_has_them() {
    let size @ [m, k, n] = [20, 300, 16];
    let mut random = Random(21);
    let [x, w, g] = [m * k, k * n, m * n].map(|count| random.normals(count));
    let hopper = Fp8Config::default().with_sums(Sums::Hopper);
    let mut measured = vec![];
    for accumulation in [Accumulation::Fast, Accumulation::Split] {
        let options = ObservatoryOptions::default().with_every(1).with_sums([Sums::Ada]);
        let observatory = Observatory::new(options).expect("valid");
        let config = hopper.with_accumulation(GemmRole::Output, accumulation);
        let step = || observatory.step(|| matrix_step::<B>([&x, &w, &g], size));
        let [y, ..] = config.scope(step);
        let products = sites(&observatory).sites[0].last.products.clone();
        let sums = |role| products.of(role).expect("measured").sums.clone().expect("of cards");
        let roles = GemmRole::ALL.map(|role| sums(role).accumulation);
        assert_eq!(roles, [accumulation, Accumulation::Split, Accumulation::Split]);
        let output = sums(GemmRole::Output);
        assert_eq!([output.cards[0].sums, output.cards[1].sums], [Sums::Hopper, Sums::Ada]);
        let held = [&x, &w].map(|x| fp8::quantize_dequantize(x, Fp8Format::E4M3));
        let exact = Exact::product(&held[0], &held[1], size);
        let [fast, split] = [output.cards[0].fast, output.cards[0].split];
        let ours = if accumulation == Accumulation::Fast { fast } else { split };
        let said = ours.whole.decibels().expect("a signal");
        let expected = sqnr(&exact.values, &wide(&y));
        assert!((said - expected).abs() < 1e-3, "{accumulation:?}: {said} {expected}");
        measured.push(said);
    }
    assert!(measured[1] > measured[0] + 1.0, "{measured:?}: splitting is better");
}

#[test]
fn delayed_scales_that_saturate_are_told() {
    let [x, w, g] = operands(7);
    let larger: Vec<f32> = x.iter().map(|x| 64.0 * x).collect();
    let observatory = every_step();
    under(&DelayedState::new(), Recipe::delayed(), || {
        observatory.step(|| products::<B>(&[x.clone(), w.clone(), g.clone()]));
        observatory.step(|| products::<B>(&[larger.clone(), w, g]));
    });
    let seen = sites(&observatory);
    let stats = seen.sites[0].last.operands.input.clone().expect("measured");
    assert_eq!(stats.scale, fp8::amax(&x) / 448.0, "that of the step before");
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
    let mut x = Random(8).units(SIDE * SIDE);
    // An outlier, which most samples do not meet.
    x[5] = 1e6;
    let options = ObservatoryOptions::default().with_every(1).with_max_elements(256);
    let observatory = Observatory::new(options).expect("valid");
    observatory.step(|| tensor::<B, 2>(&x, [SIDE, SIDE]).matmul(random(9, [SIDE, SIDE])));
    let seen = sites(&observatory);
    let stats = seen.sites[0].last.operands.input.as_ref().expect("measured");
    assert_eq!((stats.sampled, stats.elements), (256, (SIDE * SIDE) as u64));
    assert_eq!((stats.amax, stats.scale), (1e6, 1e6 / 448.0));
    let output = seen.sites[0].last.products.of(GemmRole::Output);
    assert_eq!(output.expect("measured").terms, 16);
}

#[test]
fn the_inner_order_has_a_site_for_each_product() {
    let observatory = every_step();
    observatory.step(|| {
        let layer = LinearConfig::new(K, N).init::<Inner<Flex>>(&Default::default());
        let x = random::<Inner<Flex>, 2>(9, [M, K]).require_grad();
        layer.forward(x).powi_scalar(2).sum().backward()
    });
    let seen = sites(&observatory);
    let mut roles: Vec<_> = seen.ranked().iter().map(|ranked| ranked.role.to_string()).collect();
    roles.sort();
    assert_eq!(
        (seen.sites.len(), &roles[..]),
        (3, &["grad_input", "grad_weight", "output"].map(String::from)[..])
    );
    assert!(seen.sites[1].label().contains("(backward)"), "{}", seen.sites[1].label());
}

#[test]
fn batches_and_narrow_types_are_sampled() {
    let observatory = every_step();
    let x = Random(10).spread(3 * 4 * 5);
    observatory.step(|| {
        every_matmul().scope(|| {
            let x = tensor::<B, 3>(&x, [3, 4, 5]);
            x.clone().matmul(random(11, [3, 5, 6]));
            // Leading dimensions join M; in f16.
            x.cast(FloatDType::F16).matmul(random::<B, 3>(11, [1, 5, 6]).cast(FloatDType::F16));
        })
    });
    let seen = sites(&observatory);
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
    let last = histogram.first + histogram.counts.len() as i32 - 1;
    assert_eq!(last, fp8::amax(&x[20..40]).log2().floor() as i32);
    assert!(seen.sites.iter().all(|site| decibels(site.last.products.of(GemmRole::Output)) > 10.0));
}

#[test]
fn fp8_layers_are_seen_with_their_scales() {
    let observatory = every_step();
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(4);
    let layer =
        Fp8LinearConfig::new(K, N).with_dot(dot).init::<Autodiff<Flex>>(&Default::default());
    let [mut x, _, _] = operands(16);
    x[0] = 1000.0; // beyond 448 at the initial scale, 1
    let x = tensor::<Autodiff<Flex>, 2>(&x, [M, K]).require_grad();
    let run = || observatory.step(|| named("head", || layer.forward(x)).sum().backward());
    assert_eq!(trace(run).1.products.len(), 3);
    let seen = sites(&observatory);
    let site = &seen.sites[0];
    assert_eq!((seen.sites.len(), site.label()), (1, "head #1".into()));
    says(&site.last.recipe, ["of 4"]);
    let input = site.last.operands.input.as_ref().expect("measured");
    assert_eq!((input.scale, input.amax, input.saturated), (1.0, 1000.0, 1));
    assert!(GemmRole::ALL.iter().all(|role| site.last.products.of(*role).is_some()));
    let output = site.last.products.of(GemmRole::Output);
    assert!(predicted(output, Alternative::CurrentScale) > decibels(output) + 3.0);
}

/// One step with activations 1e5 times as large stays in the history for as long as that reaches: the outputs after it are far off, as in
/// TransformerEngine, whose recipe this is. The observatory says so, and a shorter history is over it sooner.
#[test]
fn a_step_of_outliers_spoils_the_steps_that_remember_it_and_the_observatory_says_so() {
    for (history_length, after, errors, advice) in [
        (1024, 3, 0.3..0.5, &["Use current scaling", "a shorter history"][..]),
        (16, 17, 0.0..0.05, &["FP8 fits"]),
    ] {
        let recipe = Recipe::delayed().with_history_length(history_length);
        let observatory = every_step();
        let mut error = 0.0;
        under(&DelayedState::new(), recipe, || {
            for step in 0..after + 2 {
                let mut random = Random(step);
                let [mut x, w, g] = [M * K, K * N, M * N].map(|count| random.normals(count));
                if step == 1 {
                    x.iter_mut().for_each(|x| *x *= 1e5);
                }
                let [y, ..] = observatory.step(|| matrix_step::<B>([&x, &w, &g], [M, K, N]));
                let exact = Exact::product(&wide(&x), &wide(&w), [M, K, N]);
                error = 10f64.powf(-sqnr(&exact.values, &wide(&y)) / 20.0);
            }
        });
        assert!(errors.contains(&error), "{error}");
        let seen = sites(&observatory);
        let mut ranked = seen.ranked().into_iter();
        let output = ranked.find(|ranked| ranked.role == GemmRole::Output).expect("measured");
        advice.iter().for_each(|words| says(output.sentence(), [words]));
    }
}
