//! Whether a training step on a matrix unit is the emulated step, up to rounding.
//!
//! Another order of sums changes a product by some 1e-7. Values near the border between two codes of FP8 then round to the other one, so that gradients
//! differ by far more. How far rounding alone moves them is what a control shows: the emulated step from weights that are off by one unit in
//! the last place.

use std::collections::BTreeMap;
use std::sync::Arc;

use burn::backend::{Autodiff, Flex};
use burn::data::dataloader::DataLoader;
use burn::lr_scheduler::LrScheduler;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{AdamW, GradientsParams, Optimizer as _};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::{Execution, Fp8Backend, Fp8Config};
use burn_fp8_train::policy::cast_module_to_compute;

use super::learner::{Optimizer, adamw, schedule};
use super::new_model;
use crate::loader::{Batch, Loader};
use crate::model::Gpt;
use crate::precision::Setup;
use crate::probe::StepContext;
use crate::size::{Shape, Size};
use crate::text::Text;

type B = Fp8Backend<Autodiff<Flex>>;
type Inner = <B as AutodiffBackend>::InnerBackend;

const SIZE: Size = Size::Smoke;
/// The state that the steps begin from has been trained so long.
const EPOCHS: usize = 3;
const STEPS: usize = 12;

/// Values of parameters, by name.
type Values = BTreeMap<String, Vec<f64>>;

/// Collects the gradients of a model, or its parameters.
struct Collect<'a> {
    gradients: Option<&'a GradientsParams>,
    path: Vec<String>,
    values: Values,
}

impl ModuleVisitor<B> for Collect<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<B, D>>) {
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<Inner, D>(parameter.id).expect("all are trained"),
            None => parameter.val().inner(),
        };
        self.values.insert(self.path.join("."), tensor.into_data().iter().collect());
    }
}

fn collect(model: &Gpt<B>, gradients: Option<&GradientsParams>) -> Values {
    let mut collect = Collect { gradients, path: vec![], values: Values::new() };
    model.visit(&mut collect);
    collect.values
}

/// Moves each weight by one unit in the last place or two, up or down.
struct LastPlace;

impl ModuleMapper<B> for LastPlace {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        parameter.map(|weight| {
            let mut data = weight.inner().into_data();
            for (index, value) in data.as_mut_slice::<f32>().expect("f32").iter_mut().enumerate() {
                let up = index.wrapping_mul(0x9E37_79B9) & 0x80 == 0;
                *value *= if up { 1.0 + f32::EPSILON } else { 1.0 - f32::EPSILON };
            }
            Tensor::from_inner(Tensor::from_data(data, &Default::default())).require_grad()
        })
    }
}

/// A training at some step.
#[derive(Clone)]
struct State {
    model: Gpt<B>,
    optimizer: Optimizer<AdamW, B>,
}

impl State {
    /// The state after a step, and the step's gradients and updates, one behind the other for each parameter.
    fn step(&self, batch: &Batch<B>, rate: f64, execution: Execution) -> (Self, [Values; 2]) {
        let Batch { inputs, targets, step } = batch.clone();
        let Self { model, mut optimizer } = self.clone();
        let gradients = step.setup.scope(|| {
            Fp8Config::current().with_execution(execution).scope(|| {
                let gradients =
                    cast_module_to_compute::<B, _>(&model).loss(inputs, targets).backward();
                GradientsParams::from_grads(gradients, &model)
            })
        });
        let found = collect(&model, Some(&gradients));
        let mut updates = collect(&model, None);
        let model = optimizer.step(rate, model, gradients);
        for (name, after) in collect(&model, None) {
            let before = updates.get_mut(&name).expect("the same parameters");
            before.iter_mut().zip(after).for_each(|(before, after)| *before = after - *before);
        }
        (Self { model, optimizer }, [found, updates])
    }
}

/// How far `a` is from `b` in relation to it, and how much of that lies along it.
fn distance(a: &[f64], b: &[f64]) -> [f64; 2] {
    let dot = |x: &dyn Fn(usize) -> f64, y: &dyn Fn(usize) -> f64| -> f64 {
        (0..b.len()).map(|i| x(i) * y(i)).sum()
    };
    let (difference, reference) = (|i: usize| a[i] - b[i], |i: usize| b[i]);
    let norm = dot(&reference, &reference);
    [(dot(&difference, &difference) / norm).sqrt(), dot(&difference, &reference) / norm]
}

#[test]
fn a_step_on_a_unit_differs_from_emulation_by_rounding_alone() {
    if !B::capability(&Default::default()).is_native() {
        return burn_fp8_test_support::skip("no matrix unit");
    }
    // Dropout draws from numbers that all threads of a process share.
    let shape = Shape { dropout: 0.0, ..SIZE.shape() };
    for precision in ["m=fp8_rowwise_e4m3", "m=fp8", "m=fp8_block"] {
        let setup = Setup::new(
            precision.parse().expect("a precision"),
            Some("head".parse().expect("a layer")),
        );
        let setup = setup.expect("a setup");
        let text = Text::built_in().expect("the text");
        let model = new_model::<B>(&shape, text.vocabulary.width(), 501, &setup).expect("a model");
        let mut state = State { model, optimizer: adamw::<B>(&setup, &shape) };
        let mut rates = schedule(&shape, 2 * EPOCHS * shape.steps).expect("a schedule");
        let context = Arc::new(StepContext { setup, observatory: None });
        let text = text.train.as_slice().into();
        let loader = Loader::<B>::train(text, shape, (501, 0), context, Default::default());
        for _ in 0..EPOCHS {
            for batch in loader.iter() {
                state = state.step(&batch, rates.step(), Execution::FakeQuantized).0;
            }
        }

        // Of gradients and of updates: the distances of the unit and of the control, for each parameter and step.
        let mut distances = [[vec![], vec![]], [vec![], vec![]]];
        for batch in loader.iter().take(STEPS) {
            let rate = rates.step();
            let (next, emulated) = state.step(&batch, rate, Execution::FakeQuantized);
            let (_, unit) = state.step(&batch, rate, Execution::Auto);
            let moved = State { model: state.model.clone().map(&mut LastPlace), ..state };
            let (_, control) = moved.step(&batch, rate, Execution::FakeQuantized);
            for (kind, emulated) in emulated.iter().enumerate() {
                for (name, emulated) in emulated {
                    for (side, other) in [&unit, &control].into_iter().enumerate() {
                        distances[kind][side].push(distance(&other[kind][name], emulated));
                    }
                }
            }
            state = next;
        }
        for (kind, distances) in ["gradients", "updates"].into_iter().zip(distances) {
            let [[unit, along], [control, _]] = distances.map(|all| {
                [0, 1].map(|part| {
                    all.iter().map(|found: &[f64; 2]| found[part]).sum::<f64>() / all.len() as f64
                })
            });
            let found =
                format!("{precision}, {kind}: {unit:.1e}, along {along:.1e}, {control:.1e}");
            assert!(control > 1e-7, "the control moves nothing: {found}");
            assert!(unit < control && along.abs() < control / 10.0, "{found}");
        }
    }
}
