//! Delayed scaling in the decorator: steps and passes that overlap, fail, cross threads, or run in part.

mod common;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_fp8::delayed::SiteRecord;
use burn_fp8::{DelayedState, GemmRole, Recipe, Report, trace};
use common::delayed::{K, M, N, delayed, with_amax};
use common::{Outer, Random, tensor};

/// One product with its backward pass.
fn step_of(m: usize, k: usize, n: usize, amax: f32) -> Report {
    let x = tensor::<Outer<Flex>, 2>(&with_amax(1, m * k, amax), [m, k]);
    let w = tensor::<Outer<Flex>, 2>(&with_amax(2, k * n, 1.0), [k, n]).require_grad();
    trace(|| x.matmul(w).sum().backward()).1
}

fn loss_of(m: usize, k: usize, n: usize) -> Tensor<Outer<Flex>, 1> {
    let x = tensor::<Outer<Flex>, 2>(&with_amax(1, m * k, 2.0), [m, k]);
    let w = tensor::<Outer<Flex>, 2>(&with_amax(2, k * n, 1.0), [k, n]).require_grad();
    x.matmul(w).sum()
}

fn entries(state: &DelayedState) -> Vec<(usize, usize)> {
    let entered = |site: &SiteRecord| site.input.entries().iter().filter(|a| **a > 0.0).count();
    state.export().sites.iter().map(|site| (site.index, entered(site))).collect()
}

/// A batch too small for FP8 in one layer, or a layer in high precision, moves no other layer.
#[test]
fn products_that_are_not_in_fp8_are_counted() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            let pass = |batch: usize| {
                let layer = |m: usize, amax: f32| {
                    let x = tensor::<Outer<Flex>, 2>(&with_amax(1, m * K, amax), [m, K]);
                    let w = tensor::<Outer<Flex>, 2>(&with_amax(2, K * K, 1.0), [K, K]);
                    x.matmul(w.require_grad()).sum()
                };
                let (_, report) = trace(|| (layer(batch, 1e4) + layer(64, 1e-4)).backward());
                let fp8 = report.fp8().filter(|product| product.role == GemmRole::Output);
                fp8.map(|p| (p.site.expect("tracked").index, p.lhs.unwrap().scale))
                    .collect::<Vec<_>>()
            };
            (0..3).for_each(|_| drop(pass(32)));
            let [large, small] = [1e4f32 / 448.0, 1e-4 / 448.0];
            assert_eq!(pass(32), [(0, large), (1, small)]);
            assert_eq!(pass(8), [(1, small)], "the second layer keeps its scale");
            assert_eq!(burn_fp8::high_precision(|| pass(32)), []);
            assert_eq!(pass(32), [(0, large), (1, small)]);
        })
    });
    assert_eq!(entries(&state), [(0, 5), (1, 6)]);
}

#[test]
fn a_thread_goes_on_after_another_one_has_cleared_the_state() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            // At a site that is known, then at a new one.
            for known in [true, false] {
                if known {
                    step_of(M, K, N, 1.0);
                }
                let loss = loss_of(M, K, N);
                std::thread::scope(|scope| {
                    scope.spawn(|| state.clear());
                });
                loss.backward();
                assert_eq!(entries(&state), [], "what ran before is dropped");
            }
            (0..10).for_each(|_| drop(step_of(M, K, N, 1.0)));
        })
    });
    assert_eq!(entries(&state), [(0, 10)]);
}

#[test]
fn backward_may_run_on_another_thread() {
    let state = DelayedState::new();
    let backward = |loss: Tensor<Outer<Flex>, 1>| {
        std::thread::spawn(move || drop(loss.backward())).join().expect("no panic")
    };
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| {
            (0..5).for_each(|_| backward(loss_of(M, K, N)));
            assert_eq!(entries(&state), [(0, 5)]);
            state.step(|| (0..4).for_each(|_| backward(loss_of(M, K, N))));
        })
    });
    assert_eq!(entries(&state), [(0, 6)]);
}

/// Steps of two threads, of which one always runs.
#[test]
fn overlapping_steps_each_enter() {
    let state = DelayedState::new();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for offset in [0, 1] {
            let (state, barrier) = (&state, &barrier);
            scope.spawn(move || {
                delayed(Recipe::delayed()).scope(|| {
                    for round in 0..8 {
                        state.step(|| {
                            // The other thread's step begins or ends while this one runs.
                            if (round + offset) % 2 == 0 {
                                barrier.wait();
                            }
                            step_of(M, K, N, 1.0);
                            barrier.wait();
                        });
                        if (round + offset) % 2 != 0 {
                            barrier.wait();
                        }
                    }
                })
            });
        }
    });
    // The first steps of both found the site new; from then on every step of both has an entry.
    let [(0, entered)] = entries(&state)[..] else { panic!("{:?}", entries(&state)) };
    assert!((15..=16).contains(&entered), "{entered} entries of 16 steps");
}

#[test]
fn a_step_that_is_given_up_resets_nothing() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        (0..3).for_each(|_| drop(state.step(|| step_of(M, K, N, 1.0))));
        let before = state.export();
        let caught = std::panic::catch_unwind(|| {
            state.step(|| {
                // Other shapes and another history length.
                step_of(M, N, K, 9.0);
                delayed(Recipe::delayed().with_history_length(2)).scope(|| step_of(M, K, N, 9.0));
                panic!("half-way");
            })
        });
        assert!(caught.is_err());
        assert_eq!(state.export(), before);
    });
}

#[test]
fn a_step_inside_a_step_is_part_of_it() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        for _ in 0..3 {
            state.step(|| {
                let first = loss_of(M, K, N);
                let second = state.step(|| loss_of(M, N, K));
                (first + second).backward();
                assert!(entries(&state).iter().all(|(_, entered)| *entered < 3), "not yet");
            });
        }
    });
    assert_eq!(entries(&state), [(0, 3), (1, 3)]);
}

#[test]
fn backward_after_its_step_still_counts() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        for _ in 0..3 {
            let loss = state.step(|| loss_of(M, K, N));
            loss.backward();
        }
    });
    assert_eq!(entries(&state), [(0, 3)]);
}

#[test]
fn forward_passes_without_backward_leave_nothing_behind() {
    let state = DelayedState::new();
    state.scope(|| {
        delayed(Recipe::delayed()).scope(|| (0..50).for_each(|_| drop(loss_of(M, K, N))))
    });
    assert_eq!(entries(&state), []);
}

#[test]
fn a_shorter_history_in_the_middle_of_a_step_loses_no_amax() {
    let state = DelayedState::new();
    state.step(|| {
        for (length, amax) in [(8, 5.0), (4, 1.0)] {
            let config = delayed(Recipe::delayed().with_history_length(length));
            config.scope(|| step_of(M, K, N, amax));
        }
    });
    assert_eq!(state.export().sites[0].input.entries()[0], 5.0);
}

/// Attention that keeps the kernels of the backend counts as its two products, so that a sequence long enough for FP8, or not, moves
/// nothing.
#[test]
fn attention_counts_whether_or_not_it_is_in_fp8() {
    use burn::tensor::module::attention;
    use burn_fp8::Filter;

    let state = DelayedState::new();
    let filter = Filter::default().with_batched(true);
    delayed(Recipe::delayed()).with_filter(filter).scope(|| {
        state.scope(|| {
            for length in [32usize, 8, 32] {
                let qkv = [1, 2, 3].map(|seed| {
                    let values = Random(seed).spread(2 * 2 * length * 16);
                    tensor::<Outer<Flex>, 4>(&values, [2, 2, length, 16]).require_grad()
                });
                let [query, key, value] = qkv;
                let context = attention(query, key, value, None, None, Default::default());
                let (_, report) = trace(|| (context.sum() + loss_of(M, K, N)).backward());
                drop(report);
            }
        })
    });
    let sites = state.export().sites;
    let layer = sites.iter().find(|site| (site.k, site.n) == (K, N)).expect("it was in FP8");
    assert_eq!(layer.index, 2, "after scores and context");
    assert_eq!(layer.input.entries().iter().filter(|amax| **amax > 0.0).count(), 3);
}
