//! Products known by their weights.

use burn_fp8::report::SiteStatus;

use crate::common::delayed::under;
use crate::common::*;

type B = Outer<Flex>;

const WIDTH: usize = 64;
const ROWS: usize = 64;

#[derive(Module, Debug)]
struct Pair<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

fn layer(seed: u64) -> Linear<B> {
    let weight = normal(seed, 1.0) / (WIDTH as f32).sqrt();
    linear(weight.detach(), None)
}

fn normal(seed: u64, amax: f32) -> Tensor<B, 2> {
    tensor(&crate::common::delayed::with_amax(seed, ROWS * WIDTH, amax), [ROWS, WIDTH])
}

/// The tracked forward products of a report: their index, their status, and how many elements of the input saturated.
fn forward(report: &Report) -> Vec<(usize, SiteStatus, usize)> {
    let products = report.products.iter().filter(|product| product.role == GemmRole::Output);
    let site = |product: &burn_fp8::report::ProductReport| {
        let site = product.site?;
        Some((site.index, site.status, product.lhs.expect("in FP8").saturated))
    };
    products.filter_map(site).collect()
}

fn train<M: AutodiffModule<B>>(
    model: M,
    optimizer: &mut impl Optimizer<M, B>,
    loss: impl FnOnce(&M) -> Tensor<B, 1>,
) -> (M, Report) {
    let (grads, report) = trace(|| loss(&model).backward());
    let grads = GradientsParams::from_grads(grads, &model);
    (optimizer.step(1e-3, model, grads), report)
}

/// Products of one step: input, weight and output of each.
#[derive(Default)]
struct Products(Vec<[Vec<f32>; 3]>);

impl Products {
    fn multiply(
        &mut self,
        x: Tensor<B, 2>,
        weight: Tensor<B, 2>,
        run: impl FnOnce(Tensor<B, 2>) -> Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        let y = run(x.clone());
        self.0.push([x, weight, y.clone()].map(values));
        y
    }

    fn forward(&mut self, layer: &Linear<B>, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.multiply(x, layer.weight.val(), |x| layer.forward(x))
    }

    /// Each is exact but for some decibels: FP8 costs some 0.04 with random operands, a scale that is 100 times too small 0.9.
    #[track_caller]
    fn assert(self, least: f64, step: impl std::fmt::Display, report: &Report) {
        for (i, [x, weight, y]) in self.0.iter().enumerate() {
            let shape = [ROWS, WIDTH, WIDTH];
            let exact = Exact::product(&wide(x), &wide(weight), shape);
            let found = sqnr(&exact.values, &wide(y));
            assert!(found > least, "step {step}, product {i}: {found:.1} dB\n{report}");
        }
    }
}

fn sum(terms: impl IntoIterator<Item = Tensor<B, 2>>) -> Tensor<B, 1> {
    let zero = Tensor::zeros([1], &Default::default());
    terms.into_iter().fold(zero, |sum, term| sum + term.mean())
}

/// Index and status of the tracked forward products of a report.
fn statuses(report: &Report) -> Vec<(usize, SiteStatus)> {
    forward(report).iter().map(|site| (site.0, site.1)).collect()
}

/// A critic sees what a generator makes, which no backward pass reaches.
#[test]
fn amaxes_of_a_product_count_that_backward_does_not_reach() {
    let (mut generator, mut critic) = (layer(51), layer(52));
    let (mut of_generator, mut of_critic) = (SgdConfig::new().init(), SgdConfig::new().init());
    under(&DelayedState::new(), Recipe::delayed(), || {
        for step in 0..4 {
            let x = normal(step, [1.0, 4.0][step.min(1) as usize]);
            if step == 0 {
                (generator, _) =
                    train(generator, &mut of_generator, |g| g.forward(x.clone()).mean());
                (critic, _) = train(critic, &mut of_critic, |c| c.forward(x).mean());
                continue;
            }
            let (trained, report) = train(critic, &mut of_critic, |critic| {
                critic.forward(generator.forward(x).detach()).mean()
            });
            critic = trained;
            let (_, _, saturated) = forward(&report)[0];
            match step {
                1 => assert!(saturated > 0, "four times as large as the step before"),
                _ => assert_eq!(saturated, 0, "step {step}"),
            }
        }
    });
}

/// A frozen layer has no gradient, and its product no site. When it is trained, the sites of the others stay theirs.
#[test]
fn a_layer_that_thaws_takes_no_site_of_another() {
    let mut model = Pair { first: layer(51).no_grad(), second: layer(52) };
    let mut optimizer = SgdConfig::new().init();
    under(&DelayedState::new(), Recipe::delayed(), || {
        for step in 0..13 {
            if step == 10 {
                model.first = model.first.fork(&Default::default());
                model.first.weight = model.first.weight.set_require_grad(true);
            }
            let mut products = Products::default();
            let (trained, report) = train(model, &mut optimizer, |model| {
                let hidden = products.forward(&model.first, normal(step, 1.0));
                products.forward(&model.second, hidden * 100.0).mean()
            });
            model = trained;
            products.assert(26.0, step, &report);
            if step >= 10 {
                use SiteStatus::{Known, Moved, New};
                let expected =
                    if step == 10 { [(0, New), (1, Moved)] } else { [(0, Known), (1, Known)] };
                assert_eq!(statuses(&report), expected, "step {step}\n{report}");
            }
        }
    });
}

/// A loop of changing length, and a layer that is left out in some steps, with inputs a million times smaller than those of the head.
#[test]
fn steps_that_differ_keep_each_layer_its_scale() {
    #[derive(Module, Debug)]
    struct Model<B: Backend> {
        cell: Linear<B>,
        sometimes: Linear<B>,
        head: Linear<B>,
    }
    let mut model = Model { cell: layer(51), sometimes: layer(52), head: layer(53) };
    let mut optimizer = SgdConfig::new().init();
    under(&DelayedState::new(), Recipe::delayed(), || {
        for step in 0..24u64 {
            let mut products = Products::default();
            let (trained, report) = train(model, &mut optimizer, |model| {
                let mut inputs: Vec<_> =
                    (0..=step % 4).map(|turn| (&model.cell, normal(step + turn, 1.0))).collect();
                if step % 3 != 0 {
                    inputs.push((&model.sometimes, normal(step, 1e-4)));
                }
                inputs.push((&model.head, normal(step, 100.0)));
                sum(inputs.into_iter().map(|(layer, x)| products.forward(layer, x)))
            });
            model = trained;
            products.assert(22.0, step, &report);
        }
    });
}

/// Gradients that come rarely: what the history says is many steps old.
#[test]
fn a_history_that_is_many_steps_old_begins_anew() {
    let (mut rare, mut often) = (layer(51), layer(52));
    let mut optimizers = [SgdConfig::new().init(), SgdConfig::new().init()];
    let state = DelayedState::new();
    let mut gradient = |state: &DelayedState, rarely: Option<f32>| {
        under(state, Recipe::delayed(), || {
            let (trained, _) = train(often.clone(), &mut optimizers[0], |often| {
                often.forward(rare.forward(normal(1, 1.0)).detach()).mean()
            });
            often = trained;
            let factor = rarely?;
            let (trained, report) = train(rare.clone(), &mut optimizers[1], |rare| {
                rare.forward(normal(1, 1.0)).mean() * factor
            });
            rare = trained;
            let grad_weight =
                report.products.iter().find(|product| product.role == GemmRole::GradWeight);
            Some(grad_weight.expect("trained").rhs.expect("in FP8"))
        })
    };
    gradient(&state, Some(1.0));
    (0..12).for_each(|_| assert!(gradient(&state, None).is_none()));
    let late = gradient(&state, Some(100.0)).expect("trained");
    assert_eq!(late.saturated, 0);
    // All elements are factor / elements: the scale is exact.
    let amax = 100.0 / (ROWS * WIDTH) as f32;
    assert!((late.scale / (amax / 57344.0) - 1.0).abs() < 1e-6, "{}", late.scale);
    // And the old entry is forgotten.
    let site = state.export().sites.into_iter().find(|site| site.output_grad.entries()[1] == 0.0);
    let entries = site.expect("the rare one").output_grad.entries().to_vec();
    assert_eq!(entries.iter().filter(|amax| **amax > 0.0).count(), 1);
}

/// A weight that is replaced without the optimizers of Burn is known by its place.
#[test]
fn weights_updated_by_hand_keep_their_places() {
    let state = DelayedState::new();
    let mut weights = [1, 2].map(|seed| normal(seed, 1.0).require_grad());
    under(&state, Recipe::delayed(), || {
        for step in 0..5 {
            let x = normal(7, 1.0);
            let (grads, report) = trace(|| {
                let [first, second] = weights.clone();
                (x.matmul(first).matmul(second)).mean().backward()
            });
            let status = [SiteStatus::New, SiteStatus::Known][step.min(1)];
            assert_eq!(statuses(&report), [(0, status), (1, status)], "step {step}");
            // As from a file: nothing in the graph leads from one to the other.
            weights = weights.map(|weight| {
                let updated = weight.clone().inner() - weight.grad(&grads).expect("tracked") * 1e-3;
                tensor::<B, 2>(&values(updated), [WIDTH, WIDTH]).require_grad()
            });
        }
    });
    assert_eq!(state.export().sites.len(), 2);
}

/// A run that goes on from a file ends with the scales and the weights of one that was not interrupted, also where the next step has another length: the first layer is a loop, before
/// one with far larger inputs.
#[test]
fn a_loaded_state_knows_its_layers_by_what_came_before_them() {
    let step = |state: &DelayedState, model: Pair<B>, step: u64, turns: u64| {
        let run = |model: &Pair<B>| {
            let turns = (0..turns).map(|turn| model.first.forward(normal(step + turn, 1.0)));
            sum(turns.chain([model.second.forward(normal(step, 1e5))]))
        };
        under(state, Recipe::delayed(), || train(model, &mut SgdConfig::new().init(), run))
    };
    for turns in [3, 1, 5] {
        let state = DelayedState::new();
        let mut model = Pair { first: layer(51), second: layer(52) };
        for i in 0..4 {
            model = step(&state, model, i, 3 - i % 2).0;
        }
        let (_folder, file) = files::path("state.safetensors");
        state.save(&file).expect("saved");
        // The same tensors, as within one process, and others, as in the next one.
        for fresh in [false, true] {
            let (resumed, whole) = (DelayedState::new(), DelayedState::new());
            resumed.load(&file).expect("saved before");
            whole.import(state.export()).expect("its own");
            let copy = |layer: &Linear<B>| {
                linear(tensor(&values(layer.weight.val()), [WIDTH, WIDTH]), None)
            };
            let other = match fresh {
                true => Pair { first: copy(&model.first), second: copy(&model.second) },
                false => model.clone(),
            };
            let mut runs = [(&whole, model.clone()), (&resumed, other)];
            for i in 4..8 {
                let turns = if i == 4 { turns } else { 3 - i % 2 };
                let [expected, actual] = runs.each_mut().map(|(state, model)| {
                    let (trained, report) = step(state, model.clone(), i, turns);
                    *model = trained;
                    let sites = forward(&report);
                    assert!(sites.iter().all(|site| site.2 < ROWS * WIDTH / 4), "{report}");
                    sites
                });
                assert_eq!(actual, expected);
            }
            assert_eq!(resumed.export(), whole.export());
            let [whole, resumed] = runs.map(|(_, Pair { first, second })| {
                [first, second].map(|layer| bits(&values(layer.weight.val())))
            });
            assert!(resumed == whole, "weights differ");
        }
    }
}

/// Two models of one shape, whose backward passes both run before an optimizer steps, keep their own sites; and so do ten that take turns.
#[test]
fn models_of_one_shape_do_not_take_each_others_sites() {
    for count in [2, 10] {
        let mut models: Vec<_> = (0..count).map(|i| layer(60 + i)).collect();
        under(&DelayedState::new(), Recipe::delayed(), || {
            for step in 0..4u64 {
                let mut all = vec![];
                for (i, model) in models.iter().enumerate() {
                    let x = normal(step, 10f32.powi(4 - 7 * (i % 2) as i32));
                    let (grads, report) = trace(|| model.forward(x).mean().backward());
                    let [(_, status, saturated)] = forward(&report)[..] else { panic!("one") };
                    assert_eq!(status, [SiteStatus::New, SiteStatus::Known][step.min(1) as usize]);
                    assert!(saturated < ROWS, "step {step}, model {i}: {saturated}");
                    all.push(GradientsParams::from_grads(grads, model));
                }
                let step = |(model, grads)| SgdConfig::new().init().step(1e-3, model, grads);
                models = models.into_iter().zip(all).map(step).collect();
            }
        });
    }
}

/// One weight in two places, or two layers that began as one, with inputs that have nothing in common.
#[test]
fn a_weight_in_two_places_has_histories_for_each() {
    let first = layer(51);
    let mut model = Pair { second: first.clone(), first };
    let mut optimizer = SgdConfig::new().init();
    under(&DelayedState::new(), Recipe::delayed(), || {
        for step in 0..4 {
            let mut products = Products::default();
            let (trained, report) = train(model, &mut optimizer, |model| {
                let [small, large] = [normal(step, 1e-6), normal(step + 9, 1.0)];
                // The first layer once more, after the second.
                let inputs =
                    [(&model.first, small), (&model.second, large.clone()), (&model.first, large)];
                sum(inputs.map(|(layer, x)| products.forward(layer, x)))
            });
            model = trained;
            products.assert(24.5, step, &report);
        }
    });
}

/// Copies of one model, made for each micro-batch and dropped after it, are one, with all that follows their first layer.
#[test]
fn copies_for_each_micro_batch_are_one() {
    let state = DelayedState::new();
    under(&state, Recipe::delayed(), || {
        for step in 0..3 {
            state.step(|| {
                for batch in 0..2 {
                    let weight = normal(51, 1.0).require_grad();
                    let x = normal(10 * step + batch, 1.0);
                    (x.clone().matmul(weight.clone()) + x.matmul(weight)).sum().backward();
                }
            });
        }
    });
    assert_eq!(crate::common::delayed::entries(&state), [(0, 3), (1, 3)]);
}

/// What an average of two weights puts into the graph is the successor of neither; nor is a batch that comes after validation.
#[test]
fn what_is_no_successor_takes_no_site_of_another() {
    let mut weight = layer(51);
    let mut average = normal(52, 0.1).require_grad();
    let mut optimizer = SgdConfig::new().init();
    under(&DelayedState::new(), Recipe::delayed(), || {
        for step in 0..5 {
            let _validated = weight.valid();
            let batch = Tensor::<B, 2>::from_inner(normal(step, 1e3).inner()).require_grad();
            let mut products = Products::default();
            let (trained, report) = train(weight, &mut optimizer, |weight| {
                let x = || normal(step, 1.0);
                let of_weight = products.forward(weight, normal(step, 1e-5));
                let [average, batch] = [average.clone(), batch]
                    .map(|weight| products.multiply(x(), weight.clone(), |x| x.matmul(weight)));
                sum([of_weight, average * 1e-5, batch * 1e-8])
            });
            weight = trained;
            products.assert(24.5, step, &report);
            let mean = average.clone().inner() * 0.9 + weight.weight.val().inner() * 0.1;
            average = Tensor::from_inner(mean).require_grad();
        }
    });
}

/// What follows a product at a new place takes current scaling, too: its input may have changed with it.
#[test]
fn what_follows_a_product_that_has_moved_takes_current_scaling() {
    let state = DelayedState::new();
    let (first, model) = (layer(53), Pair { first: layer(51), second: layer(52) });
    let run = |scale: f32, with_first: bool| {
        under(&state, Recipe::delayed(), || {
            let x = normal(1, scale);
            let x = if with_first { first.forward(x) } else { x };
            let (_, report) =
                trace(|| model.second.forward(model.first.forward(x)).mean().backward());
            forward(&report)
        })
    };
    (0..2).for_each(|_| drop(run(1.0, true)));
    let moved = run(1e4, false);
    let are_right = moved.iter().all(|site| (site.1, site.2) == (SiteStatus::Moved, 0));
    assert!(moved.len() == 2 && are_right, "{moved:?}");
}
