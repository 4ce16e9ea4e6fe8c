//! Which scale a product uses, and what becomes of values that it does not fit.

use crate::common::delayed::{
    K, M, N, delayed, operands, product, product_of, scales, scales_come_from_earlier_steps,
    state_stays_finite, under, with_amax,
};
use crate::common::*;

tests_on_cpu!([
    scales_come_from_earlier_steps,
    state_stays_finite,
    shared_weights_are_exact,
    histories_equal_those_on_the_host,
]);

#[test]
fn margin_and_powers_of_two_apply_to_delayed_scales() {
    let recipe = Recipe::delayed().with_margin(1).with_power_of_two(true);
    under(&DelayedState::new(), recipe, || {
        for _ in 0..2 {
            let report = product_of::<Outer<Flex>>([3.0, 448.0, 1.0]);
            // 2 · 3 / 448 = 0.0134 → 2^-6; 2 · 448 / 448 = 2; 2 / 57344 = 3.5e-5 → 2^-14.
            assert_eq!(scales(&report), [2f32.powi(-6), 2.0, 2f32.powi(-14)]);
        }
    });
}

#[test]
fn a_value_beyond_the_old_scale_saturates_and_is_counted() {
    under(&DelayedState::new(), Recipe::delayed(), || {
        let report = product_of::<Outer<Flex>>([1.0; 3]);
        assert!(report.products.iter().all(|product| product.lhs.unwrap().saturated == 0));
        let [_, w, _] = operands([1.0; 3]);
        let mut x = vec![0.5; M * K];
        (x[0], x[1], x[2]) = (16.0, -1.01, 1.0);
        let weight = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
        let (y, report) = trace(|| tensor(&x, [M, K]).matmul(weight));
        let forward = &report.products[0];
        assert_eq!(forward.lhs.unwrap().saturated, 2, "{report}");
        assert_eq!(forward.rhs.unwrap().saturated, 0);
        says(&report, ["2 saturated"]);
        // 16 became 1, the largest value that the scale of the step before can hold.
        (x[0], x[1]) = (1.0, -1.0);
        let held = fp8::quantize_dequantize_by(&w, 1.0 / 448.0, E4M3);
        Exact::product(&wide(&x), &held, [M, K, N]).assert(&values(y), Sums::F32, "y");
    });
}

#[test]
fn zeros_leave_a_site_at_current_scaling() {
    under(&DelayedState::new(), Recipe::delayed(), || {
        let [_, w, g] = operands([0.0, 1.0, 1e-6]);
        let zeros = [vec![0.0; M * K], w.clone(), vec![0.0; M * N]];
        assert_eq!(scales(&product::<Outer<Flex>>(&zeros))[0], 1.0);
        // Not at scale 1, where all of this would become 0.
        let report = product::<Outer<Flex>>(&[with_amax(1, M * K, 1e-5), w, g]);
        assert_eq!(scales(&report), [1e-5 / 448.0, 1.0 / 448.0, 1e-6 / 57344.0]);
    });
}

/// Micro-batches of a step combine by maximum, whichever comes first, and enter once: for every length and step, bit for bit.
fn histories_equal_those_on_the_host<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for length in [1, 2, 3, 4, 16] {
        let (state, mut expected) = (DelayedState::new(), vec![0.0; length]);
        delayed(Recipe::delayed().with_history_length(length)).scope(|| {
            for step in 0..6u64 {
                let amaxes = [0, 1].map(|batch| 0.3 + ((step * 7 + batch * 3) % 5) as f32);
                state.step(|| {
                    let before = state.export();
                    for amax in amaxes {
                        product_of::<Outer<B>>([amax, amax * 0.1, amax * 1e-3]);
                    }
                    assert_eq!(state.export(), before, "not yet");
                });
                // The newest lies first, the others come round.
                expected.rotate_left(1);
                expected[0] = amaxes[0].max(amaxes[1]);
            }
        });
        let site = state.export().sites.remove(0);
        for (history, factor) in [(site.input, 1.0), (site.weight, 0.1), (site.output_grad, 1e-3)] {
            let expected: Vec<_> = expected.iter().map(|amax| amax * factor).collect();
            assert_eq!(bits(history.entries()), bits(&expected), "{length}");
        }
    }
}

#[test]
fn a_model_that_changes_backend_or_history_length_keeps_its_history() {
    let state = DelayedState::new();
    let recipe = |length| Recipe::delayed().with_history_length(length);
    let on_flex = |length: usize, amax: f32| {
        under(&state, recipe(length), || product_of::<Outer<Flex>>([amax; 3]))
    };
    on_flex(3, 1.0);
    on_flex(3, 2.0);
    let report = on_flex(2, 0.5);
    assert_eq!(scales(&report)[0], 2.0 / 448.0);
    assert_eq!(state.export().sites[0].input.entries(), [0.5, 2.0]);
    #[cfg(feature = "ndarray")]
    {
        let on_ndarray = || product_of::<Outer<burn::backend::NdArray>>([0.25, 1.0, 1.0]);
        for expected in [2.0, 0.5] {
            assert_eq!(scales(&under(&state, recipe(2), on_ndarray))[0], expected / 448.0);
        }
        assert_eq!(scales(&on_flex(2, 0.125))[0], 0.25 / 448.0);
    }
}

#[test]
fn other_element_types_have_delayed_scales_too() {
    for dtype in [DType::BF16, DType::F16] {
        under(&DelayedState::new(), Recipe::delayed(), || {
            for _ in 0..2 {
                let [x, w, _] = operands([2.0, 1.0, 1.0]);
                let x = tensor::<Outer<Flex>, 2>(&x, [M, K]).cast(dtype);
                let w = tensor::<Outer<Flex>, 2>(&w, [K, N]).cast(dtype).require_grad();
                let (y, report) = trace(|| x.matmul(w));
                assert_eq!(y.dtype(), dtype);
                assert_eq!(report.products[0].lhs.unwrap().scale, 2.0 / 448.0);
                y.cast(DType::F32).sum().backward();
            }
        });
    }
}

#[test]
fn any_formats_but_e5m2_times_e5m2_are_legal() {
    let run = |formats| {
        let config = delayed(Recipe::current().with_formats(formats));
        config.scope(|| product_of::<Outer<Flex>>([1.0; 3]))
    };
    let report = run(Formats::E4M3);
    for product in &report.products {
        assert_eq!([product.lhs.unwrap().format, product.rhs.unwrap().format], [E4M3; 2]);
    }
    assert_eq!(scales(&report)[2], 1.0 / 448.0);
    let report = run(Formats { input: E5M2, output_grad: E4M3, ..Formats::default() });
    assert_eq!(scales(&report), [1.0 / 57344.0, 1.0 / 448.0, 1.0 / 448.0]);
    let refused = || run(Formats { weight: E5M2, ..Formats::default() });
    panics(refused, ["would multiply E5M2 by E5M2"]);
}

/// Each product that a recipe keeps in high precision is that of the wrapped backend, and the others are what they were.
#[test]
fn products_can_be_kept_in_high_precision_one_by_one() {
    let data = [(1, M * K), (2, K * N), (3, M * N)].map(|(seed, count)| Random(seed).spread(count));
    let [x, w, g] = data.each_ref().map(|data| wide(data));
    let exact = Exact::step([&x, &w, &g], [M, K, N]);
    fn run<B: AutodiffBackend>([x, w, g]: &[Vec<f32>; 3]) -> ([Vec<f32>; 3], Report) {
        let half = M / 2;
        let [x, g] = [(x, K), (g, N)].map(|(x, n)| tensor::<B, 3>(x, [2, half, n]));
        trace(|| step([x, tensor(w, [1, K, N]), g]).map(values))
    }
    for recipe in [Recipe::current(), Recipe::delayed()] {
        let fresh = |recipe| {
            let config = every_matmul().with_recipe(recipe);
            DelayedState::new().scope(|| config.scope(|| run::<Outer<Flex>>(&data)))
        };
        let (fp8, _) = fresh(recipe);
        let (high, _) = run::<Autodiff<Flex>>(&data);
        for role in GemmRole::ALL {
            let (mixed, report) = fresh(recipe.with_precision(role, Precision::High));
            for (index, other) in GemmRole::ALL.into_iter().enumerate() {
                let expected = if other == role { &high } else { &fp8 };
                if other == role && role != GemmRole::Output {
                    // One product over the joined leading dimensions: summed in another order than Burn's.
                    for values in [&mixed[index], &expected[index]] {
                        exact[index].assert(values, Sums::F32, "gradient");
                    }
                } else {
                    assert!(bits(&mixed[index]) == bits(&expected[index]), "{role} high: {other}");
                }
                let product = report.products.iter().find(|p| p.role == other).expect("three");
                let expected = match other == role {
                    true => Implementation::HighPrecision(HighPrecision::Recipe),
                    false => implementation::<Flex>(),
                };
                assert_eq!(product.ran, expected, "{report}");
            }
        }
    }
}

/// Micro-batches that share a weight give the bits of those that each hold a copy of it, which nothing can recognize; and a weight
/// that changes in the middle of a step is quantized anew.
fn shared_weights_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    type Weight<B> = fn(&Tensor<Outer<B>, 2>, usize) -> Tensor<Outer<B>, 2>;
    let shared: Weight<B> = |w, _| w.clone();
    let copied: Weight<B> = |w, _| Tensor::from_data(w.to_data(), &w.device()).require_grad();
    let changed: Weight<B> =
        |w, batch| (w.clone().detach() * (batch + 1) as f32).detach().require_grad();
    let run = |weight: Weight<B>| {
        let state = DelayedState::new();
        let mut results = vec![];
        delayed(Recipe::delayed()).scope(|| {
            for step in 0..3u64 {
                let w = with_amax(step, K * N, 1.0 + step as f32);
                let shared = tensor::<Outer<B>, 2>(&w, [K, N]).require_grad();
                state.step(|| {
                    for batch in 0..3 {
                        let w = weight(&shared, batch);
                        let x =
                            random::<Outer<B>, 2>(10 * step + batch as u64, [M, K]).require_grad();
                        let y = x.clone().matmul(w.clone());
                        let grads = y.clone().powf_scalar(2.0).sum().backward();
                        results.extend([values(y), grad(&x, &grads), grad(&w, &grads)]);
                    }
                });
            }
        });
        let site = state.export().sites.remove(0);
        let histories = [site.input, site.weight, site.output_grad];
        results.extend(histories.map(|history| history.entries().to_vec()));
        results.iter().map(|numbers| bits(numbers)).collect::<Vec<_>>()
    };
    let shared = run(shared);
    assert!(shared == run(copied));
    let changed = run(changed);
    // The first micro-batch of each step is the same, the others are not.
    assert!(shared[0] == changed[0] && shared[3] != changed[3] && shared[6] != changed[6]);
    let newest = f32::from_bits(changed[changed.len() - 2][0]);
    assert_eq!(newest, 9.0, "three times 3 in the last step");
}
