//! Trains a perceptron among peers: `mpirun -n 2 peers` with the built program, or the program alone. Rank 0 prints what a step took.
//!
//! `peers [STEPS] [f32|bf16|fp8]`: 20 steps and f32 without arguments. The batch of 256 is divided among the peers.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Recipe};
use burn_fp8_train::peers::{self, PeerError, SharedPeers};
use burn_fp8_train::{PeersOptimizer, Wire, share_weights};

type B = Fp8Backend<Autodiff<Flex>>;

const BATCH: usize = 256;
const WIDTH: usize = 1024;
/// How long a peer waits for the others.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Module, Debug)]
struct Perceptron<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
}

impl<B: AutodiffBackend> Perceptron<B> {
    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let y = self.down.forward(relu(self.up.forward(x.clone())));
        (y - x).powi_scalar(2).mean()
    }
}

/// The rows of a step's batch that a peer has.
fn rows(step: usize, rank: usize, size: usize) -> Tensor<B, 2> {
    let number = |row: usize, column: usize| {
        let hash = ((step * BATCH + row) * WIDTH + column).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (hash >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let rows = rank * BATCH / size..(rank + 1) * BATCH / size;
    let count = rows.len();
    let numbers = rows.flat_map(|row| (0..WIDTH).map(move |column| number(row, column)));
    Tensor::from_data(TensorData::new(numbers.collect(), [count, WIDTH]), &Default::default())
}

fn train(peers: SharedPeers, steps: usize, wire: Wire) -> Result<(), PeerError> {
    let (rank, size, device) = (peers.rank(), peers.size(), Default::default());
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
    let model: Perceptron<B> =
        Perceptron { up: layer(WIDTH, 4 * WIDTH), down: layer(4 * WIDTH, WIDTH) };
    let mut model = share_weights(model, &peers)?;
    let optimizer = AdamWConfig::new().init::<B, Perceptron<B>>();
    let mut optimizer = PeersOptimizer::new(optimizer, peers.clone()).with_wire(wire);
    let state = DelayedState::new();
    state.share(peers.clone());
    let (mut times, before) = (vec![], peers.traffic());
    for step in 0..steps {
        let x = rows(step, rank, size);
        optimizer.set_samples(x.dims()[0]);
        let start = Instant::now();
        let (grads, loss) = state.scope(|| {
            let loss = model.loss(x);
            (GradientsParams::from_grads(loss.backward(), &model), loss)
        });
        let grads = optimizer.reduce::<B, _>(&model, grads)?;
        model = optimizer.inner_mut().step(1e-3, model, grads);
        times.push(start.elapsed().as_secs_f64());
        if rank == 0 && (step + 1).is_power_of_two() {
            println!("step {}, loss on rank 0 {:.4}", step + 1, loss.into_scalar());
        }
    }
    times.sort_by(f64::total_cmp);
    if rank == 0 {
        let (median, sent) = (times[steps / 2], peers.traffic().since(before));
        println!(
            "{size} peers, {wire:?} on the wire: {:.1} ms a step in the median; each sends {:.1} MB in {} messages a step",
            1e3 * median,
            sent.bytes as f64 / 1e6 / steps as f64,
            sent.messages / steps
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let steps =
        arguments.next().map_or(Some(20), |steps| steps.parse().ok()).filter(|steps| *steps > 0);
    let wire = arguments.next().map_or(Some(Wire::F32), |wire| wire.parse().ok());
    let (Some(steps), Some(wire)) = (steps, wire) else {
        eprintln!("peers [STEPS] [f32|bf16|fp8], with at least one step");
        return ExitCode::from(2);
    };
    let config = Fp8Config::default().with_recipe(Recipe::delayed());
    let result = peers::join(TIMEOUT).and_then(|peers| config.scope(|| train(peers, steps, wire)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
