//! Peers that train one model: they stay equal bit for bit, and equal to one process; what happens when they do not do the same, or are gone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::ModuleMapper;
use burn::tensor::ElementConversion;
use burn_fp8::report::{Observatory, ObservatoryOptions};
use burn_fp8_train::peers::{PeerError, Peers, SharedPeers, Threads};
use burn_fp8_train::policy::LossScale;
use burn_fp8_train::{LossScaledOptimizer, PeersOptimizer, Wire, share_weights};

use crate::common::models::parameters;
use crate::common::*;

const SOON: Duration = Duration::from_secs(20);

/// Samples of a batch.
const BATCH: usize = 48;

/// Two layers, one of which can be left out.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
    unused: Option<Linear<B>>,
}

impl<B: Backend> Net<B> {
    fn new(seed: u64) -> Self {
        let device = Default::default();
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        let net = Self { first: layer(32, 64), second: layer(64, 16), unused: None };
        net.map(&mut Randomize(Random(seed)))
    }

    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let rows = x.dims()[0];
        let y = self.second.forward(burn::tensor::activation::tanh(self.first.forward(x.clone())));
        // Something to learn.
        (y - x.narrow(1, 0, 16).reshape([rows, 16])).powi_scalar(2).mean()
    }
}

struct Randomize(Random);

impl<B: Backend> ModuleMapper<B> for Randomize {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|old| {
            let new = tensor::<B, D>(&self.0.units(old.shape().num_elements()), old.dims()) * 0.2;
            new.detach().set_require_grad(old.is_require_grad())
        })
    }
}

/// The samples of a step that a peer of so many has: all, without overlap, fewer on the last ones.
fn shard<B: Backend>(step: usize, rank: usize, size: usize) -> Tensor<B, 2> {
    let all = tensor(&Random(1000 + step as u64).units(BATCH * 32), [BATCH, 32]);
    let (start, end) = (rank * BATCH / size, (rank + 1) * BATCH / size);
    all.narrow(0, start, end - start)
}

fn weights<B: Backend>(net: &Net<B>) -> Vec<f32> {
    let parameters = parameters(net).into_iter().flat_map(|(_, bits)| bits);
    parameters.map(f32::from_bits).collect()
}

/// What a peer has after some steps.
#[derive(Clone, Debug, PartialEq)]
struct End {
    weights: Vec<f32>,
    losses: Vec<f32>,
    /// Bytes that were sent in the last step.
    sent: usize,
    sites: burn_fp8::DelayedRecord,
}

fn train<B: AutodiffBackend>(peers: &SharedPeers, steps: usize, wire: Wire) -> End {
    let (rank, size) = (peers.rank(), peers.size());
    let mut net = share_weights(Net::<B>::new(100 + rank as u64), peers).unwrap();
    let inner = Fp8Optimizer::new(AdamWConfig::new().init::<B, Net<B>>());
    let mut optimizer = PeersOptimizer::new(inner, peers.clone()).with_wire(wire);
    let state = DelayedState::new();
    state.share(peers.clone());
    let (mut losses, mut before) = (vec![], peers.traffic());
    for step in 0..steps {
        before = peers.traffic();
        let x = shard::<B>(step, rank, size);
        optimizer.set_samples(x.dims()[0]);
        let loss = state.scope(|| {
            let loss = net.loss(x);
            let grads = GradientsParams::from_grads(loss.backward(), &net);
            net = optimizer.step(1e-2, net.clone(), grads);
            loss.into_scalar().elem::<f32>()
        });
        losses.push(loss);
    }
    let sent = peers.traffic().since(before).bytes;
    End { weights: weights(&net), losses, sent, sites: state.export() }
}

/// Runs a peer on each of so many threads.
fn on_threads<R: Send>(size: usize, run: impl Fn(SharedPeers) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let peers = Threads::new(size, SOON).into_iter();
        let threads: Vec<_> = peers.map(|peer| scope.spawn(|| run(Arc::new(peer)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no peer panics")).collect()
    })
}

#[test]
fn peers_are_equal_and_as_one_process() {
    let alone = on_threads(1, |peers| train::<Autodiff<Flex>>(&peers, 20, Wire::F32)).remove(0);
    assert!(alone.losses[19] < 0.7 * alone.losses[0], "{:?}", alone.losses);
    for size in 2..=4 {
        let ends = on_threads(size, |peers| train::<Autodiff<Flex>>(&peers, 20, Wire::F32));
        for end in &ends {
            assert_eq!(end.weights, ends[0].weights);
            // AdamW divides by roots: what differs by rounding in a small gradient is a part of a whole step.
            assert_close(&end.weights, &alone.weights, 1e-4, "of all peers");
        }
        // The first step's gradients: one rounding of a sum.
        let first = on_threads(size, |peers| gradients(&peers, Wire::F32)).remove(0);
        let expected = on_threads(1, |peers| gradients(&peers, Wire::F32)).remove(0);
        assert_close(&first, &expected, 1e-6, "of all peers");
    }
}

/// The gradients of a step, of all peers.
fn gradients(peers: &SharedPeers, wire: Wire) -> Vec<f32> {
    type B = Autodiff<Flex>;
    let net = Net::<B>::new(5);
    let x = shard(0, peers.rank(), peers.size());
    let mut optimizer = PeersOptimizer::new((), peers.clone()).with_wire(wire);
    optimizer.set_samples(x.dims()[0]);
    let grads = GradientsParams::from_grads(net.loss(x).backward(), &net);
    let grads = optimizer.reduce::<B, _>(&net, grads).unwrap();
    let of = |layer: &Linear<B>| {
        let weight = grads.get::<Flex, 2>(layer.weight.id).unwrap();
        let bias = grads.get::<Flex, 1>(layer.bias.as_ref().unwrap().id).unwrap();
        [weight.into_data().to_vec::<f32>().unwrap(), bias.into_data().to_vec().unwrap()].concat()
    };
    [of(&net.first), of(&net.second)].concat()
}

#[test]
fn scales_of_delayed_scaling_are_those_of_all_peers() {
    let after = |steps, size| {
        on_threads(size, |peers| {
            let config = Fp8Config::default().with_recipe(Recipe::delayed());
            config.scope(|| train::<Outer<Flex>>(&peers, steps, Wire::F32))
        })
    };
    let run = |size| after(12, size);
    let alone = run(1).remove(0);
    assert!(alone.sites.sites.len() == 2);
    for size in 2..=3 {
        let ends = run(size);
        for end in &ends {
            assert_eq!((&end.weights, &end.sites), (&ends[0].weights, &ends[0].sites));
        }
        // The first step's amaxes of samples are those of the whole batch.
        let of_samples = |end: &End| {
            let site = end.sites.sites.iter().find(|site| site.k == 32).expect("the first layer");
            site.input.entries().to_vec()
        };
        let [first, whole] = [size, 1].map(|size| of_samples(&after(1, size)[0]));
        assert!(first == whole && whole.iter().any(|x| *x > 0.0), "{first:?} {whole:?}");
        let amaxes = |end: &End| {
            let of = |site: &burn_fp8::delayed::SiteRecord| site.weight.entries().to_vec();
            end.sites.sites.iter().flat_map(of).collect::<Vec<f32>>()
        };
        assert_close(&amaxes(&ends[0]), &amaxes(&alone), 0.05, "of all peers");
        let last = |end: &End| end.losses[11];
        let mean = ends.iter().map(last).sum::<f32>() / size as f32;
        assert!((mean / last(&alone) - 1.0).abs() < 0.1, "{mean} {}", last(&alone));
    }
}

#[test]
fn other_types_on_the_wire_send_less() {
    let expected = on_threads(3, |peers| gradients(&peers, Wire::F32)).remove(0);
    let elements = expected.len();
    for (wire, bytes, part) in [
        (Wire::F32, 4 * elements, 1e-6),
        (Wire::Bf16, 2 * elements, 0.004),
        (Wire::Fp8, elements + elements / 32, 0.04),
    ] {
        let all = on_threads(3, |peers| gradients(&peers, wire));
        assert!(all.iter().all(|found| *found == all[0]));
        assert_close(&all[0], &expected, part, "of all peers");
        let ends = on_threads(3, |peers| train::<Autodiff<Flex>>(&peers, 20, wire));
        let sent = ends[0].sent;
        // And what the peers say of themselves.
        assert!(
            (bytes..bytes + 200).contains(&sent),
            "{wire:?}: {sent} bytes of {elements} gradients"
        );
        assert!(ends[0].losses[19] < 0.7 * ends[0].losses[0], "{wire:?} {:?}", ends[0].losses);
    }
}

/// Gradients that FP8 cannot hold: their mean over many steps is right, because what is lost is sent later.
#[test]
fn nothing_is_lost_on_the_wire_in_the_end() {
    type B = Autodiff<Flex>;
    let sums = on_threads(2, |peers| {
        let net = Net::<B>::new(5);
        let mut optimizer = PeersOptimizer::new((), peers.clone()).with_wire(Wire::Fp8);
        let mut sum = vec![0f64; 64];
        for _ in 0..200 {
            let mut grads = GradientsParams::new();
            let numbers: Vec<f32> = (0..64).map(|i| 1.0 + (i * i) as f32 / 3000.0).collect();
            grads.register::<Flex, 1>(
                net.first.bias.as_ref().unwrap().id,
                Tensor::from_floats(numbers.as_slice(), &Default::default()),
            );
            let grads = optimizer.reduce::<B, _>(&net, grads).unwrap();
            let mean = grads.get::<Flex, 1>(net.first.bias.as_ref().unwrap().id).unwrap();
            for (sum, x) in sum.iter_mut().zip(mean.into_data().to_vec::<f32>().unwrap()) {
                *sum += f64::from(x);
            }
            // A step of another parameter alone, whose gradients lose nothing.
            let (mut grads, id) = (GradientsParams::new(), net.second.bias.as_ref().unwrap().id);
            grads.register::<Flex, 1>(id, Tensor::ones([16], &Default::default()));
            let grads = optimizer.reduce::<B, _>(&net, grads).unwrap();
            let ones = grads.get::<Flex, 1>(id).unwrap().into_data().to_vec::<f32>().unwrap();
            assert_eq!(ones, [1.0; 16]);
        }
        sum
    });
    for (i, sum) in sums[0].iter().enumerate() {
        let exact = 1.0 + (i * i) as f64 / 3000.0;
        // Rounded each time by itself it would be up to 1 / 16 away.
        assert!((sum / 200.0 - exact).abs() < 1e-3 * exact, "{i}: {sum}");
    }
}

/// Steps after a whole round of feedback are those of an optimizer that begins there, and no others are; so are those after an overflow, and of a record that is loaded.
#[test]
fn feedback_begins_anew_where_it_should() {
    type B = Autodiff<Flex>;
    let sums = on_threads(2, |peers| {
        let net = Net::<B>::new(7);
        let id = net.first.bias.as_ref().unwrap().id;
        let new = || {
            let inner = SgdConfig::new().init::<B, Net<B>>();
            PeersOptimizer::new(inner, peers.clone()).with_wire(Wire::Fp8)
        };
        let step = |optimizer: &mut PeersOptimizer<_>, factor: f32| {
            let mut grads = GradientsParams::new();
            let number = |i| factor * (1.0 + (i * i) as f32 / 3000.0);
            let numbers: Vec<f32> = (0..64).map(number).collect();
            let numbers = Tensor::<Flex, 1>::from_floats(numbers.as_slice(), &Default::default());
            grads.register(id, numbers);
            let grads = optimizer.reduce::<B, _>(&net, grads).unwrap();
            grads.get::<Flex, 1>(id).unwrap().into_data().to_vec::<f32>().unwrap()
        };
        let steps = |optimizer: &mut PeersOptimizer<_>, count: usize| {
            (0..count).map(|_| step(optimizer, 1.0)).collect::<Vec<_>>()
        };
        let [mut restarted, mut plain] = [new().with_feedback_over(3), new()];
        let [restarted, plain] = [&mut restarted, &mut plain].map(|x| steps(x, 6));
        assert_eq!(restarted[..3], plain[..3]);
        assert_eq!(restarted[3..], restarted[..3]);
        assert_ne!(plain[3..], plain[..3]);
        let mut overflowed = new();
        steps(&mut overflowed, 1);
        let factor = if peers.rank() == 0 { f32::INFINITY } else { 1.0 };
        assert!(step(&mut overflowed, factor).iter().all(|x| !x.is_finite()));
        assert_eq!(steps(&mut overflowed, 3), plain[..3]);
        let mut loaded = new().with_feedback_over(3);
        steps(&mut loaded, 2);
        let record = loaded.to_record();
        assert_eq!(steps(&mut loaded.load_record(record), 3), plain[..3]);
        restarted
    });
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn an_overflow_of_one_peer_skips_the_step_of_all() {
    type B = Autodiff<Flex>;
    let skipped = |wire| {
        on_threads(3, |peers| {
            let net = Net::<B>::new(7);
            let scale = LossScale::dynamic();
            let inner =
                LossScaledOptimizer::new(SgdConfig::new().init::<B, Net<B>>(), scale.clone());
            let mut optimizer = PeersOptimizer::new(inner, peers.clone()).with_wire(wire);
            let before = scale.loss_scale();
            let factor = if peers.rank() == 1 { f32::INFINITY } else { 1.0 };
            let loss = scale.scale(net.loss(shard(0, peers.rank(), 3)) * factor);
            let grads = GradientsParams::from_grads(loss.backward(), &net);
            let stepped = optimizer.step(0.1, net.clone(), grads);
            (weights(&stepped) == weights(&net), scale.loss_scale() < before)
        })
    };
    for wire in [Wire::F32, Wire::Bf16, Wire::Fp8] {
        assert_eq!(skipped(wire), [(true, true); 3], "{wire:?}");
    }
}

#[test]
fn state_of_fp8_layers_is_the_largest_of_all_peers() {
    type B = Autodiff<Flex>;
    let histories = on_threads(2, |peers| {
        let layer: Fp8Linear<B> = Fp8LinearConfig::new(2, 2).init(&Default::default());
        let layer = share_weights(layer, &peers).unwrap();
        let sgd = Fp8Optimizer::new(SgdConfig::new().init::<B, Fp8Linear<B>>());
        let mut optimizer = PeersOptimizer::new(sgd, peers.clone());
        let amax = if peers.rank() == 0 { 2.0 } else { 5.0 };
        let x = Tensor::from_floats([[amax, 0.5]], &Default::default());
        let grads = GradientsParams::from_grads(layer.forward::<2>(x).sum().backward(), &layer);
        values(optimizer.step(0.1, layer, grads).dot.input.amax_history.val())
    });
    assert_eq!(histories[0], histories[1]);
    assert!(histories[0].contains(&5.0) && !histories[0].contains(&2.0), "{histories:?}");
}

#[test]
fn a_gradient_that_some_peers_lack_counts_as_zero() {
    type B = Autodiff<Flex>;
    let biases = on_threads(2, |peers| {
        let net = Net::<B>::new(5);
        let mut grads = GradientsParams::new();
        let id = net.first.bias.as_ref().unwrap().id;
        if peers.rank() == 1 {
            grads.register::<Flex, 1>(id, Tensor::full([64], 3.0, &Default::default()));
        }
        let grads = PeersOptimizer::new((), peers.clone()).reduce::<B, _>(&net, grads).unwrap();
        assert!(grads.get::<Flex, 2>(net.first.weight.id).is_none(), "no peer has it");
        grads.get::<Flex, 1>(id).unwrap().into_data().to_vec::<f32>().unwrap()
    });
    assert_eq!(biases, [vec![1.5; 64], vec![1.5; 64]]);
}

#[test]
fn a_peer_without_samples_counts_for_nothing() {
    type B = Autodiff<Flex>;
    let biases = on_threads(3, |peers| {
        let net = Net::<B>::new(5);
        let (mut grads, id) = (GradientsParams::new(), net.first.bias.as_ref().unwrap().id);
        let mean = [2.0, f32::NAN, 5.0][peers.rank()];
        grads.register::<Flex, 1>(id, Tensor::full([64], mean, &Default::default()));
        let mut optimizer = PeersOptimizer::new((), peers.clone());
        optimizer.set_samples([1, 0, 2][peers.rank()]);
        let grads = optimizer.reduce::<B, _>(&net, grads).unwrap();
        grads.get::<Flex, 1>(id).unwrap().into_data().to_vec::<f32>().unwrap()
    });
    biases.iter().for_each(|found| assert_close(found, &[4.0; 64], 1e-6, "a bias"));
    let errors = on_threads(2, |peers| {
        let mut optimizer = PeersOptimizer::new((), peers.clone());
        optimizer.set_samples(0);
        let reduced = optimizer.reduce::<B, _>(&Net::<B>::new(5), GradientsParams::new());
        reduced.map(|_| ()).unwrap_err()
    });
    let reason = "no peer has samples in this step: set_samples says how many each has";
    assert_eq!(errors, [(); 2].map(|()| PeerError::Setup(reason.into())));
}

#[test]
fn other_modules_are_an_error_that_names_the_parameter() {
    type B = Autodiff<Flex>;
    let errors = on_threads(3, |peers| {
        let mut net = Net::<B>::new(5);
        if peers.rank() == 2 {
            net.second = LinearConfig::new(64, 12).init(&Default::default());
        }
        let shared = share_weights::<B, _>(net.clone(), &peers).map(|_| ()).unwrap_err();
        let reduced =
            PeersOptimizer::new((), peers.clone()).reduce::<B, _>(&net, GradientsParams::new());
        [shared, reduced.map(|_| ()).unwrap_err()]
    });
    for error in errors.iter().flatten() {
        says(error, ["second.weight [64, 16]", "second.weight [64, 12]"]);
    }
}

#[test]
fn other_products_under_delayed_scaling_are_an_error_that_names_them() {
    let messages = on_threads(2, |peers| {
        let inputs = if peers.rank() == 0 { 32 } else { 48 };
        let run = || {
            let config = Fp8Config::default().with_recipe(Recipe::delayed());
            let state = DelayedState::new();
            state.share(peers.clone());
            config.scope(|| {
                state.scope(|| {
                    let device = Default::default();
                    let layer = LinearConfig::new(inputs, 16).init::<Outer<Flex>>(&device);
                    layer.forward(Tensor::<_, 2>::ones([16, inputs], &device)).sum().backward();
                })
            });
        };
        panic_of(run)
    });
    for message in messages {
        says(message, ["K 32, N 16", "K 48, N 16"]);
    }
}

#[test]
fn a_peer_that_takes_no_step_under_delayed_scaling_is_an_error_that_says_so() {
    let messages = on_threads(2, |peers| {
        let net = Net::<Outer<Flex>>::new(5);
        let run = || {
            let state = DelayedState::new();
            state.share(peers.clone());
            let mut optimizer = PeersOptimizer::new((), peers.clone());
            let grads = match peers.rank() {
                0 => state.scope(|| {
                    let loss = net.loss(shard(0, 0, 2));
                    GradientsParams::from_grads(loss.backward(), &net)
                }),
                _ => GradientsParams::new(),
            };
            let _ = optimizer.reduce::<Outer<Flex>, _>(&net, grads).unwrap();
        };
        let config = Fp8Config::default().with_recipe(Recipe::delayed());
        panic_of(|| config.scope(run))
    });
    for message in messages {
        says(message, ["product 0 of the step", "gradients in F32"]);
    }
}

#[test]
fn a_peer_that_is_gone_or_late_is_an_error_in_time() {
    let start = Instant::now();
    let results = on_threads(3, |peers| (peers.rank() != 1).then(|| peers.meet()));
    assert!(start.elapsed() < SOON / 2);
    for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let gone = PeerError::Gone { rank, reason: "rank 1 has ended".into() };
        assert_eq!(result, &Some(Err(gone)));
    }

    let timeout = Duration::from_millis(200);
    let mut peers = Threads::new(2, timeout);
    let late = peers.pop().unwrap();
    let error = peers[0].sum(vec![1.0]).unwrap_err();
    assert_eq!(error, PeerError::TimedOut { rank: 0, size: 2, waited: timeout });
    drop(late);
}

#[test]
fn peers_that_do_different_things_are_told() {
    let errors = on_threads(2, |peers| {
        let first = peers.sum(vec![1.0; 1 + peers.rank()]);
        // Nor do they meet again, for what another had brought before.
        [first, peers.sum(vec![1.0; 2])]
    });
    for error in errors.into_iter().flatten() {
        refused(error, ["sum of 1 numbers", "sum of 2 numbers"]);
    }
    let errors = on_threads(2, |peers| peers.maximum("x", &vec![1.0; 1 + peers.rank()]));
    for error in errors {
        refused(error, ["1 numbers", "2 numbers"]);
    }
}

#[test]
fn maxima_keep_what_is_not_a_number() {
    let all = on_threads(3, |peers| {
        let rank = peers.rank() as f32;
        let x = [rank, -rank, if rank == 1.0 { f32::NAN } else { 9.0 }, f32::NEG_INFINITY];
        peers.maximum("x", &x).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|found| *found == all[0]));
    let found: Vec<_> = all[0].iter().map(|bits| f32::from_bits(*bits)).collect();
    assert_eq!(found[..2], [2.0, 0.0]);
    assert!(found[2].is_nan() && found[3] == f32::NEG_INFINITY);
}

/// What they see together is what one sees of the whole batch.
#[test]
fn observatories_of_peers_see_the_whole_batch() {
    let observe = |peers: SharedPeers| {
        let (rank, size) = (peers.rank(), peers.size());
        let net = share_weights(Net::<Outer<Flex>>::new(100 + rank as u64), &peers).unwrap();
        let options = ObservatoryOptions::default().with_every(2).with_max_elements(1 << 20);
        let observatory = Observatory::new(options).unwrap();
        observatory.share(peers);
        for step in 0..3 {
            observatory.step(|| drop(net.loss(shard(step, rank, size)).backward()));
        }
        assert_eq!(observatory.failure(), None);
        observatory.report()
    };
    let alone = on_threads(1, observe).remove(0);
    let peers = on_threads(3, observe);
    assert_eq!((alone.sites.len(), alone.steps), (2, 2));
    for report in &peers {
        assert_eq!(report, &peers[0]);
        for (found, expected) in report.sites.iter().zip(&alone.sites) {
            let (found, expected) = (&found.last, &expected.last);
            assert_eq!((found.gemm, found.step), (expected.gemm, expected.step));
            assert_eq!(found.operands.weight, expected.operands.weight);
            let both = [&found.operands.output_grad, &expected.operands.output_grad];
            let [found, expected] = both.map(|stats| stats.as_ref().unwrap());
            assert_eq!((found.sampled, found.elements), (expected.sampled, expected.elements));
        }
        let [found, expected] = [report, &alone].map(|report| {
            let input = report.sites[0].last.operands.input.as_ref().unwrap();
            (input.amax, input.zeros, input.histogram.clone())
        });
        assert_eq!(found, expected);
    }
}

/// The same with processes, which `mpirun` starts: this program again, for this test alone.
#[cfg(feature = "mpi")]
mod processes {
    use std::process::{Command, Output};

    use burn_fp8_train::peers::Mpi;

    use super::*;

    const RESULTS: &str = "BURN_FP8_TEST_RESULTS";

    /// Starts so many processes that run this test.
    fn mpirun(test: &str, size: usize, folder: &std::path::Path) -> Output {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]);
        command.arg(size.to_string()).arg(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("peers::processes::{test}"), "--nocapture"]);
        command
            .env(RESULTS, folder)
            .env("RAYON_NUM_THREADS", "1")
            .env("OMPI_MCA_mpi_yield_when_idle", "1");
        command.output().expect("OpenMPI is installed: Debian's openmpi-bin and libopenmpi-dev")
    }

    fn result(folder: &std::path::Path, rank: usize) -> Option<Vec<u8>> {
        std::fs::read(folder.join(rank.to_string())).ok()
    }

    #[test]
    fn processes_are_as_threads() {
        if let Ok(folder) = std::env::var(RESULTS) {
            let peers: SharedPeers = Arc::new(Mpi::new(SOON).unwrap());
            let config = Fp8Config::default().with_recipe(Recipe::delayed());
            let end = config.scope(|| train::<Outer<Flex>>(&peers, 8, Wire::Fp8));
            let [bits, plain] = [true, false].map(|fp8| {
                let end = if fp8 {
                    end.weights.clone()
                } else {
                    train::<Autodiff<Flex>>(&peers, 8, Wire::F32).weights
                };
                end.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
            });
            let none = peers.maximum("nothing", &[]).unwrap();
            assert!(none.is_empty());
            std::fs::write(format!("{folder}/{}", peers.rank()), [bits, plain].concat()).unwrap();
            return;
        }
        for size in [1, 2, 3, 4] {
            let folder = tempfile::tempdir().unwrap();
            let output = mpirun("processes_are_as_threads", size, folder.path());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let results: Vec<_> =
                (0..size).map(|rank| result(folder.path(), rank).expect("each wrote")).collect();
            assert!(results.iter().all(|bits| *bits == results[0]), "{size} processes differ");
            let expected = on_threads(size, |peers| {
                let config = Fp8Config::default().with_recipe(Recipe::delayed());
                let fp8 = config.scope(|| train::<Outer<Flex>>(&peers, 8, Wire::Fp8)).weights;
                [fp8, train::<Autodiff<Flex>>(&peers, 8, Wire::F32).weights].concat()
            });
            let found: Vec<f32> =
                results[0].as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            assert_close(&found, &expected[0], 1e-3, "of all peers");
        }
    }

    /// A process that is killed at any moment ends the others, with an error, in time.
    #[test]
    fn a_process_that_is_killed_ends_all() {
        if let Ok(folder) = std::env::var(RESULTS) {
            let peers: SharedPeers = Arc::new(Mpi::new(SOON).unwrap());
            std::fs::write(format!("{folder}/{}", peers.rank()), std::process::id().to_string())
                .unwrap();
            let end = train::<Autodiff<Flex>>(&peers, 1_000_000, Wire::F32);
            panic!("a million steps were taken: {:?}", end.losses.last());
        }
        let mut random = Random(50);
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let start = Instant::now();
            let killed = random.bits() as usize % 2;
            let wait = Duration::from_millis(random.bits() % 150);
            let path = folder.path().to_owned();
            let killer = std::thread::spawn(move || {
                let pid = loop {
                    if let Some(pid) = result(&path, killed).filter(|pid| !pid.is_empty()) {
                        break String::from_utf8(pid).unwrap();
                    }
                    assert!(start.elapsed() < SOON, "the processes did not start");
                    std::thread::sleep(Duration::from_millis(5));
                };
                std::thread::sleep(wait);
                Command::new("kill").args(["-9", &pid]).status().unwrap()
            });
            let output = mpirun("a_process_that_is_killed_ends_all", 2, folder.path());
            assert!(killer.join().unwrap().success());
            assert!(!output.status.success() && start.elapsed() < SOON);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("Killed") || said.contains("signal 9"), "{said}");
        }
    }

    /// A process that hangs, or has ended well before the others, is an error on the others within the limit.
    #[test]
    fn a_process_that_does_not_come_is_an_error_in_time() {
        if let Ok(folder) = std::env::var(RESULTS) {
            let timeout = Duration::from_millis(700);
            let peers = Mpi::new(timeout).unwrap();
            peers.meet().unwrap();
            if peers.rank() == 0 {
                let expected = PeerError::TimedOut { rank: 0, size: 2, waited: timeout };
                assert_eq!(peers.meet(), Err(expected));
                assert!(matches!(peers.meet(), Err(PeerError::Gone { .. })));
                std::fs::write(format!("{folder}/0"), "told").unwrap();
                // As a program does whose training has failed.
                std::process::exit(1);
            }
            std::thread::sleep(SOON * 2);
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let output = mpirun("a_process_that_does_not_come_is_an_error_in_time", 2, folder.path());
        assert_eq!(
            result(folder.path(), 0).as_deref(),
            Some(&b"told"[..]),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!output.status.success() && start.elapsed() < SOON);
    }
}
