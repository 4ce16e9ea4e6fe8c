//! Which product owns which site, and when a step ends.

use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::tensor::activation::gelu;
use burn_fp8::DelayedRecord;
use burn_fp8::report::SiteStatus;

use crate::common::delayed::{K, M, N, delayed, entered, entries, product_of, under, with_amax};
use crate::common::*;

type B = Outer<Flex>;

/// Random numbers.
fn matrix<B: AutodiffBackend>(random: &mut Random, shape: [usize; 2]) -> Tensor<B, 2> {
    tensor(&random.spread(shape[0] * shape[1]), shape)
}

/// Three products of different shapes, the second of them twice; returns the report.
fn chain<B: AutodiffBackend>(seed: u64, rows: usize) -> Report {
    let mut random = Random(seed);
    let x = matrix(&mut random, [rows, K]);
    let [a, b, c] =
        [[K, N], [N, N], [N, K]].map(|shape| matrix::<B>(&mut random, shape).require_grad());
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
    under(&DelayedState::new(), Recipe::delayed(), || {
        let new = KNOWN.map(|(index, _)| (index, SiteStatus::New));
        assert_eq!(sites(&chain::<B>(1, M)), new);
        // The number of rows may change from step to step.
        assert_eq!(sites(&chain::<B>(2, M + 5)), KNOWN);
        assert_eq!(sites(&chain::<B>(3, M)), KNOWN);
    });
}

#[test]
fn inference_validation_and_the_inner_order_have_no_sites() {
    let state = DelayedState::new();
    under(&state, Recipe::delayed(), || {
        chain::<B>(1, M);
        let before = state.export();
        fn product<B: Backend>(tracked: bool) -> Tensor<B, 2> {
            random::<B, 2>(4, [M, K]).matmul(random(5, [K, N]).set_require_grad(tracked))
        }
        // The backend of `model.valid()`, untracked tensors, and the inner order.
        let (_, report) = trace(|| {
            product::<<B as AutodiffBackend>::InnerBackend>(false);
            product::<B>(false);
            product::<Inner<Flex>>(true).sum().backward()
        });
        let x = Random(4).spread(M * K);
        assert_eq!(report.fp8().count(), 4, "{report}");
        for product in report.products.iter().filter(|p| p.role == GemmRole::Output) {
            assert_eq!(product.site, None);
            assert_eq!(product.lhs.unwrap().scale, fp8::amax(&x) / 448.0, "{report}");
        }
        assert_eq!(state.export(), before);
        assert_eq!(sites(&chain::<B>(2, M)), KNOWN);
    });
}

#[test]
fn two_models_on_one_thread_keep_their_sites() {
    let (generator, discriminator) = (DelayedState::new(), DelayedState::new());
    // The generator has more products than the discriminator, of other shapes.
    let loss = |k, n| random::<B, 2>(1, [M, k]).matmul(random(2, [k, n]).require_grad()).sum();
    delayed(Recipe::delayed()).scope(|| {
        for seed in 0..4 {
            let g = generator.scope(|| chain::<B>(seed, M));
            let d = discriminator.scope(|| trace(|| loss(N, N).backward()).1);
            if seed > 0 {
                assert_eq!(sites(&g), KNOWN);
                assert_eq!(sites(&d), KNOWN[..1]);
            }
        }
        let alone = DelayedState::new();
        alone.scope(|| (0..4).for_each(|seed| drop(chain::<B>(seed, M))));
        assert_eq!(generator.export(), alone.export());

        // Both forward passes before either backward pass, which run outside of the scopes: each graph ends the step of its state.
        let states = [DelayedState::new(), DelayedState::new()];
        for _ in 0..2 {
            let losses = [(&states[0], K, N), (&states[1], N, K)]
                .map(|(state, k, n)| state.scope(|| loss(k, n)));
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
    under(&state, Recipe::delayed(), || {
        chain::<B>(1, M);
        let [x, w, g] = [1, 2, 3].map(|seed| Random(seed).spread(M * M));
        let (_, report) = trace(|| matrix_step::<B>([&x, &w, &g], [M; 3]));
        assert_eq!(sites(&report), [(0, SiteStatus::Mismatch)]);
        says(&report, ["site 0 (other K×N than before: reset)"]);
        assert_eq!(report.products[0].lhs.unwrap().scale, fp8::amax(&x) / 448.0);
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
    under(&state, Recipe::delayed(), || {
        let x = tensor::<B, 2>(&with_amax(2, M * K, 1.0), [M, K]);
        let [_unused, y] = [1.0, 2.0].map(|amax| {
            let w = tensor::<B, 2>(&with_amax(1, K * N, amax), [K, N]);
            x.clone().matmul(w.require_grad())
        });
        y.sum().backward();
    });
    let sites = state.export().sites;
    let amaxes: Vec<_> = sites.iter().map(|s| (s.index, s.weight.entries()[0])).collect();
    assert_eq!(amaxes, [(1, 2.0)]);
}

#[test]
fn two_threads_do_not_share_sites_unless_told_to() {
    let run = |seed: u64| {
        std::thread::spawn(move || {
            delayed(Recipe::delayed()).scope(|| {
                let reports: Vec<_> = (0..5).map(|i| chain::<B>(seed + i, M)).collect();
                assert!(reports[1..].iter().all(|report| sites(report) == KNOWN));
                DelayedState::current().export()
            })
        })
    };
    let alone = [10, 20].map(|seed| run(seed).join().expect("no panic"));
    let together = [10, 20].map(run).map(|thread| thread.join().expect("no panic"));
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[1]);

    // One model on two threads: both passes belong to one step, whichever ends first.
    let state = DelayedState::new();
    let recipe = Recipe::delayed().with_history_length(2);
    for amaxes in [[1.0, 4.0], [3.0, 2.0]] {
        state.step(|| {
            std::thread::scope(|scope| {
                for amax in amaxes {
                    let state = &state;
                    scope.spawn(move || under(state, recipe, || product_of::<B>([amax, 1.0, 1.0])));
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
    fn run<B: AutodiffBackend>() -> (Vec<u32>, DelayedRecord) {
        let state = DelayedState::new();
        let mut gradient = vec![];
        for seed in 0..3 {
            let mut random = Random(seed);
            let x = matrix::<B>(&mut random, [M, K]);
            let [a, b] = [(); 2].map(|_| matrix::<B>(&mut random, [K, K]).require_grad());
            under(&state, Recipe::delayed(), || {
                // Memory-bound operations between the products: those are recomputed.
                let h = gelu(x.matmul(a.clone()) * 2.0).tanh();
                let grads = gelu(h.matmul(b).exp()).sum().backward();
                gradient = bits(&grad(&a, &grads));
            });
        }
        (gradient, state.export())
    }
    let plain = run::<Fp8Backend<Autodiff<Flex, NoCheckpointing>>>();
    let balanced = run::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>>();
    assert_eq!(plain, balanced);
    let entries_of_each: Vec<_> = plain.1.sites.iter().map(entered).collect();
    assert_eq!(entries_of_each, [3, 3], "one entry a step");

    // A forward pass run again by hand, the first time without a graph, as gradient checkpointing does.
    let state = DelayedState::new();
    delayed(Recipe::delayed()).scope(|| {
        for seed in 0..3 {
            state.step(|| {
                let forgotten = random::<Fp8Backend<Flex>, 2>(seed, [M, K]);
                let _ = forgotten.matmul(random(9, [K, N]));
                let w = random(9, [K, N]).require_grad();
                random::<B, 2>(seed, [M, K]).matmul(w).sum().backward();
            });
        }
    });
    assert_eq!(entries(&state), [(0, 3)]);
}
