//! Delayed scaling, on any backend.

use burn::tensor::backend::AutodiffBackend;
use burn_fp8::report::{OperandReport, SiteStatus};
use burn_fp8::{AmaxChoice, DelayedState, Fp8Config, Fp8Matmul, Recipe, Report, trace};

use super::{Outer, Random, tensor, values};

pub const M: usize = 16;
pub const K: usize = 32;
pub const N: usize = 24;

pub fn delayed(recipe: Recipe) -> Fp8Config {
    Fp8Config::default().with_recipe(recipe)
}

/// Values in -1..1, of which one is `amax`.
pub fn with_amax(seed: u64, count: usize, amax: f32) -> Vec<f32> {
    let mut random = Random(seed);
    let mut values: Vec<f32> = (0..count).map(|_| random.unit() * amax * 0.9).collect();
    values[count / 3] = -amax;
    values
}

/// One product `x · w` with output gradient `g`, forward and backward.
pub fn product<B: AutodiffBackend>(x: &[f32], w: &[f32], g: &[f32]) -> Report {
    let x = tensor::<B, 2>(x, [M, K]).require_grad();
    let w = tensor::<B, 2>(w, [K, N]).require_grad();
    let g = tensor::<B, 2>(g, [M, N]);
    trace(|| (x.matmul(w) * g).sum().backward()).1
}

/// The scales of input, weight and output gradient in a report of one product.
pub fn scales(report: &Report) -> [f32; 3] {
    let [forward, grad_input, grad_weight] = &report.products[..] else {
        panic!("three products: {report}");
    };
    let scale = |operand: &Option<OperandReport>| operand.expect("in FP8").scale;
    assert_eq!(scale(&forward.rhs), scale(&grad_input.rhs));
    assert_eq!(scale(&forward.lhs), scale(&grad_weight.lhs));
    assert_eq!(scale(&grad_input.lhs), scale(&grad_weight.rhs));
    [scale(&forward.lhs), scale(&forward.rhs), scale(&grad_input.lhs)]
}

/// Each step's scales are those of the largest amax of the steps before, as far as the history reaches; the first step's are
/// its own. Amaxes are chosen, expectations are computed here.
pub fn scales_come_from_earlier_steps<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let amaxes = [3.0f32, 1.0, 0.5, 0.25, 7.0, 2.0, 2.0, 0.125];
    for length in [1, 3, 1024] {
        for choice in [AmaxChoice::Maximum, AmaxChoice::MostRecent] {
            let recipe = Recipe::delayed().with_history_length(length).with_amax_choice(choice);
            DelayedState::new().scope(|| {
                delayed(recipe).scope(|| {
                    for (step, amax) in amaxes.into_iter().enumerate() {
                        let report = product::<Outer<B>>(
                            &with_amax(1, M * K, amax),
                            &with_amax(2, K * N, 2.0 * amax),
                            &with_amax(3, M * N, 3.0 * amax),
                        );
                        let seen = match (step, choice) {
                            (0, _) => amax,
                            (_, AmaxChoice::MostRecent) => amaxes[step - 1],
                            (_, AmaxChoice::Maximum) => amaxes[step.saturating_sub(length)..step]
                                .iter()
                                .fold(0.0, |a: f32, b| a.max(*b)),
                        };
                        let expected = [seen / 448.0, 2.0 * seen / 448.0, 3.0 * seen / 57344.0];
                        assert_eq!(scales(&report), expected, "{length} {choice:?} step {step}");
                        let status = [SiteStatus::New, SiteStatus::Known][step.min(1)];
                        for product in &report.products {
                            let site = product.site.expect("tracked");
                            assert_eq!((site.index, site.status), (0, status));
                        }
                    }
                })
            });
        }
    }
}

/// Poisoned values show in the output of their step; histories hold the finite ones, and the next step is sound.
pub fn state_stays_finite<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let state = DelayedState::new();
        state.scope(|| {
            delayed(Recipe::delayed().with_history_length(4)).scope(|| {
                let w = with_amax(2, K * N, 1.0);
                let g = with_amax(3, M * N, 1.0);
                product::<Outer<B>>(&with_amax(1, M * K, 1.0), &w, &g);
                let mut x = with_amax(1, M * K, 2.0);
                x[0] = poison;
                let mut poisoned_g = g.clone();
                poisoned_g[5] = poison;
                let (y, _) = trace(|| {
                    let x = tensor::<Outer<B>, 2>(&x, [M, K]);
                    let w = tensor::<Outer<B>, 2>(&w, [K, N]).require_grad();
                    let g = tensor::<Outer<B>, 2>(&poisoned_g, [M, N]);
                    let y = x.matmul(w);
                    (y.clone() * g).sum().backward();
                    values(y)
                });
                assert!(y[..N].iter().all(|y| !y.is_finite()), "the first row");
                assert!(y[N..].iter().all(|y| y.is_finite()), "the other rows");
                let report = product::<Outer<B>>(&with_amax(1, M * K, 0.5), &w, &g);
                assert_eq!(scales(&report), [2.0 / 448.0, 1.0 / 448.0, 1.0 / 57344.0]);
            })
        });
        let site = &state.export().sites[0];
        assert_eq!(site.input.entries(), [0.5, 0.0, 1.0, 2.0]);
        assert_eq!(site.output_grad.entries(), [1.0, 0.0, 1.0, 1.0]);
    }
}
