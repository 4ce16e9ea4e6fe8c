//! A step of an optimizer with moments in FP8: beside Burn's AdamW, and beside reading and writing its bytes once.

use std::cell::RefCell;
use std::hint::black_box;

use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::{Distribution, Tensor};
use burn_fp8_train::Moments8Config;
use rayon::prelude::*;

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "optimizer";

type B = Autodiff<Flex>;
type Model = Vec<Linear<B>>;

/// 12.6 million parameters: twelve layers.
const SIDE: usize = 1024;
const LAYERS: usize = 12;
const PARAMETERS: usize = LAYERS * SIDE * SIDE;

/// Elements that a thread takes at a time.
const TASK: usize = 1 << 14;

/// Measures both.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| {
        let config = Moments8Config::adamw;
        let configs = [
            ("AdamW with moments in FP8", config()),
            ("the same, rounded at random", config().with_seed(Some(1))),
        ];
        let rows = configs.into_iter().flat_map(|(name, config)| {
            let (ours, burns) =
                (Training::new(config.init()), Training::new(AdamWConfig::new().init()));
            let row = (GROUP, threads, None);
            let beside_burns = {
                let (mut of_ours, mut of_burns) = (|| ours.draw(), || burns.draw());
                let (mut our_step, mut burns_step) = (|| ours.step(), || burns.step());
                let subject = Side::new(name, &mut our_step).prepared(&mut of_ours);
                let reference = Side::new("Burn's AdamW", &mut burns_step).prepared(&mut of_burns);
                options.compare(row, subject, reference)
            };
            let (mut before, mut step, mut once) = (|| ours.draw(), || ours.step(), bytes_once());
            let subject = Side::new(name, &mut step).prepared(&mut before);
            let reference = Side::new("reading and writing its bytes once", &mut once);
            [beside_burns, options.compare(row, subject, reference)]
        });
        rows.collect()
    })
}

/// Steps of an optimizer alone: as in a training, nothing but the step holds gradients and parameters.
struct Training<O> {
    optimizer: RefCell<O>,
    model: RefCell<Option<Model>>,
    gradients: RefCell<Option<GradientsParams>>,
}

impl<O: Optimizer<Model, B>> Training<O> {
    fn new(optimizer: O) -> Self {
        let device = Default::default();
        let layer = |_| LinearConfig::new(SIDE, SIDE).with_bias(false).init(&device);
        let model = (0..LAYERS).map(layer).collect();
        Self {
            optimizer: RefCell::new(optimizer),
            model: RefCell::new(Some(model)),
            gradients: RefCell::default(),
        }
    }

    /// New gradients.
    fn draw(&self) {
        let mut all = GradientsParams::new();
        for layer in self.model.borrow().as_ref().expect("it comes back") {
            let normal = Distribution::Normal(0.0, 1e-2);
            let gradient = Tensor::<Flex, 2>::random([SIDE, SIDE], normal, &Default::default());
            all.register(layer.weight.id, gradient);
        }
        self.gradients.replace(Some(all));
    }

    fn step(&self) {
        let model = self.model.take().expect("it comes back");
        let gradients = self.gradients.take().expect("drawn before");
        self.model.replace(Some(self.optimizer.borrow_mut().step(1e-5, model, gradients)));
    }
}

/// What a step has to read and write of each parameter, 16 bytes: the parameter, its gradient, two codes; with next to no arithmetic.
fn bytes_once() -> impl FnMut() {
    let (mut parameters, gradients) = (vec![0.1f32; PARAMETERS], vec![0.1f32; PARAMETERS]);
    let mut codes = vec![1u16; PARAMETERS];
    move || {
        let tasks = parameters.par_chunks_mut(TASK).zip(gradients.par_chunks(TASK));
        tasks.zip(codes.par_chunks_mut(TASK)).for_each(|((parameters, gradients), codes)| {
            for ((x, g), code) in parameters.iter_mut().zip(gradients).zip(codes) {
                *x += g;
                *code ^= 1;
            }
        });
        black_box((&parameters, &codes));
    }
}
