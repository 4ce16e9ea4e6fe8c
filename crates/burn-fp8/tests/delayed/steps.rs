//! Steps and passes that overlap, fail, cross threads, or run in part.

use std::sync::Barrier;

use burn::tensor::module::attention;

use crate::common::delayed::{K, M, N, delayed, entered, entries, under, with_amax};
use crate::common::*;

type B = Outer<Flex>;

fn loss_of(m: usize, k: usize, n: usize, amax: f32) -> Tensor<B, 1> {
    let x = tensor::<B, 2>(&with_amax(1, m * k, amax), [m, k]);
    let w = tensor::<B, 2>(&with_amax(2, k * n, 1.0), [k, n]).require_grad();
    x.matmul(w).sum()
}

fn loss() -> Tensor<B, 1> {
    loss_of(M, K, N, 1.0)
}

/// One product with its backward pass.
fn pass() {
    loss().backward();
}

/// A batch too small for FP8 in one layer, or a layer in high precision, moves no other layer.
#[test]
fn products_that_are_not_in_fp8_are_counted() {
    let state = DelayedState::new();
    under(&state, Recipe::delayed(), || {
        let pass = |batch: usize| {
            let losses = || loss_of(batch, K, K, 1e4) + loss_of(64, K, K, 1e-4);
            let (_, report) = trace(|| losses().backward());
            let fp8 = report.fp8().filter(|product| product.role == GemmRole::Output);
            let site = fp8.map(|p| (p.site.expect("tracked").index, p.lhs.unwrap().scale));
            site.collect::<Vec<_>>()
        };
        (0..3).for_each(|_| drop(pass(32)));
        let [large, small] = [1e4f32 / 448.0, 1e-4 / 448.0];
        assert_eq!(pass(32), [(0, large), (1, small)]);
        assert_eq!(pass(8), [(1, small)], "the second layer keeps its scale");
        assert_eq!(high_precision(|| pass(32)), []);
        assert_eq!(pass(32), [(0, large), (1, small)]);
    });
    assert_eq!(entries(&state), [(0, 5), (1, 6)]);
}

#[test]
fn a_thread_goes_on_after_another_one_has_cleared_the_state() {
    let state = DelayedState::new();
    under(&state, Recipe::delayed(), || {
        // At a site that is known, then at a new one.
        for known in [true, false] {
            if known {
                pass();
            }
            let loss = loss();
            std::thread::scope(|scope| {
                scope.spawn(|| state.clear());
            });
            loss.backward();
            assert_eq!(entries(&state), [], "what ran before is dropped");
        }
        (0..10).for_each(|_| pass());
    });
    assert_eq!(entries(&state), [(0, 10)]);
}

#[test]
fn backward_may_run_on_another_thread() {
    let state = DelayedState::new();
    let backward = || {
        let loss = loss();
        std::thread::spawn(move || drop(loss.backward())).join().expect("no panic");
    };
    under(&state, Recipe::delayed(), || {
        (0..5).for_each(|_| backward());
        assert_eq!(entries(&state), [(0, 5)]);
        state.step(|| (0..4).for_each(|_| backward()));
    });
    assert_eq!(entries(&state), [(0, 6)]);
}

/// Steps of two threads, of which one always runs.
#[test]
fn overlapping_steps_each_enter() {
    let state = DelayedState::new();
    let barrier = Barrier::new(2);
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
                            pass();
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

/// Before its first product, between passes, between a pass and other shapes and history lengths: nothing of it enters, not even by a graph that it left.
#[test]
fn a_step_that_is_given_up_leaves_the_state_as_it_was() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        (0..3).for_each(|_| state.step(pass));
        let before = state.export();
        for passes in [0, 1, 2] {
            panic_of(|| {
                state.step(|| {
                    (0..passes).for_each(|_| pass());
                    loss_of(M, N, K, 9.0).backward();
                    let recipe = Recipe::delayed().with_history_length(2);
                    delayed(recipe).scope(|| loss_of(M, K, N, 9.0).backward());
                    panic!("half-way");
                })
            });
            assert_eq!(state.export(), before);
        }
        let mut kept = None;
        panic_of(|| {
            state.step(|| {
                kept = Some(loss_of(M, K, N, 9.0));
                panic!("after the forward pass");
            })
        });
        kept.expect("the forward pass ran").backward();
        assert_eq!(state.export(), before);
        // As if nothing had happened.
        state.step(pass);
        let undisturbed = DelayedState::new();
        (0..4).for_each(|_| undisturbed.step(pass));
        assert_eq!(state.export(), undisturbed.export());
    });
}

#[test]
fn a_step_inside_a_step_is_part_of_it() {
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        for _ in 0..3 {
            state.step(|| {
                let first = loss();
                let second = state.step(|| loss_of(M, N, K, 2.0));
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
    delayed(Recipe::delayed()).scope(|| (0..3).for_each(|_| drop(state.step(loss).backward())));
    assert_eq!(entries(&state), [(0, 3)]);
}

#[test]
fn forward_passes_without_backward_leave_nothing_behind() {
    let state = DelayedState::new();
    under(&state, Recipe::delayed(), || (0..50).for_each(|_| drop(loss())));
    assert_eq!(entries(&state), []);
}

#[test]
fn a_shorter_history_in_the_middle_of_a_step_loses_no_amax() {
    let state = DelayedState::new();
    state.step(|| {
        for (length, amax) in [(8, 5.0), (4, 1.0)] {
            let config = delayed(Recipe::delayed().with_history_length(length));
            config.scope(|| loss_of(M, K, N, amax).backward());
        }
    });
    assert_eq!(state.export().sites[0].input.entries()[0], 5.0);
}

/// Attention that keeps the kernels of the backend counts as its two products, so that a sequence long enough for FP8, or not, moves
/// nothing.
#[test]
fn attention_counts_whether_or_not_it_is_in_fp8() {
    let state = DelayedState::new();
    let filter = Filter::default().with_batched(true);
    delayed(Recipe::delayed()).with_filter(filter).scope(|| {
        state.scope(|| {
            for length in [32usize, 8, 32] {
                let [query, key, value] =
                    [1, 2, 3].map(|seed| random::<B, 4>(seed, [2, 2, length, 16]).require_grad());
                let context = attention(query, key, value, None, None, Default::default());
                (context.sum() + loss()).backward();
            }
        })
    });
    let sites = state.export().sites;
    let layer = sites.iter().find(|site| (site.k, site.n) == (K, N)).expect("it was in FP8");
    assert_eq!((layer.index, entered(layer)), (2, 3), "after scores and context");
}
