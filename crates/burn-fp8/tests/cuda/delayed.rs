//! Delayed scaling: the scales, the state and the results of the same on the host.

use burn_fp8::DelayedRecord;

use crate::common::delayed::{scales_come_from_earlier_steps, state_stays_finite};
use crate::common::*;
use crate::host::History;
use crate::on_cuda_and_rehearsed;
use crate::support::{normal, ways};

/// M, K, N.
const SHAPE: [usize; 3] = [64, 96, 80];
const STEPS: u64 = 8;
const BATCHES: u64 = 2;

/// Two inputs, their common weight, and the gradient of the sum of both products; each step's of another magnitude, so that some
/// saturate.
struct Batch {
    inputs: [Vec<f32>; 2],
    weight: Vec<f32>,
    grad: Vec<f32>,
}

impl Batch {
    fn new(step: u64, batch: u64) -> Self {
        let [m, k, n] = SHAPE;
        let seed = 10 * step + batch;
        let magnitude = [1.0, 8.0, 0.25, 100.0][(step % 4) as usize];
        let data = |seed, count| normal(seed, count).iter().map(|x| x * magnitude).collect();
        Self {
            inputs: [data(seed, m * k), data(2, m * k)],
            weight: data(1, k * n),
            grad: data(3 + seed, m * n),
        }
    }
}

/// The state after training, and output and gradient of the weight of each batch.
fn train<B: AutodiffBackend>(config: Fp8Config) -> (DelayedRecord, Vec<[Vec<f32>; 2]>) {
    let [m, k, n] = SHAPE;
    let state = DelayedState::new();
    let mut results = vec![];
    config.scope(|| {
        for step in 0..STEPS {
            state.step(|| {
                for batch in 0..BATCHES {
                    let Batch { inputs, weight, grad } = Batch::new(step, batch);
                    let [x, v] = inputs.map(|x| tensor::<B, 2>(&x, [m, k]).require_grad());
                    let w = tensor::<B, 2>(&weight, [k, n]).require_grad();
                    let y = x.matmul(w.clone()) + v.matmul(w.clone());
                    let grads = (y.clone() * tensor(&grad, [m, n])).sum().backward();
                    results.push([values(y), values(w.grad(&grads).expect("tracked"))]);
                }
            });
        }
    });
    (state.export(), results)
}

/// The same on the host: the histories of both sites, input, weight and output gradient; and the results.
fn expected(recipe: Recipe, length: usize) -> (Vec<[History; 3]>, Vec<[Exact; 2]>) {
    let [m, k, n] = SHAPE;
    let mut sites: Vec<_> = (0..2).map(|_| History::of_operands(length)).collect();
    let mut results = vec![];
    for step in 0..STEPS {
        for batch in 0..BATCHES {
            let Batch { inputs, weight, grad } = Batch::new(step, batch);
            let products =
                sites.iter_mut().zip(&inputs).map(|([of_input, of_weight, of_grad], x)| {
                    let (x, w) =
                        (of_input.quantize(x, recipe), of_weight.quantize(&weight, recipe));
                    let g = of_grad.quantize(&grad, recipe);
                    let [y, _, dw] = exact_step([&x, &w, &g], [m, k, n]);
                    [y, dw]
                });
            let sum = products.reduce(|[y, dw], other| [y.plus(&other[0]), dw.plus(&other[1])]);
            results.push(sum.expect("two products"));
        }
        sites.iter_mut().flatten().for_each(History::commit);
    }
    (sites, results)
}

fn states_and_results_equal_those_on_the_host<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for (recipe, length) in [
        (Recipe::delayed(), 1024),
        (Recipe::delayed().with_history_length(3).with_margin(1), 3),
        (Recipe::delayed().with_history_length(2).with_power_of_two(true), 2),
    ] {
        let (sites, exact) = expected(recipe, length);
        for way in ways::<B>() {
            let (record, results) = train::<Outer<B>>(way.config.with_recipe(recipe));
            assert_eq!(record.sites.len(), sites.len());
            for (site, histories) in record.sites.iter().zip(&sites) {
                let recorded = [&site.input, &site.weight, &site.output_grad];
                let expected = histories.each_ref().map(|history| &history.entries[..]);
                assert_eq!(recorded.map(|history| history.entries()), expected, "{recipe:?}");
            }
            assert_eq!(results.len(), exact.len());
            for (index, (results, exact)) in results.iter().zip(&exact).enumerate() {
                for ((result, exact), name) in results.iter().zip(exact).zip(["y", "dw"]) {
                    let what = format!("{} {recipe:?} batch {index} {name}", way.name);
                    exact.assert(result, way.sums, &what);
                }
            }
        }
    }
}

on_cuda_and_rehearsed!([
    scales_come_from_earlier_steps,
    state_stays_finite,
    states_and_results_equal_those_on_the_host
]);
