//! Delayed scaling in the decorator: which scale a product uses, and when its histories receive an entry.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::{
    DelayedState, Fp8Backend, Fp8Matmul, GemmRole, Ran, Recipe, Report, SiteStatus, trace,
};
use common::delayed::{
    K, M, N, delayed, product, scales, scales_come_from_earlier_steps, state_stays_finite,
    with_amax,
};
use common::{Inner, Outer, Random, bits, tensor, values};

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
            let quantized: Vec<f64> = w
                .iter()
                .map(|w| {
                    let scale = f64::from(1f32 / 448.0);
                    common::reference::round(f64::from(w / (1f32 / 448.0)), E4M3) * scale
                })
                .collect();
            let column = |n: usize| -> f64 {
                let x = |k: usize| if k < 3 { [1.0, -1.0, 1.0][k] } else { 0.5 };
                (0..K).map(|k| x(k) * quantized[k * N + n]).sum()
            };
            let y = values(y);
            for (n, y) in y[..N].iter().enumerate() {
                assert!((f64::from(*y) - column(n)).abs() < 1e-4, "{n}: {y} {}", column(n));
            }
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

/// Three products of different shapes, the second of them twice; returns the report.
fn chain<B: AutodiffBackend>(seed: u64, rows: usize) -> Report {
    let mut random = Random(seed);
    let mut matrix = |m: usize, n: usize| tensor::<B, 2>(&random.spread(m * n), [m, n]);
    let x = matrix(rows, K);
    let [a, b, c] = [matrix(K, N), matrix(N, N), matrix(N, K)].map(Tensor::require_grad);
    trace(|| {
        let h = x.matmul(a).matmul(b.clone());
        h.matmul(b).matmul(c).sum().backward()
    })
    .1
}

fn sites(report: &Report) -> Vec<(usize, SiteStatus)> {
    let forward = report.products.iter().filter(|product| product.role == GemmRole::Output);
    forward.map(|product| product.site.expect("tracked")).map(|s| (s.index, s.status)).collect()
}

const KNOWN: [(usize, SiteStatus); 4] = [
    (0, SiteStatus::Known),
    (1, SiteStatus::Known),
    (2, SiteStatus::Known),
    (3, SiteStatus::Known),
];

#[test]
fn sites_are_counted_from_the_end_of_the_backward_pass() {
    DelayedState::new().scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            let new = KNOWN.map(|(index, _)| (index, SiteStatus::New));
            assert_eq!(sites(&chain::<Outer<Flex>>(1, M)), new);
            // The number of rows may change from step to step.
            assert_eq!(sites(&chain::<Outer<Flex>>(2, M + 5)), KNOWN);
            assert_eq!(sites(&chain::<Outer<Flex>>(3, M)), KNOWN);
        })
    });
}

#[test]
fn inference_validation_and_the_inner_order_have_no_sites() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            chain::<Outer<Flex>>(1, M);
            let before = state.export();
            let mut random = Random(4);
            let x = random.spread(M * K);
            let w = random.spread(K * N);
            // The backend of `model.valid()`, untracked tensors, and the inner order.
            let (_, report) = trace(|| {
                let valid = tensor::<<Outer<Flex> as AutodiffBackend>::InnerBackend, 2>(&x, [M, K]);
                let _ = valid.matmul(tensor(&w, [K, N]));
                let _ = tensor::<Outer<Flex>, 2>(&x, [M, K]).matmul(tensor(&w, [K, N]));
                let w = tensor::<Inner<Flex>, 2>(&w, [K, N]).require_grad();
                tensor::<Inner<Flex>, 2>(&x, [M, K]).matmul(w).sum().backward()
            });
            assert_eq!(report.fp8().count(), 4, "{report}");
            let amax = |values: &[f32]| values.iter().fold(0f32, |max, x| max.max(x.abs()));
            for product in report.products.iter().filter(|p| p.role == GemmRole::Output) {
                assert_eq!(product.site, None);
                assert_eq!(product.lhs.unwrap().scale, amax(&x) / 448.0, "{report}");
            }
            assert_eq!(state.export(), before);
            assert_eq!(sites(&chain::<Outer<Flex>>(2, M)), KNOWN);
        })
    });
}

#[test]
fn a_panic_inside_a_step_leaves_the_state_as_it_was() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        state.step(|| chain::<Outer<Flex>>(1, M));
        let before = state.export();
        for passes in [0, 1] {
            let caught = std::panic::catch_unwind(|| {
                state.step(|| {
                    for seed in 0..passes {
                        chain::<Outer<Flex>>(20 + seed, M);
                    }
                    let w = tensor::<Outer<Flex>, 2>(&[100.0; K * N], [K, N]).require_grad();
                    let y = tensor::<Outer<Flex>, 2>(&[100.0; M * K], [M, K]).matmul(w);
                    assert!(y.dims() == [0, 0], "a failure half-way");
                })
            });
            assert!(caught.is_err());
            assert_eq!(state.export(), before);
        }
        let report = state.step(|| chain::<Outer<Flex>>(2, M));
        assert_eq!(sites(&report), KNOWN);
        // As if nothing had happened.
        let undisturbed = DelayedState::new();
        undisturbed.step(|| chain::<Outer<Flex>>(1, M));
        undisturbed.step(|| chain::<Outer<Flex>>(2, M));
        assert_eq!(state.export(), undisturbed.export());
    });
}

#[test]
fn graphs_of_a_step_that_was_given_up_enter_nothing() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        state.step(|| chain::<Outer<Flex>>(1, M));
        let before = state.export();
        let mut kept = None;
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            state.step(|| {
                let w = tensor::<Outer<Flex>, 2>(&[9.0; K * N], [K, N]).require_grad();
                kept = Some(tensor::<Outer<Flex>, 2>(&[9.0; M * K], [M, K]).matmul(w).sum());
                panic!("after the forward pass");
            })
        }));
        assert!(caught.is_err());
        kept.expect("the forward pass ran").backward();
        assert_eq!(state.export(), before);
    });
}

#[test]
fn micro_batches_of_a_step_combine_by_maximum_and_enter_once() {
    let run = |amaxes: &[[f32; 3]]| {
        let state = DelayedState::new();
        let recipe = Recipe::delayed().with_history_length(4);
        delayed(recipe).scope(|| {
            state.step(|| {
                let reports: Vec<_> = amaxes
                    .iter()
                    .map(|[x, w, g]| {
                        product::<Outer<Flex>>(
                            &with_amax(1, M * K, *x),
                            &with_amax(2, K * N, *w),
                            &with_amax(3, M * N, *g),
                        )
                    })
                    .collect();
                assert_eq!(state.export().sites[0].input.entries(), [0.0; 4], "not yet");
                reports
            });
        });
        let site = state.export().sites.remove(0);
        [site.input, site.weight, site.output_grad].map(|history| history.entries().to_vec())
    };
    let amaxes = [[1.0, 2.0, 5.0], [3.0, 2.0, 4.0], [2.0, 2.0, 1.0]];
    let expected = [3.0, 2.0, 5.0].map(|amax| vec![amax, 0.0, 0.0, 0.0]);
    assert_eq!(run(&amaxes), expected);
    let reversed: Vec<_> = amaxes.into_iter().rev().collect();
    assert_eq!(run(&reversed), expected);
}

#[test]
fn two_models_on_one_thread_keep_their_sites() {
    let (generator, discriminator) = (DelayedState::new(), DelayedState::new());
    // The generator has one product more than the discriminator, of other shapes.
    let generate = |seed: u64| chain::<Outer<Flex>>(seed, M);
    let discriminate = |seed: u64| {
        let mut random = Random(seed);
        let x = random.spread(M * N);
        let w = random.spread(N * N);
        let x = tensor::<Outer<Flex>, 2>(&x, [M, N]);
        let w = tensor::<Outer<Flex>, 2>(&w, [N, N]).require_grad();
        trace(|| x.matmul(w).sum().backward()).1
    };
    delayed(Recipe::delayed()).scope(|| {
        for seed in 0..4 {
            let g = generator.scope(|| generate(seed));
            let d = discriminator.scope(|| discriminate(100 + seed));
            if seed > 0 {
                assert_eq!(sites(&g), KNOWN);
                assert_eq!(sites(&d), KNOWN[..1]);
            }
        }
        let alone = DelayedState::new();
        (0..4).for_each(|seed| {
            alone.scope(|| generate(seed));
        });
        assert_eq!(generator.export(), alone.export());

        // Both forward passes before either backward pass, which run outside of the scopes: each graph ends the step of its state.
        let states = [DelayedState::new(), DelayedState::new()];
        for _ in 0..2 {
            let losses = [(&states[0], K, N), (&states[1], N, K)].map(|(state, k, n)| {
                let mut random = Random(k as u64);
                let x = tensor::<Outer<Flex>, 2>(&random.spread(M * k), [M, k]);
                let w = tensor::<Outer<Flex>, 2>(&random.spread(k * n), [k, n]).require_grad();
                state.scope(|| x.matmul(w).sum())
            });
            losses.into_iter().rev().for_each(|loss| drop(loss.backward()));
        }
        for (state, k) in states.iter().zip([K, N]) {
            let sites = state.export().sites;
            assert_eq!((sites.len(), sites[0].k), (1, k));
            let entered = sites[0].output_grad.entries().iter().filter(|amax| **amax == 1.0);
            assert_eq!(entered.count(), 2);
        }
    });
}

#[test]
fn a_product_that_does_not_fit_its_site_takes_current_scaling_and_resets_it() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            chain::<Outer<Flex>>(1, M);
            let [x, w, g] = [1, 2, 3].map(|seed| Random(seed).spread(M * M));
            let square = |v: &[f32]| tensor::<Outer<Flex>, 2>(v, [M, M]);
            let (_, report) = trace(|| {
                (square(&x).matmul(square(&w).require_grad()) * square(&g)).sum().backward()
            });
            assert_eq!(sites(&report), [(0, SiteStatus::Mismatch)]);
            assert!(report.to_string().contains("site 0 (other K×N than before: reset)"));
            let amax = |values: &[f32]| values.iter().fold(0f32, |max, x| max.max(x.abs()));
            assert_eq!(report.products[0].lhs.unwrap().scale, amax(&x) / 448.0);
        })
    });
    let sites = state.export().sites;
    assert_eq!(sites.len(), 4);
    assert_eq!((sites[0].k, sites[0].n), (M, M));
    assert_eq!(sites[0].input.entries()[1..], [0.0; 1023]);
    assert!(sites[1].input.entries()[0] > 0.0, "the others stay");
}

#[test]
fn products_that_backward_does_not_reach_leave_their_sites_alone() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            let w = [1.0, 2.0].map(|amax| {
                tensor::<Outer<Flex>, 2>(&with_amax(1, K * N, amax), [K, N]).require_grad()
            });
            let x = tensor::<Outer<Flex>, 2>(&with_amax(2, M * K, 1.0), [M, K]);
            let [_unused, y] = w.map(|w| x.clone().matmul(w));
            y.sum().backward();
        })
    });
    let amaxes: Vec<_> = state.export().sites.iter().map(|s| s.weight.entries()[0]).collect();
    assert_eq!(amaxes, [0.0, 2.0]);
}

#[test]
fn two_threads_do_not_share_sites_unless_told_to() {
    let run = |seed: u64| {
        delayed(Recipe::delayed()).scope(|| {
            let reports: Vec<_> = (0..5).map(|i| chain::<Outer<Flex>>(seed + i, M)).collect();
            assert!(reports[1..].iter().all(|report| sites(report) == KNOWN));
            DelayedState::current().export()
        })
    };
    let alone: Vec<_> = [10, 20]
        .map(|seed| std::thread::spawn(move || run(seed)).join().expect("no panic"))
        .into_iter()
        .collect();
    let threads = [10, 20].map(|seed| std::thread::spawn(move || run(seed)));
    let together: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[1]);

    // One model on two threads: both passes belong to one step, whichever ends first.
    let state = DelayedState::new();
    let run = |amax: f32| {
        delayed(Recipe::delayed().with_history_length(2)).scope(|| {
            product::<Outer<Flex>>(
                &with_amax(1, M * K, amax),
                &with_amax(2, K * N, 1.0),
                &with_amax(3, M * N, 1.0),
            );
        })
    };
    for amaxes in [[1.0, 4.0], [3.0, 2.0]] {
        state.step(|| {
            std::thread::scope(|scope| {
                for amax in amaxes {
                    let (run, state) = (&run, &state);
                    scope.spawn(move || state.scope(|| run(amax)));
                }
            })
        });
    }
    let export = state.export();
    assert_eq!(export.sites.len(), 1);
    assert_eq!(export.sites[0].input.entries(), [3.0, 4.0]);
}

#[test]
fn a_checkpointed_or_recomputed_forward_pass_advances_the_state_once() {
    use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
    use burn::tensor::activation::gelu;

    fn run<B: AutodiffBackend>() -> (Vec<u32>, burn_fp8::DelayedRecord) {
        let state = DelayedState::new();
        let mut gradient = vec![];
        delayed(Recipe::delayed()).scope(|| {
            for seed in 0..3 {
                let mut random = Random(seed);
                let x = tensor::<B, 2>(&random.spread(M * K), [M, K]);
                let [a, b] = [random.spread(K * K), random.spread(K * K)]
                    .map(|w| tensor::<B, 2>(&w, [K, K]).require_grad());
                state.scope(|| {
                    // Memory-bound operations between the products: those are recomputed.
                    let h = gelu(x.clone().matmul(a.clone()) * 2.0).tanh();
                    let grads = gelu(h.matmul(b.clone()).exp()).sum().backward();
                    gradient = bits(&values(a.grad(&grads).expect("tracked")));
                });
            }
        });
        (gradient, state.export())
    }
    let plain = run::<Fp8Backend<Autodiff<Flex, NoCheckpointing>>>();
    let balanced = run::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>>();
    assert_eq!(plain, balanced);
    assert_eq!(plain.1.sites.len(), 2);
    for site in plain.1.sites {
        let entered = site.input.entries().iter().filter(|amax| **amax > 0.0).count();
        assert_eq!(entered, 3, "one entry a step");
    }

    // A forward pass run again by hand, the first time without a graph, as gradient checkpointing does.
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        for seed in 0..3 {
            let mut random = Random(seed);
            let x = random.spread(M * K);
            let w = random.spread(K * N);
            state.step(|| {
                let forgotten = tensor::<Fp8Backend<Flex>, 2>(&x, [M, K]);
                let _ = forgotten.matmul(tensor(&w, [K, N]));
                let w = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
                tensor::<Outer<Flex>, 2>(&x, [M, K]).matmul(w).sum().backward();
            });
        }
    });
    let sites = state.export().sites;
    assert_eq!(sites.len(), 1);
    assert_eq!(sites[0].input.entries().iter().filter(|amax| **amax > 0.0).count(), 3);
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
    use burn_fp8::{HighPrecision, Precision};

    type Results = [Vec<u32>; 3];
    fn run<B: AutodiffBackend>() -> (Results, Report) {
        let mut random = Random(5);
        let [x, w, g] = [M * K, K * N, M * N].map(|count| random.spread(count));
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
        let fresh = |recipe| DelayedState::new().scope(|| config(recipe).scope(run::<Outer<Flex>>));
        let (fp8, _) = fresh(recipe);
        let (high, _) = run::<Autodiff<Flex>>();
        for role in GemmRole::ALL {
            let (mixed, report) = fresh(recipe.with_precision(role, Precision::High));
            for (index, other) in GemmRole::ALL.into_iter().enumerate() {
                let expected = if other == role { &high } else { &fp8 };
                if other == role && role != GemmRole::Output {
                    // One product over the joined leading dimensions: summed in another order than Burn's.
                    let values = |bits: &[u32]| bits.iter().map(|b| f32::from_bits(*b)).collect();
                    let (a, b): (Vec<f32>, Vec<f32>) =
                        (values(&mixed[index]), values(&expected[index]));
                    common::assert_close(&a, &b, 1e-6, "gradient");
                } else {
                    assert!(mixed[index] == expected[index], "{role} high: {other}");
                }
                let ran = report.products.iter().find(|p| p.role == other).expect("three").ran;
                let expected = match other == role {
                    true => Ran::HighPrecision(HighPrecision::Recipe),
                    false => Ran::FakeQuantized,
                };
                assert_eq!(ran, expected, "{report}");
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
