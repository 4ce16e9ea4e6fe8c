//! One model trained by two threads, each with half of the batch; with the feature `mpi`, by the processes that `mpirun` starts.

use std::thread;
use std::time::Duration;

use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::{Tensor, TensorData};
use burn_fp8::{DelayedState, Fp8Backend, Fp8Config, Recipe};
use burn_fp8_train::peers::{self, PeerError, SharedPeers, Threads};
use burn_fp8_train::{PeersOptimizer, Wire, share_weights};

type B = Fp8Backend<Autodiff<Flex>>;

const BATCH: usize = 64;
const WIDTH: usize = 64;
const STEPS: usize = 20;
/// How long a peer waits for the others.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The rows of a step's batch that a peer has.
fn rows(step: usize, rank: usize, size: usize) -> Tensor<B, 2> {
    let rows = rank * BATCH / size..(rank + 1) * BATCH / size;
    let count = rows.len();
    let wave =
        |row: usize, column: usize| ((step * BATCH + row) as f32 * 0.3 + column as f32).sin();
    let numbers = rows.flat_map(|row| (0..WIDTH).map(move |column| wave(row, column)));
    Tensor::from_data(TensorData::new(numbers.collect(), [count, WIDTH]), &Default::default())
}

/// Trains as one of these; the sum of all weights, which is the same on every peer.
fn train(peers: &SharedPeers) -> Result<f32, PeerError> {
    let model = LinearConfig::new(WIDTH, WIDTH).init(&Default::default());
    let mut model: Linear<B> = share_weights(model, peers)?;
    let optimizer = AdamConfig::new().init::<B, Linear<B>>();
    // Gradients travel in FP8, a quarter of the bytes.
    let mut optimizer = PeersOptimizer::new(optimizer, peers.clone()).with_wire(Wire::Fp8);
    // The scales of delayed scaling are those of the whole batch.
    let state = DelayedState::new();
    state.share(peers.clone());
    for step in 0..STEPS {
        let x = rows(step, peers.rank(), peers.size());
        optimizer.set_samples(x.dims()[0]);
        let gradients = state.scope(|| {
            let loss = (model.forward(x.clone()) - x).powi_scalar(2).mean();
            GradientsParams::from_grads(loss.backward(), &model)
        });
        let gradients = optimizer.reduce::<B, _>(&model, gradients)?;
        model = optimizer.inner_mut().step(1e-2, model, gradients);
    }
    Ok(model.weight.val().sum().into_scalar())
}

fn main() -> Result<(), PeerError> {
    let config = Fp8Config::default().with_recipe(Recipe::delayed());
    let joined = peers::join(TIMEOUT)?;
    if joined.size() > 1 {
        let sum = config.scope(|| train(&joined))?;
        println!("peer {} of {}: weights sum to {sum}", joined.rank(), joined.size());
        return Ok(());
    }
    thread::scope(|scope| {
        let peers = Threads::new(2, TIMEOUT)
            .into_iter()
            .map(|peer| -> SharedPeers { std::sync::Arc::new(peer) });
        let started: Vec<_> = peers
            .map(|peer| scope.spawn(move || (peer.rank(), config.scope(|| train(&peer)))))
            .collect();
        for peer in started {
            let (rank, sum) = peer.join().expect("it does not panic");
            println!("peer {rank} of 2: weights sum to {}", sum?);
        }
        Ok(())
    })
}
