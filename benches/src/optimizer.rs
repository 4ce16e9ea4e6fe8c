//! A step of an optimizer with moments in FP8: beside Burn's AdamW, and beside reading and writing its bytes once.

use std::hint::black_box;

use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::optim::Moments8Config;
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
            let mut ours = steps(config.init());
            let mut burns = steps(AdamWConfig::new().init());
            let mut once = bytes_once();
            let references: [(&str, &mut dyn FnMut()); 2] =
                [("Burn's AdamW", &mut burns), ("reading and writing its bytes once", &mut once)];
            references.map(|(reference, run)| {
                let reference = Side::new(reference, run);
                options.compare((GROUP, threads, None), Side::new(name, &mut ours), reference)
            })
        });
        rows.collect()
    })
}

/// Steps alone: the gradients are there.
fn steps(mut optimizer: impl Optimizer<Model, B> + 'static) -> impl FnMut() {
    let device = Default::default();
    let layer = || LinearConfig::new(SIDE, SIDE).with_bias(false).init::<B>(&device);
    let model: Model = (0..LAYERS).map(|_| layer()).collect();
    let grads: Vec<_> = model
        .iter()
        .map(|layer| {
            let normal = Distribution::Normal(0.0, 1e-2);
            (layer.weight.id, Tensor::<Flex, 2>::random([SIDE, SIDE], normal, &device))
        })
        .collect();
    let mut model = Some(model);
    move || {
        let mut all = GradientsParams::new();
        for (id, grad) in &grads {
            all.register(*id, grad.clone());
        }
        let current = model.take().expect("it comes back");
        model = Some(optimizer.step(1e-5, current, all));
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
