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
                    10 => [(0, New), (0, Moved)],
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
            weights = weights.map(|weight| {
                let grad = Tensor::from_inner(weight.grad(&grads).expect("tracked"));
                (weight - grad * 1e-3).detach().require_grad()
            });
        }
    });
    assert_eq!(state.export().sites.len(), 2);
}

/// A run that goes on from a file knows its layers by their order, then by their weights.
#[test]
fn a_loaded_state_learns_its_weights() {
    let (state, resumed) = (DelayedState::new(), DelayedState::new());
    let mut model = Pair { first: layer(51), second: layer(52) };
    let mut optimizer = SgdConfig::new().init();
    let mut step = |state: &DelayedState, scale: f32, thawed: bool| {
        under(state, Recipe::delayed(), || {
            let (trained, report) = train(model.clone(), &mut optimizer, |model| {
                let first =
                    if thawed { model.first.clone() } else { model.first.clone().no_grad() };
                model.second.forward(first.forward(normal(3, scale)) * 100.0).mean()
            });
            model = trained;
            forward(&report).iter().map(|site| (site.0, site.1)).collect::<Vec<_>>()
        })
    };
    step(&state, 1.0, true);
    resumed.import(state.export()).expect("its own");
    use SiteStatus::{Known, Moved};
    assert_eq!(step(&resumed, 1.0, true), [(0, Known), (1, Known)]);
    assert_eq!(step(&resumed, 1.0, false), [(1, Moved)], "without a product before it");
    assert_eq!(step(&resumed, 1.0, false), [(0, Known)]);
    assert_eq!(step(&resumed, 1.0, true)[1], (0, Moved));
}
