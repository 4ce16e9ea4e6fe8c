//! Products known by their weights.

use burn::optim::SgdConfig;
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
    Linear { weight: Param::from_tensor(weight.detach()), bias: None }
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

/// How far an output is from the exact one, relative to it. FP8 costs some 0.04 with random operands; a scale that is 100 times too small, 0.9.
fn error(actual: &[f32], exact: &[f64]) -> f64 {
    let actual = wide(actual);
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    square(&mut actual.iter().zip(exact).map(|(a, b)| a - b)) / square(&mut exact.iter().copied())
}

/// `x` `[ROWS, WIDTH]` times a weight, in f64.
fn exact(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let mut output = vec![0.0; ROWS * WIDTH];
    for (row, x) in output.chunks_mut(WIDTH).zip(x.chunks(WIDTH)) {
        for (x, weight) in x.iter().zip(weight.chunks(WIDTH)) {
            row.iter_mut().zip(weight).for_each(|(y, w)| *y += f64::from(*x) * f64::from(*w));
        }
    }
    output
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
            let x = normal(step, 1.0);
            let weights = [&model.first, &model.second].map(|layer| values(layer.weight.val()));
            let mut outputs = vec![];
            let (trained, report) = train(model, &mut optimizer, |model| {
                let hidden = model.first.forward(x.clone());
                let output = model.second.forward(hidden.clone() * 100.0);
                outputs = vec![hidden.clone(), output.clone()];
                output.mean()
            });
            model = trained;
            let inputs = [x, outputs[0].clone() * 100.0].map(values);
            for (i, output) in outputs.into_iter().enumerate() {
                let error = error(&values(output), &exact(&inputs[i], &weights[i]));
                assert!(error < 0.05, "step {step}, layer {i}: {error}\n{report}");
            }
            if step >= 10 {
                let status: Vec<_> = forward(&report).iter().map(|site| (site.0, site.1)).collect();
                use SiteStatus::{Known, Moved, New};
                let expected = match step {
                    10 => [(0, New), (1, Moved)],
                    _ => [(0, Known), (1, Known)],
                };
                assert_eq!(status, expected, "step {step}\n{report}");
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
            let mut products = vec![];
            let (trained, report) = train(model, &mut optimizer, |model| {
                let mut run = |layer: &Linear<B>, x: Tensor<B, 2>| {
                    let output = layer.forward(x.clone());
                    products.push([x, layer.weight.val(), output.clone()].map(values));
                    output
                };
                let mut loss = Tensor::zeros([1], &Default::default());
                for turn in 0..=step % 4 {
                    loss = loss + run(&model.cell, normal(step + turn, 1.0)).mean();
                }
                if step % 3 != 0 {
                    loss = loss + run(&model.sometimes, normal(step, 1e-4)).mean();
                }
                loss + run(&model.head, normal(step, 100.0)).mean()
            });
            model = trained;
            for (i, [x, weight, output]) in products.iter().enumerate() {
                let error = error(output, &exact(x, weight));
                assert!(error < 0.08, "step {step}, product {i}: {error}\n{report}");
            }
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
            let sites: Vec<_> = forward(&report).iter().map(|site| (site.0, site.1)).collect();
            assert_eq!(sites, [(0, status), (1, status)], "step {step}");
            // As from a file: nothing in the graph leads from one to the other.
            weights = weights.map(|weight| {
                let grad = values(weight.grad(&grads).expect("tracked"));
                let updated: Vec<_> =
                    values(weight).iter().zip(grad).map(|(w, g)| w - g * 1e-3).collect();
                tensor::<B, 2>(&updated, [WIDTH, WIDTH]).require_grad()
            });
        }
    });
    assert_eq!(state.export().sites.len(), 2);
}

/// The model of a run that is interrupted: a loop of changing length, before a head with far larger inputs.
#[derive(Module, Debug)]
struct Loop<B: Backend> {
    cell: Linear<B>,
    head: Linear<B>,
}

/// A run that goes on from a file ends with the scales of one that was not interrupted, also where the next step has another length.
#[test]
fn a_loaded_state_knows_its_layers_by_what_came_before_them() {
    let step = |state: &DelayedState, model: Loop<B>, step: u64, turns: u64| {
        under(state, Recipe::delayed(), || {
            train(model, &mut SgdConfig::new().init(), |model| {
                let mut loss = Tensor::zeros([1], &Default::default());
                for turn in 0..turns {
                    loss = loss + model.cell.forward(normal(step + turn, 1.0)).mean();
                }
                loss + model.head.forward(normal(step, 1e5)).mean()
            })
        })
    };
    for turns in [3, 1, 5] {
        let state = DelayedState::new();
        let mut model = Loop { cell: layer(51), head: layer(52) };
        for i in 0..4 {
            model = step(&state, model, i, 3 - i % 2).0;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("state.safetensors");
        state.save(&file).expect("saved");
        // The same tensors, as within one process, and others, as in the next one.
        for fresh in [false, true] {
            let resumed = DelayedState::new();
            resumed.load(&file).expect("saved before");
            let copy = |layer: &Linear<B>| {
                let weight = values(layer.weight.val());
                let weight = Param::from_tensor(tensor(&weight, [WIDTH, WIDTH]));
                Linear { weight, bias: None }
            };
            let mut other = match fresh {
                true => Loop { cell: copy(&model.cell), head: copy(&model.head) },
                false => model.clone(),
            };
            let whole = DelayedState::new();
            whole.import(state.export()).expect("its own");
            let mut same = model.clone();
            for i in 4..8 {
                let turns = if i == 4 { turns } else { 3 - i % 2 };
                let (mut expected, mut actual) = (vec![], vec![]);
                for (state, model, report) in
                    [(&whole, &mut same, &mut expected), (&resumed, &mut other, &mut actual)]
                {
                    let (trained, of_step) = step(state, model.clone(), i, turns);
                    (*model, *report) = (trained, forward(&of_step));
                    assert!(report.iter().all(|site| site.2 < ROWS * WIDTH / 4), "{of_step}");
                }
                assert_eq!(actual, expected);
            }
            assert_eq!(resumed.export(), whole.export());
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
                    let run = || model.forward(x).mean().backward();
                    let (grads, report) = trace(run);
                    let [(_, status, saturated)] = forward(&report)[..] else { panic!("one") };
                    assert_eq!(status, [SiteStatus::New, SiteStatus::Known][step.min(1) as usize]);
                    assert!(saturated < ROWS, "step {step}, model {i}: {saturated}");
                    all.push(GradientsParams::from_grads(grads, model));
                }
                let stepped = models.into_iter().zip(all);
                let stepped =
                    stepped.map(|(model, grads)| SgdConfig::new().init().step(1e-3, model, grads));
                models = stepped.collect();
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
            let weights = [&model.first, &model.second].map(|layer| values(layer.weight.val()));
            let inputs = [normal(step, 1e-6), normal(step + 9, 1.0)];
            let mut outputs = vec![];
            let (trained, report) = train(model, &mut optimizer, |model| {
                let [small, large] = inputs.clone();
                // The first layer once more, after the second.
                outputs = vec![
                    model.first.forward(small),
                    model.second.forward(large.clone()),
                    model.first.forward(large),
                ];
                outputs.iter().fold(Tensor::zeros([1], &Default::default()), |sum, output| {
                    sum + output.clone().mean()
                })
            });
            model = trained;
            let [small, large] = inputs.map(values);
            let pairs = [(&small, &weights[0]), (&large, &weights[1]), (&large, &weights[0])];
            for (i, (output, (x, weight))) in outputs.into_iter().zip(pairs).enumerate() {
                let error = error(&values(output), &exact(x, weight));
                assert!(error < 0.06, "step {step}, product {i}: {error}\n{report}");
            }
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
            let inputs = [normal(step, 1e-5), normal(step, 1.0), normal(step, 1.0)];
            let weights = [weight.weight.val(), average.clone(), batch];
            let mut outputs = vec![];
            let (trained, report) = train(weight, &mut optimizer, |weight| {
                let [x, y, z] = inputs.clone();
                let [_, average, batch] = weights.clone();
                outputs = vec![weight.forward(x), y.matmul(average), z.matmul(batch)];
                let scales = [1.0, 1e-5, 1e-8].iter().zip(outputs.clone());
                scales.fold(Tensor::zeros([1], &Default::default()), |sum, (scale, output)| {
                    sum + output.mean() * *scale
                })
            });
            weight = trained;
            for (i, (output, pair)) in
                outputs.into_iter().zip(inputs.into_iter().zip(weights)).enumerate()
            {
                let [x, weight] = [pair.0, pair.1].map(values);
                let error = error(&values(output), &exact(&x, &weight));
                assert!(error < 0.06, "step {step}, product {i}: {error}\n{report}");
            }
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
    let status: Vec<_> = moved.iter().map(|site| site.1).collect();
    assert_eq!(status, [SiteStatus::Moved; 2]);
    assert!(moved.iter().all(|site| site.2 == 0), "{moved:?}");
}
