//! Delayed scaling, on any backend.

use burn_fp8::AmaxChoice;
use burn_fp8::delayed::SiteRecord;
use burn_fp8::report::{OperandReport, SiteStatus};

use super::*;

pub const M: usize = 16;
pub const K: usize = 32;
pub const N: usize = 24;

pub fn delayed(recipe: Recipe) -> Fp8Config {
    Fp8Config::default().with_recipe(recipe)
}

/// Runs under a recipe, by default [`Recipe::delayed`], with a state.
pub fn under<R>(state: &DelayedState, recipe: Recipe, run: impl FnOnce() -> R) -> R {
    state.scope(|| delayed(recipe).scope(run))
}

pub fn with_amax(seed: u64, count: usize, amax: f32) -> Vec<f32> {
    Random(seed).with_amax(amax, count)
}

/// Input, weight and output gradient of these amaxes.
pub fn operands([x, w, g]: [f32; 3]) -> [Vec<f32>; 3] {
    [with_amax(1, M * K, x), with_amax(2, K * N, w), with_amax(3, M * N, g)]
}

/// One product `x · w` with output gradient `g`, forward and backward.
pub fn product<B: AutodiffBackend>(operands: &[Vec<f32>; 3]) -> Report {
    trace(|| matrix_step::<B>(operands.each_ref().map(Vec::as_slice), [M, K, N])).1
}

/// The same of operands of these amaxes.
pub fn product_of<B: AutodiffBackend>(amaxes: [f32; 3]) -> Report {
    product::<B>(&operands(amaxes))
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

/// How many steps have entered a site.
pub fn entered(site: &SiteRecord) -> usize {
    site.input.entries().iter().filter(|amax| **amax > 0.0).count()
}

/// The sites of a state, and how many steps have entered each.
pub fn entries(state: &DelayedState) -> Vec<(usize, usize)> {
    state.export().sites.iter().map(|site| (site.index, entered(site))).collect()
}

/// Each step's scales are those of the largest amax of the steps before, as far as the history reaches; the first step's are
/// its own. Amaxes are chosen, expectations are computed here.
pub fn scales_come_from_earlier_steps<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let amaxes = [3.0f32, 1.0, 0.5, 0.25, 7.0, 2.0, 2.0, 0.125];
    for (length, choice) in [1, 3, 1024]
        .into_iter()
        .flat_map(|l| [AmaxChoice::Maximum, AmaxChoice::MostRecent].map(|c| (l, c)))
    {
        let recipe = Recipe::delayed().with_history_length(length).with_amax_choice(choice);
        under(&DelayedState::new(), recipe, || {
            for (step, amax) in amaxes.into_iter().enumerate() {
                let report = product_of::<Outer<B>>([amax, 2.0 * amax, 3.0 * amax]);
                let seen = match (step, choice) {
                    (0, _) => amax,
                    (_, AmaxChoice::MostRecent) => amaxes[step - 1],
                    (_, AmaxChoice::Maximum) => {
                        let history = &amaxes[step.saturating_sub(length)..step];
                        history.iter().fold(0.0, |a: f32, b| a.max(*b))
                    }
                };
                let expected = [seen / 448.0, 2.0 * seen / 448.0, 3.0 * seen / 57344.0];
                assert_eq!(scales(&report), expected, "{length} {choice:?} step {step}");
                let status = [SiteStatus::New, SiteStatus::Known][step.min(1)];
                for product in &report.products {
                    let site = product.site.expect("tracked");
                    assert_eq!((site.index, site.status), (0, status));
                }
            }
        });
    }
}

/// Poisoned values show in the output of their step; histories hold the finite ones, and the next step is sound.
pub fn state_stays_finite<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let state = DelayedState::new();
        under(&state, Recipe::delayed().with_history_length(4), || {
            product_of::<Outer<B>>([1.0; 3]);
            let [mut x, w, mut g] = operands([2.0, 1.0, 1.0]);
            (x[0], g[5]) = (poison, poison);
            let [y, ..] = matrix_step::<Outer<B>>([&x, &w, &g], [M, K, N]);
            assert!(y[..N].iter().all(|y| !y.is_finite()), "the first row");
            assert!(y[N..].iter().all(|y| y.is_finite()), "the other rows");
            let report = product_of::<Outer<B>>([0.5, 1.0, 1.0]);
            assert_eq!(scales(&report), [2.0 / 448.0, 1.0 / 448.0, 1.0 / 57344.0]);
        });
        let site = &state.export().sites[0];
        assert_eq!(site.input.entries(), [0.5, 0.0, 1.0, 2.0]);
        assert_eq!(site.output_grad.entries(), [1.0, 0.0, 1.0, 1.0]);
    }
}
