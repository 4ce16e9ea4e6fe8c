//! Delayed scaling: the scales, the state and the results of the same on the host.

use burn_fp8::DelayedRecord;

use crate::common::delayed::{scales_come_from_earlier_steps, state_stays_finite};
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::ways;

/// M, K, N.
const SHAPE: [usize; 3] = [64, 96, 80];
const STEPS: u64 = 8;
const BATCHES: u64 = 2;

/// Two inputs, their common weight, and the gradient of the sum of both products; each step's of another magnitude, so that some
/// saturate.
fn batch(step: u64, batch: u64) -> [Vec<f32>; 4] {
    let [m, k, n] = SHAPE;
    let (seed, magnitude) = (10 * step + batch, [1.0, 8.0, 0.25, 100.0][(step % 4) as usize]);
    [(seed, m * k), (2, m * k), (1, k * n), (3 + seed, m * n)]
        .map(|(seed, count)| Random(seed).normals(count).iter().map(|x| x * magnitude).collect())
}

/// The state after training, and output and gradient of the weight of each batch.
fn train<B: AutodiffBackend>(config: Fp8Config) -> (DelayedRecord, Vec<[Vec<f32>; 2]>) {
    let [m, k, n] = SHAPE;
    let state = DelayedState::new();
    let mut results = vec![];
    config.scope(|| {
        for step in 0..STEPS {
            state.step(|| {
                for index in 0..BATCHES {
                    let [x, v, w, g] = batch(step, index);
                    let [x, v] = [x, v].map(|x| tensor::<B, 2>(&x, [m, k]).require_grad());
                    let w = tensor::<B, 2>(&w, [k, n]).require_grad();
                    let y = x.matmul(w.clone()) + v.matmul(w.clone());
                    let grads = (y.clone() * tensor(&g, [m, n])).sum().backward();
                    results.push([values(y), grad(&w, &grads)]);
                }
            });
        }
    });
    (state.export(), results)
}

/// The amax history of an operand.
struct History {
    format: Fp8Format,
    entries: Vec<f32>,
    /// The largest amax of the step so far.
    seen: f32,
}

impl History {
    /// What a tensor holds in FP8, by the history as it was when the step began; where that is empty by its own amax.
    fn quantize(&mut self, x: &[f32], recipe: Recipe) -> Vec<f64> {
        let own = fp8::amax(x);
        self.seen = self.seen.max(own);
        let largest = fp8::amax(&self.entries);
        let amax = if largest == 0.0 { own } else { largest };
        let scale = amax / fp8::largest(self.format) * 2f32.powi(recipe.margin);
        let scale = match recipe.power_of_two {
            true => f64::from(scale).log2().ceil().exp2() as f32,
            false => scale,
        };
        fp8::quantize_dequantize_by(x, scale, self.format)
    }

    /// The step's amax enters.
    fn commit(&mut self) {
        self.entries.rotate_left(1);
        self.entries[0] = std::mem::take(&mut self.seen);
    }
}

/// The same on the host: the histories of both sites, input, weight and output gradient; and the results.
fn expected(recipe: Recipe, length: usize) -> ([[History; 3]; 2], Vec<[Exact; 2]>) {
    let mut sites = [(); 2].map(|()| {
        [E4M3, E4M3, E5M2].map(|format| History { format, entries: vec![0.0; length], seen: 0.0 })
    });
    let mut results = vec![];
    for step in 0..STEPS {
        for index in 0..BATCHES {
            let [x, v, w, g] = batch(step, index);
            let [first, second] = [(0, x), (1, v)].map(|(site, x)| {
                let mut operands = [&x, &w, &g].into_iter();
                let held = sites[site]
                    .each_mut()
                    .map(|history| history.quantize(operands.next().expect("three"), recipe));
                let [y, _, dw] = Exact::step(held.each_ref().map(Vec::as_slice), SHAPE);
                [y, dw]
            });
            let [y, dw] = first;
            results.push([y.plus(&second[0]), dw.plus(&second[1])]);
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
