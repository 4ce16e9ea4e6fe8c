//! The observatory, from a training step to its report: numbers.

use burn_fp8::report::sample::{Alternative, Prediction};
use burn_fp8::report::{Advice, Observatory, ObservatoryOptions, log, named};

use crate::common::delayed::under;
use crate::common::observatory::{
    K, M, N, decibels, every_step, operands, predicted, products, sites,
};
use crate::common::reference::quantize_dequantize_by;
use crate::common::*;

#[test]
fn the_three_products_of_a_layer_are_measured() {
    let tensors = operands(1);
    let observatory = every_step();
    let (_, report) = trace(|| observatory.step(|| products::<Outer<Flex>>(&tensors)));
    let seen = sites(&observatory);
    assert_eq!((seen.steps, seen.sites.len()), (1, 1));
    let site = &seen.sites[0];
    assert_eq!(site.label(), "up #1");
    assert_eq!((site.last.gemm.m, site.last.gemm.n, site.last.gemm.k), (20, 16, 24));

    // Scales are those that the trace tells, and the SQNRs those of a product by definition.
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
        assert_eq!(stats.amax, reference::amax(values));
        assert_eq!((stats.sampled, stats.elements), (values.len() as u64, values.len() as u64));
        let held = quantize_dequantize_by(values, traced.scale, traced.format);
        let flushed = values.iter().zip(held).filter(|(x, held)| **x != 0.0 && *held == 0.0);
        assert_eq!(stats.flushed, flushed.count() as u64);
    }
    let quantized = [0, 1, 2].map(|index| {
        quantize_dequantize_by(&tensors[index], [x, w, g][index].scale, formats[index])
    });
    let step = |[x, w, g]: [Vec<f64>; 3]| exact_step([&x, &w, &g], [M, K, N]).map(|y| y.values);
    let exact = step(tensors.each_ref().map(|x| wide(x)));
    for ((role, exact), quantized) in GemmRole::ALL.into_iter().zip(exact).zip(step(quantized)) {
        let measured = decibels(site.last.products.of(role));
        let expected = sqnr(&exact, &quantized);
        assert!((measured - expected).abs() < 1e-6, "{role}: {measured}");
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
    let seen = sites(&observatory);
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
    let seen = sites(&observatory);
    let output = seen.sites[0].last.products.of(GemmRole::Output);
    // Beside the row of the outlier nothing is left; of the whole result it is nearly all of the power.
    let line = output.expect("measured").sqnr.line.decibels().expect("a signal");
    assert!(line < 10.0 && decibels(output) > 20.0, "{line}");
    let advised = seen.ranked().iter().any(|ranked| {
        matches!(ranked.advice, Advice::Change { alternative: Alternative::PerRow, .. })
    });
    assert!(advised, "{seen}");
}

/// What was predicted is what comes of following the advice; and both are what the products themselves are worth.
#[test]
fn scales_per_row_have_the_sqnr_that_was_predicted() {
    let [mut x, w, g] = operands(12);
    x[3] = 2f32.powi(20);
    let tensors = [x, w, g];
    let observe = |recipe: Recipe| {
        let observatory = every_step();
        let config = Fp8Config::default().with_recipe(recipe);
        let products = config.scope(|| observatory.step(|| products::<Outer<Flex>>(&tensors)));
        (sites(&observatory).sites.remove(0).last, products)
    };
    let (before, _) = observe(Recipe::current());
    let (after, outputs) = observe(Recipe::rowwise());
    assert_eq!(after.recipe, Recipe::rowwise().to_string());
    let exact = Fp8Config::off().scope(|| products::<Outer<Flex>>(&tensors));
    for (index, role) in GemmRole::ALL.into_iter().enumerate() {
        let (before, after) = (before.products.of(role), after.products.of(role));
        let now = decibels(after);
        assert_eq!(now, predicted(before, Alternative::PerRow), "{role}");
        let stats = after.expect("measured");
        let is_per_row = |p: &Prediction| p.alternative == Alternative::PerRow;
        assert!(!stats.alternatives.iter().any(is_per_row), "{role}");
        let measured = sqnr(&wide(&exact[index]), &wide(&outputs[index]));
        assert!((measured - now).abs() < 0.05, "{role}: {measured} dB, said to be {now} dB");
    }
}

#[test]
fn delayed_scales_that_saturate_are_told() {
    let [x, w, g] = operands(7);
    let larger: Vec<f32> = x.iter().map(|x| 64.0 * x).collect();
    let observatory = every_step();
    under(&DelayedState::new(), Recipe::delayed(), || {
        observatory.step(|| products::<Outer<Flex>>(&[x.clone(), w.clone(), g.clone()]));
        observatory.step(|| products::<Outer<Flex>>(&[larger.clone(), w, g]));
    });
    let seen = sites(&observatory);
    let stats = seen.sites[0].last.operands.input.clone().expect("measured");
    let amax = reference::amax(&x);
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
    let [mut x, w] = [random.units(SIDE * SIDE), random.units(SIDE * SIDE)];
    // An outlier in every row, all in one column: most samples do not meet it.
    x.iter_mut().step_by(SIDE).for_each(|x| *x = 1e6);
    let observatory =
        Observatory::new(ObservatoryOptions::default().with_every(1).with_max_elements(256))
            .expect("valid");
    observatory
        .step(|| tensor::<Outer<Flex>, 2>(&x, [SIDE, SIDE]).matmul(tensor(&w, [SIDE, SIDE])));
    let seen = sites(&observatory);
    let site = &seen.sites[0].last;
    let stats = site.operands.input.as_ref().expect("measured");
    assert_eq!((stats.sampled, stats.elements), (256, (SIDE * SIDE) as u64));
    assert_eq!((stats.amax, stats.scale), (1e6, 1e6 / 448.0));
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
    let seen = sites(&observatory);
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
    let largest = reference::amax(&x[20..40]);
    let last = histogram.first + histogram.counts.len() as i32 - 1;
    assert_eq!(last, largest.log2().floor() as i32);
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
    let run = |observatory: &Observatory| {
        observatory.step(|| {
            let x = tensor::<Autodiff<Flex>, 2>(&x, [M, K]).require_grad();
            named("head", || layer.forward(x)).sum().backward()
        })
    };
    let (_, report) = trace(|| run(&observatory));
    let seen = sites(&observatory);
    let site = &seen.sites[0];
    assert_eq!((seen.sites.len(), site.label()), (1, "head #1".into()));
    assert!(site.last.recipe.contains("of 4"), "{}", site.last.recipe);
    let input = site.last.operands.input.as_ref().expect("measured");
    assert_eq!((input.scale, input.amax, input.saturated), (1.0, 1000.0, 1));
    let roles = GemmRole::ALL.map(|role| site.last.products.of(role).is_some());
    assert_eq!((roles, report.products.len()), ([true; 3], 3));
    let output = site.last.products.of(GemmRole::Output);
    assert!(predicted(output, Alternative::CurrentScale) > decibels(output) + 3.0);
}

/// One step with activations 1e5 times as large stays in the history for as long as that reaches: the outputs after it are far off, as in
/// TransformerEngine, whose recipe this is. The observatory says so, and a shorter history is over it sooner.
#[test]
fn a_step_of_outliers_spoils_the_steps_that_remember_it_and_the_observatory_says_so() {
    let run = |history_length: usize, after: usize| {
        let recipe = Recipe::delayed().with_history_length(history_length);
        let (state, observatory) = (DelayedState::new(), every_step());
        let mut error = 0.0;
        under(&state, recipe, || {
            for step in 0..after + 2 {
                let mut random = Random(step as u64);
                let [mut x, w, g] = [M * K, K * N, M * N].map(|count| {
                    (0..count).map(|_| random.units(12).iter().sum()).collect::<Vec<f32>>()
                });
                if step == 1 {
                    x.iter_mut().for_each(|x| *x *= 1e5);
                }
                let (x, w) = (&x, &w);
                observatory.step(|| {
                    let [y, ..] = matrix_step::<Outer<Flex>>([x, w, &g], [M, K, N]);
                    let [exact, ..] = exact_step([&wide(x), &wide(w), &wide(&g)], [M, K, N]);
                    error = 10f64.powf(-sqnr(&exact.values, &wide(&y)) / 20.0);
                });
            }
        });
        let seen = sites(&observatory);
        let advice = seen.ranked().into_iter().find(|ranked| ranked.role == GemmRole::Output);
        (error, advice.expect("measured").sentence())
    };
    let (error, advice) = run(1024, 3);
    assert!((0.3..0.5).contains(&error), "{error}");
    says(&advice, ["Use current scaling", "a shorter history"]);
    let (error, advice) = run(16, 17);
    assert!(error < 0.05, "{error}");
    says(&advice, ["FP8 fits"]);
}
