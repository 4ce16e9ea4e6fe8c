//! Delayed scaling in the decorator: which scale a product uses, and what becomes of values that it does not fit.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::report::Implementation;
use burn_fp8::{DelayedState, Fp8Matmul, GemmRole, Recipe, Report, trace};
use common::delayed::{
    K, M, N, delayed, product, scales, scales_come_from_earlier_steps, state_stays_finite,
    with_amax,
};
use common::exact::{Exact, Sums};
use common::{Outer, Random, bits, implementation, reference, tensor, values};

#[test]
fn scales_come_from_earlier_steps_on_flex() {
    scales_come_from_earlier_steps::<Flex>();
}

#[cfg(feature = "ndarray")]
#[test]
fn scales_come_from_earlier_steps_on_ndarray() {
    scales_come_from_earlier_steps::<burn::backend::NdArray>();
}

#[test]
fn margin_and_powers_of_two_apply_to_delayed_scales() {
    let recipe = Recipe::delayed().with_margin(1).with_power_of_two(true);
    DelayedState::new().scope(|| {
        delayed(recipe).scope(|| {
            let [x, w, g] =
                [with_amax(1, M * K, 3.0), with_amax(2, K * N, 448.0), with_amax(3, M * N, 1.0)];
            for _ in 0..2 {
                let report = product::<Outer<Flex>>(&x, &w, &g);
                // 2 · 3 / 448 = 0.0134 → 2^-6; 2 · 448 / 448 = 2; 2 / 57344 = 3.5e-5 → 2^-14.
                assert_eq!(scales(&report), [2f32.powi(-6), 2.0, 2f32.powi(-14)]);
            }
        })
    });
}

#[test]
fn a_value_beyond_the_old_scale_saturates_and_is_counted() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            let w = with_amax(2, K * N, 1.0);
            let g = with_amax(3, M * N, 1.0);
            let report = product::<Outer<Flex>>(&with_amax(1, M * K, 1.0), &w, &g);
            assert!(report.products.iter().all(|product| product.lhs.unwrap().saturated == 0));
            let mut x = vec![0.5; M * K];
            (x[0], x[1], x[2]) = (16.0, -1.01, 1.0);
            let x_tensor = tensor::<Outer<Flex>, 2>(&x, [M, K]);
            let w_tensor = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
            let (y, report) = trace(|| x_tensor.matmul(w_tensor));
            let forward = &report.products[0];
            assert_eq!(forward.lhs.unwrap().saturated, 2, "{report}");
            assert_eq!(forward.rhs.unwrap().saturated, 0);
            assert!(report.to_string().contains("2 saturated"), "{report}");
            // 16 became 1, the largest value that the scale of the step before can hold.
            let mut held = vec![0.5; M * K];
            (held[0], held[1], held[2]) = (1.0, -1.0, 1.0);
            let w_held = reference::quantize_dequantize_by(&w, 1.0 / 448.0, E4M3);
            let exact = Exact::product(&held, &w_held, [M, K, N]);
            exact.assert(&values(y), Sums::F32, "y");
            product::<Outer<Flex>>(&x, &w, &g);
        })
    });
}

#[test]
fn state_stays_finite_on_flex() {
    state_stays_finite::<Flex>();
}

#[cfg(feature = "ndarray")]
#[test]
fn state_stays_finite_on_ndarray() {
    state_stays_finite::<burn::backend::NdArray>();
}

#[test]
fn zeros_leave_a_site_at_current_scaling() {
    DelayedState::new().scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            let [w, g] = [with_amax(2, K * N, 1.0), with_amax(3, M * N, 1e-6)];
            let report = product::<Outer<Flex>>(&vec![0.0; M * K], &w, &vec![0.0; M * N]);
            assert_eq!(scales(&report)[0], 1.0);
            // Not at scale 1, where all of this would become 0.
            let report = product::<Outer<Flex>>(&with_amax(1, M * K, 1e-5), &w, &g);
            assert_eq!(scales(&report), [1e-5 / 448.0, 1.0 / 448.0, 1e-6 / 57344.0]);
        })
    });
}

/// Histories on a device equal those on the host, bit for bit, for every length and step.
#[cfg(feature = "ndarray")]
#[test]
fn histories_on_a_device_equal_those_on_the_host() {
    fn run<B: Fp8Matmul>(length: usize) -> Vec<Vec<u32>>
    where
        Outer<B>: AutodiffBackend,
    {
        let state = DelayedState::new();
        let config = delayed(Recipe::delayed().with_history_length(length));
        config.scope(|| {
            for step in 0..6u64 {
                state.step(|| {
                    for micro_batch in 0..2 {
                        let amax = 0.3 + ((step * 7 + micro_batch * 3) % 5) as f32;
                        product::<Outer<B>>(
                            &with_amax(step, M * K, amax),
                            &with_amax(9, K * N, amax * 0.1),
                            &with_amax(8, M * N, amax * 1e-3),
                        );
                    }
                });
            }
        });
        let site = state.export().sites.remove(0);
        [site.input, site.weight, site.output_grad].map(|h| bits(h.entries())).to_vec()
    }
    for length in [1, 2, 3, 4, 16] {
        assert_eq!(run::<burn::backend::NdArray>(length), run::<Flex>(length), "{length}");
    }
}

#[test]
fn a_model_that_changes_backend_or_history_length_keeps_its_history() {
    let state = DelayedState::new();
    let step = |length: usize, amax: f32| {
        let config = delayed(Recipe::delayed().with_history_length(length));
        let data =
            [with_amax(1, M * K, amax), with_amax(2, K * N, amax), with_amax(3, M * N, amax)];
        config.scope(|| state.scope(|| product::<Outer<Flex>>(&data[0], &data[1], &data[2])))
    };
    step(3, 1.0);
    step(3, 2.0);
    let report = step(2, 0.5);
    assert_eq!(scales(&report)[0], 2.0 / 448.0);
    assert_eq!(state.export().sites[0].input.entries(), [0.5, 2.0]);
    #[cfg(feature = "ndarray")]
    {
        use burn::backend::NdArray;
        let data = [with_amax(1, M * K, 0.25), with_amax(2, K * N, 1.0), with_amax(3, M * N, 1.0)];
        for expected in [2.0, 0.5] {
            let config = delayed(Recipe::delayed().with_history_length(2));
            let report = config
                .scope(|| state.scope(|| product::<Outer<NdArray>>(&data[0], &data[1], &data[2])));
            assert_eq!(scales(&report)[0], expected / 448.0);
        }
        assert_eq!(scales(&step(2, 0.125))[0], 0.25 / 448.0);
    }
}

#[test]
fn other_element_types_have_delayed_scales_too() {
    use burn::tensor::DType;
    for dtype in [DType::BF16, DType::F16] {
        DelayedState::new().scope(|| {
            delayed(Recipe::delayed()).scope(|| {
                for expected in [2.0f32, 2.0] {
                    let cast = |values: Vec<f32>, shape: [usize; 2]| {
                        tensor::<Outer<Flex>, 2>(&values, shape).cast(dtype)
                    };
                    let x = cast(with_amax(1, M * K, 2.0), [M, K]);
                    let w = cast(with_amax(2, K * N, 1.0), [K, N]).require_grad();
                    let (y, report) = trace(|| x.matmul(w));
                    assert_eq!(y.dtype(), dtype);
                    assert_eq!(report.products[0].lhs.unwrap().scale, expected / 448.0);
                    y.cast(DType::F32).sum().backward();
                }
            })
        });
    }
}

#[test]
fn e4m3_everywhere_is_legal() {
    let recipe = Recipe::current().with_formats(burn_fp8::Formats::E4M3);
    let report = delayed(recipe).scope(|| {
        product::<Outer<Flex>>(
            &with_amax(1, M * K, 1.0),
            &with_amax(2, K * N, 1.0),
            &with_amax(3, M * N, 1.0),
        )
    });
    for product in &report.products {
        assert_eq!([product.lhs.unwrap().format, product.rhs.unwrap().format], [E4M3; 2]);
    }
    assert_eq!(scales(&report)[2], 1.0 / 448.0);
    let swapped = burn_fp8::Formats { input: E5M2, output_grad: E4M3, ..Default::default() };
    let report = delayed(Recipe::current().with_formats(swapped)).scope(|| {
        product::<Outer<Flex>>(
            &with_amax(1, M * K, 1.0),
            &with_amax(2, K * N, 1.0),
            &with_amax(3, M * N, 1.0),
        )
    });
    assert_eq!(scales(&report), [1.0 / 57344.0, 1.0 / 448.0, 1.0 / 448.0]);
}

#[test]
#[should_panic(expected = "would multiply E5M2 by E5M2")]
fn e5m2_times_e5m2_is_refused() {
    let formats = burn_fp8::Formats { weight: E5M2, ..Default::default() };
    delayed(Recipe::current().with_formats(formats)).scope(|| ());
}

/// Each product that a recipe keeps in high precision is that of the wrapped backend, and the others are what they were.
#[test]
fn products_can_be_kept_in_high_precision_one_by_one() {
    use burn_fp8::Precision;
    use burn_fp8::report::HighPrecision;

    type Results = [Vec<u32>; 3];
    let mut random = Random(5);
    let data = [M * K, K * N, M * N].map(|count| random.spread(count));
    let exact = {
        let [x, w, g] =
            data.each_ref().map(|data| data.iter().copied().map(f64::from).collect::<Vec<_>>());
        [
            Exact::product(&x, &w, [M, K, N]),
            Exact::product(&g, &reference::transpose(&w, [K, N]), [M, N, K]),
            Exact::product(&reference::transpose(&x, [M, K]), &g, [K, M, N]),
        ]
    };
    fn run<B: AutodiffBackend>([x, w, g]: [Vec<f32>; 3]) -> (Results, Report) {
        let x = Tensor::<B, 3>::from_data(TensorData::new(x, [2, M / 2, K]), &Default::default())
            .require_grad();
        let w = tensor::<B, 3>(&w, [1, K, N]).require_grad();
        let g = tensor::<B, 3>(&g, [2, M / 2, N]);
        trace(|| {
            let y = x.clone().matmul(w.clone());
            let grads = (y.clone() * g).sum().backward();
            let grad = |tensor: &Tensor<B, 3>| values(tensor.grad(&grads).expect("tracked"));
            [values(y), grad(&x), grad(&w)].map(|v| bits(&v))
        })
    }
    let config = |recipe| common::every_matmul().with_recipe(recipe);
    for recipe in [Recipe::current(), Recipe::delayed()] {
        let fresh = |recipe| {
            DelayedState::new().scope(|| config(recipe).scope(|| run::<Outer<Flex>>(data.clone())))
        };
        let (fp8, _) = fresh(recipe);
        let (high, _) = run::<Autodiff<Flex>>(data.clone());
        for role in GemmRole::ALL {
            let (mixed, report) = fresh(recipe.with_precision(role, Precision::High));
            for (index, other) in GemmRole::ALL.into_iter().enumerate() {
                let expected = if other == role { &high } else { &fp8 };
                if other == role && role != GemmRole::Output {
                    // One product over the joined leading dimensions: summed in another order than Burn's.
                    for bits in [&mixed[index], &expected[index]] {
                        let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
                        exact[index].assert(&values, Sums::F32, "gradient");
                    }
                } else {
                    assert!(mixed[index] == expected[index], "{role} high: {other}");
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
    #[derive(Clone, Copy, PartialEq)]
    enum Weight {
        Shared,
        Copied,
        Changed,
    }
    let run = |kind: Weight| {
        let state = DelayedState::new();
        let mut results = vec![];
        delayed(Recipe::delayed()).scope(|| {
            for step in 0..3u64 {
                let values_of_w = with_amax(step, K * N, 1.0 + step as f32);
                let shared = tensor::<Outer<B>, 2>(&values_of_w, [K, N]).require_grad();
                state.step(|| {
                    for micro_batch in 0..3u64 {
                        let w = match kind {
                            Weight::Shared => shared.clone(),
                            Weight::Copied => {
                                tensor::<Outer<B>, 2>(&values_of_w, [K, N]).require_grad()
                            }
                            Weight::Changed => (shared.clone().detach()
                                * (micro_batch as f32 + 1.0))
                                .detach()
                                .require_grad(),
                        };
                        let mut random = Random(10 * step + micro_batch);
                        let x = tensor::<Outer<B>, 2>(&random.spread(M * K), [M, K]).require_grad();
                        let y = x.clone().matmul(w.clone());
                        let grads = y.clone().powf_scalar(2.0).sum().backward();
                        results.push(bits(&values(y)));
                        for tensor in [x, w] {
                            results.push(bits(&values(tensor.grad(&grads).expect("tracked"))));
                        }
                    }
                });
            }
        });
        let site = state.export().sites.remove(0);
        let histories = [site.input, site.weight, site.output_grad];
        results.extend(histories.map(|history| bits(history.entries())));
        results
    };
    let shared = run(Weight::Shared);
    assert!(shared == run(Weight::Copied));
    let changed = run(Weight::Changed);
    // The first micro-batch of each step is the same, the others are not.
    assert!(shared[0] == changed[0] && shared[3] != changed[3] && shared[6] != changed[6]);
    let amaxes: Vec<_> = changed[changed.len() - 2].iter().map(|b| f32::from_bits(*b)).collect();
    assert_eq!(amaxes[0], 9.0, "three times 3 in the last step");
}

#[test]
fn shared_weights_are_exact_on_flex() {
    shared_weights_are_exact::<Flex>();
}

#[cfg(feature = "ndarray")]
#[test]
fn shared_weights_are_exact_on_ndarray() {
    shared_weights_are_exact::<burn::backend::NdArray>();
}
