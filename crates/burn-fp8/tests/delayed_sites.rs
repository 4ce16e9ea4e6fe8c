//! Delayed scaling in the decorator: which product owns which site, and when a step ends.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::report::SiteStatus;
use burn_fp8::{DelayedState, Fp8Backend, GemmRole, Recipe, Report, trace};
use common::delayed::{K, M, N, delayed, product, with_amax};
use common::{Inner, Outer, Random, bits, tensor, values};

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
                assert!(state.export().sites.is_empty(), "not yet");
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
    let sites = state.export().sites;
    let amaxes: Vec<_> = sites.iter().map(|s| (s.index, s.weight.entries()[0])).collect();
    assert_eq!(amaxes, [(1, 2.0)]);
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
