//! Delayed scaling: the same scales and the same state as in emulation.

use burn::tensor::backend::AutodiffBackend;
use burn_fp8::{DelayedRecord, DelayedState, Fp8Config, Fp8Matmul, Recipe};

use crate::common::{Outer, delayed, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{emulated, native, normal};

fn scales_come_from_earlier_steps<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    delayed::scales_come_from_earlier_steps::<B>();
}

fn state_stays_finite<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    delayed::state_stays_finite::<B>();
}

/// Two layers and two micro-batches a step; each step's data are of another magnitude, so that some saturate.
fn train<B: AutodiffBackend>(config: Fp8Config) -> (DelayedRecord, Vec<f32>) {
    let [m, k, n] = [64, 96, 80];
    let state = DelayedState::new();
    let mut seen = vec![];
    config.scope(|| {
        for step in 0..8u64 {
            state.step(|| {
                for batch in 0..2 {
                    let seed = 10 * step + batch;
                    let magnitude = [1.0, 8.0, 0.25, 100.0][(step % 4) as usize];
                    let data = |seed, count| {
                        normal(seed, count).iter().map(|x| x * magnitude).collect::<Vec<_>>()
                    };
                    let x = tensor::<B, 2>(&data(seed, m * k), [m, k]).require_grad();
                    let w = tensor::<B, 2>(&data(1, k * n), [k, n]).require_grad();
                    let v = tensor::<B, 2>(&data(2, m * k), [m, k]).require_grad();
                    let g = tensor::<B, 2>(&data(3 + seed, m * n), [m, n]);
                    let y = x.clone().matmul(w.clone()) + v.clone().matmul(w.clone());
                    let grads = (y.clone() * g).sum().backward();
                    seen.extend(values(y).into_iter().step_by(97));
                    seen.extend(values(w.grad(&grads).expect("tracked")).into_iter().step_by(89));
                }
            });
        }
    });
    (state.export(), seen)
}

fn states_equal_those_of_emulation<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for recipe in [
        Recipe::delayed(),
        Recipe::delayed().with_history_length(3).with_margin(1),
        Recipe::delayed().with_history_length(2).with_power_of_two(true),
    ] {
        let config = native::<B>().with_recipe(recipe);
        let (native, seen) = train::<Outer<B>>(config);
        let (emulated, expected) = train::<Outer<B>>(emulated().with_recipe(recipe));
        assert_eq!(native, emulated, "{recipe:?}");
        assert_eq!(native.sites.len(), 2);
        crate::common::assert_close(&seen, &expected, 0.01, "results");
    }
}

on_cuda_and_rehearsed!(
    scales_come_from_earlier_steps,
    state_stays_finite,
    states_equal_those_of_emulation
);
