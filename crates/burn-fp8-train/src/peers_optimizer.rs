//! An optimizer whose peers add up their gradients first.

use std::marker::PhantomData;
use std::mem;
use std::str::FromStr;

use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Tensor, TensorData, bf16};
use burn_fp8::nn::is_fp8_state;
use burn_fp8_core::{Fp8Format, Recipe};
use burn_fp8_cpu::slice::blocks::{self, Blocks};

use crate::peers::{PeerError, SharedPeers, from_bytes, to_bytes};

/// Elements that are summed in one message: 4 MB of f32.
const MESSAGE: usize = 1 << 20;

/// The elements of a block of gradients in FP8.
const BLOCK: usize = 128;

/// What gradients travel as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// f32, summed by the peers' engine.
    #[default]
    F32,
    /// bf16: each peer sends its gradients, rounded, to all others, which sum them in f32.
    Bf16,
    /// E4M3 with a scale for each block of 128, in the same way. What rounding has lost is added to the next step's gradients (error feedback), which takes another f32 for each
    /// element of the model.
    Fp8,
}

impl FromStr for Wire {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "fp8" => Ok(Self::Fp8),
            _ => Err("gradients travel as f32, bf16 or fp8".into()),
        }
    }
}

/// Wraps an optimizer: gradients become their mean over all peers, state of FP8 layers its maximum, and every peer takes the same step.
///
/// It goes outside of all others, `PeersOptimizer::new(LossScaledOptimizer::new(Fp8Optimizer::new(optimizer), scale), peers)`: they see the gradients of all peers, so that one peer's overflow
/// skips the step of each. Its record is that of the wrapped optimizer; one peer writes it, all load it, also where there are more or fewer peers than before.
///
/// Parameters are matched by their order in the module, and compared by name and shape in each step: ids are random, and differ where peers have made their modules separately. [`share_weights`] makes
/// the modules the same. A parameter that has a gradient on some peers alone counts as zero on the others.
///
/// A peer without others steps as the wrapped optimizer alone. Burn 0.21 hands out gradients when the whole backward pass is done, so nothing is sent before.
///
/// # Panics
/// [`step`](Optimizer::step) where the peers have lost each other, or their modules differ: [`reduce`](Self::reduce) has that as an error.
#[derive(Clone, Debug)]
pub struct PeersOptimizer<O> {
    inner: O,
    peers: SharedPeers,
    wire: Wire,
    samples: usize,
    /// What rounding has lost of the gradient of each parameter, in their order; empty of those that have had none.
    lost: Vec<Vec<f32>>,
    /// Steps over which it is carried on, and how many of them are done.
    carried: Option<usize>,
    steps: usize,
}

impl<O> PeersOptimizer<O> {
    /// Wraps an optimizer.
    pub fn new(optimizer: O, peers: SharedPeers) -> Self {
        let (wire, lost) = (Wire::F32, vec![]);
        Self { inner: optimizer, peers, wire, samples: 1, lost, carried: None, steps: 0 }
    }

    /// What gradients travel as.
    pub fn with_wire(self, wire: Wire) -> Self {
        Self { wire, ..self }
    }

    /// Forgets after so many steps what rounding to FP8 has lost. No record has it: with as many steps as there are between two checkpoints, a training that goes on from one of them comes to the same
    /// bits as one that was not stopped.
    ///
    /// # Panics
    /// Where there are none.
    pub fn with_feedback_over(self, steps: usize) -> Self {
        assert!(steps > 0, "error feedback over no steps");
        Self { carried: Some(steps), ..self }
    }

    /// How many samples the loss of the next steps is the mean of, on this peer: gradients are weighted by it, so that peers with fewer count for less, and those with 0 for nothing. All count the same without it.
    pub fn set_samples(&mut self, samples: usize) {
        self.samples = samples;
    }

    /// The wrapped optimizer.
    pub fn inner(&self) -> &O {
        &self.inner
    }

    /// The wrapped optimizer, to be stepped with what [`reduce`](Self::reduce) gives.
    pub fn inner_mut(&mut self) -> &mut O {
        &mut self.inner
    }

    /// The wrapped optimizer.
    pub fn into_inner(self) -> O {
        self.inner
    }

    /// The gradients of all peers in place of those of this one: what [`step`](Optimizer::step) begins with.
    ///
    /// # Errors
    /// [`PeerError`] where the peers have lost each other or have other modules. The wrapped optimizer and the module are as they were.
    pub fn reduce<B, M>(
        &mut self,
        module: &M,
        grads: GradientsParams,
    ) -> Result<GradientsParams, PeerError>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        if self.peers.size() == 1 {
            return Ok(grads);
        }
        let mut taken = Take::<B> { grads, path: vec![], found: vec![], backend: PhantomData };
        module.visit(&mut taken);
        if self.carried.is_some_and(|carried| self.steps.is_multiple_of(carried)) {
            self.lost.clear();
        }
        self.steps += 1;
        let Take { grads, mut found, .. } = taken;
        self.complete(&mut found)?;
        self.sum(&mut found)?;
        self.take_maximum(&mut found)?;
        let mut put = Put::<B> { grads, found: found.into_iter(), backend: PhantomData };
        module.visit(&mut put);
        Ok(put.grads)
    }

    /// Zeros where other peers have a gradient, and this one has none.
    fn complete(&self, found: &mut [Found]) -> Result<(), PeerError> {
        let mut parameters =
            format!("burn-fp8 {}, gradients in {:?}\n", env!("CARGO_PKG_VERSION"), self.wire);
        for Found { name, shape, state, .. } in &*found {
            let what = if *state { "FP8 state" } else { "parameter" };
            parameters += &format!("{what} {name} {shape:?}\n");
        }
        let present: Vec<f32> =
            found.iter().map(|found| f32::from(u8::from(found.numbers.is_some()))).collect();
        let present = self.peers.maximum(&parameters, &present)?;
        for (found, present) in found.iter_mut().zip(present) {
            // State without a new value has the least one that there is, as an amax is not negative.
            if present == 1.0 && found.numbers.is_none() {
                let rows = if found.state { 2 } else { 1 };
                found.numbers = Some(vec![0.0; rows * found.shape.iter().product::<usize>()]);
            }
        }
        Ok(())
    }

    /// Means over all samples.
    fn sum(&mut self, found: &mut [Found]) -> Result<(), PeerError> {
        let weight = self.samples as f32;
        let weights = self.send(to_bytes(&[weight]))?;
        let total: f32 = weights.iter().flat_map(|weight| from_bytes(weight)).sum();
        if total <= 0.0 {
            let reason = "no peer has samples in this step: set_samples says how many each has";
            return Err(PeerError::Setup(reason.into()));
        }
        let share = weight / total;
        let mut lost = mem::take(&mut self.lost);
        lost.resize(found.len(), vec![]);
        let gradients = found.iter_mut().zip(&mut lost).filter(|(found, _)| !found.state);
        let mut gradients: Vec<_> =
            gradients.filter_map(|(found, lost)| Some((found.numbers.as_mut()?, lost))).collect();
        let lengths: Vec<_> = gradients.iter().map(|(numbers, _)| numbers.len()).collect();
        if self.wire == Wire::Fp8 {
            let each = gradients.iter_mut().zip(&lengths);
            each.for_each(|((_, lost), length)| lost.resize(*length, 0.0));
        }
        let mut all: Vec<f32> = Vec::with_capacity(lengths.iter().sum());
        all.extend(gradients.iter_mut().flat_map(|(numbers, _)| mem::take(*numbers)));
        let mut kept: Vec<f32> =
            gradients.iter_mut().flat_map(|(_, lost)| mem::take(*lost)).collect();
        let (mut of_messages, mut is_finite) = (kept.chunks_mut(MESSAGE), true);
        for message in all.chunks_mut(MESSAGE) {
            match share {
                // The mean of no samples is not a number.
                0.0 => message.fill(0.0),
                _ => message.iter_mut().for_each(|x| *x *= share),
            }
            let lost = of_messages.next().unwrap_or_default();
            let summed = self.sum_message(message.to_vec(), lost)?;
            is_finite &= self.wire != Wire::Fp8 || summed.iter().all(|x| x.is_finite());
            message.copy_from_slice(&summed);
        }
        let (mut all, mut kept) = (all.into_iter(), kept.into_iter());
        for ((numbers, lost), length) in gradients.into_iter().zip(lengths) {
            *numbers = all.by_ref().take(length).collect();
            *lost = kept.by_ref().take(length).collect();
        }
        // A step that overflows is one to be skipped, with what it has sent of steps before.
        self.lost = if is_finite { lost } else { vec![] };
        Ok(())
    }

    /// The sum of what the peers have. What rounding to FP8 has lost before is added, and becomes what it loses now.
    fn sum_message(&self, mut x: Vec<f32>, lost: &mut [f32]) -> Result<Vec<f32>, PeerError> {
        match self.wire {
            Wire::F32 => self.peers.sum(x),
            Wire::Bf16 => {
                let bytes = x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
                x.fill(0.0);
                for theirs in self.send(bytes)? {
                    for (sum, bits) in x.iter_mut().zip(theirs.as_chunks().0) {
                        *sum += bf16::from_le_bytes(*bits).to_f32();
                    }
                }
                Ok(x)
            }
            Wire::Fp8 => {
                x.iter_mut().zip(&*lost).for_each(|(x, lost)| *x += *lost);
                let format = Fp8Format::E4M3;
                let of = Blocks { columns: x.len().max(1), block: [1, BLOCK] };
                let scales_of = x.len().div_ceil(BLOCK);
                let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; scales_of]);
                blocks::encode(&x, of, format, Recipe::current(), &mut codes, &mut scales);
                let mut sent = vec![0.0; x.len()];
                blocks::decode(&codes, of, &scales, format, &mut sent);
                for ((lost, x), sent) in lost.iter_mut().zip(&x).zip(&sent) {
                    // An overflow would stay for good.
                    *lost = if x.is_finite() { x - sent } else { 0.0 };
                }
                let mut bytes = codes;
                bytes.extend(to_bytes(&scales));
                x.fill(0.0);
                for theirs in self.send(bytes)? {
                    let (codes, theirs) = theirs.split_at(x.len());
                    let scales: Vec<_> = from_bytes(theirs).collect();
                    blocks::decode(codes, of, &scales, format, &mut sent);
                    x.iter_mut().zip(&sent).for_each(|(x, sent)| *x += sent);
                }
                Ok(x)
            }
        }
    }

    /// New values of FP8 layers, and their check rows.
    fn take_maximum(&self, found: &mut [Found]) -> Result<(), PeerError> {
        let mut states: Vec<_> = found
            .iter_mut()
            .filter(|found| found.state)
            .flat_map(|found| found.numbers.as_mut())
            .collect();
        if states.is_empty() {
            return Ok(());
        }
        let all: Vec<f32> = states.iter().flat_map(|numbers| numbers.iter().copied()).collect();
        let largest = self.peers.maximum("state of FP8 layers", &all)?;
        let mut largest = largest.as_slice();
        for numbers in &mut states {
            let (these, after) = largest.split_at(numbers.len());
            numbers.copy_from_slice(these);
            largest = after;
        }
        Ok(())
    }

    fn send(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, PeerError> {
        let expected = bytes.len();
        let all = self.peers.gather(bytes)?;
        match all.iter().position(|theirs| theirs.len() != expected) {
            None => Ok(all),
            Some(other) => {
                let [mine, theirs] =
                    [expected, all[other].len()].map(|bytes| format!("{bytes} bytes of gradients"));
                Err(PeerError::Differs { rank: self.peers.rank(), mine, other, theirs })
            }
        }
    }
}

impl<O, M, B> Optimizer<M, B> for PeersOptimizer<O>
where
    O: Optimizer<M, B>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = O::Record;

    fn step(&mut self, learning_rate: LearningRate, module: M, grads: GradientsParams) -> M {
        let grads = self.reduce::<B, M>(&module, grads);
        let grads = grads.unwrap_or_else(|error| panic!("gradients of peers: {error}"));
        self.inner.step(learning_rate, module, grads)
    }

    /// # Panics
    /// A peer has one device.
    fn step_multi(&mut self, _: LearningRate, _: M, _: MultiGradientsParams) -> M {
        panic!("a peer has one device: start a process for each device, with `mpirun`");
    }

    fn to_record(&self) -> Self::Record {
        self.inner.to_record()
    }

    fn load_record(self, record: Self::Record) -> Self {
        // What was lost before belongs to steps that are not of the record.
        Self { inner: self.inner.load_record(record), lost: vec![], steps: 0, ..self }
    }
}

/// The module with the floating-point parameters of rank 0, in their own types. All peers call it before they train.
///
/// # Errors
/// [`PeerError`] where the peers have lost each other or have other modules.
pub fn share_weights<B: Backend, M: Module<B>>(
    module: M,
    peers: &SharedPeers,
) -> Result<M, PeerError> {
    if peers.size() == 1 {
        return Ok(module);
    }
    let mut names = Names { path: vec![], parameters: String::new() };
    module.visit(&mut names);
    peers.agree(&names.parameters)?;
    let mut share = Share { peers: peers.clone(), error: None };
    let module = module.map(&mut share);
    share.error.map_or(Ok(module), Err)
}

/// A parameter of the module.
struct Found {
    name: String,
    shape: Vec<usize>,
    /// Whether it is state of an FP8 layer, whose gradient has a check row.
    state: bool,
    dtype: DType,
    numbers: Option<Vec<f32>>,
}

struct Take<B: AutodiffBackend> {
    grads: GradientsParams,
    path: Vec<String>,
    found: Vec<Found>,
    backend: PhantomData<B>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Take<B> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let value = param.val();
        let grad = self.grads.remove::<B::InnerBackend, D>(param.id);
        let dtype = grad.as_ref().map_or(value.dtype(), Tensor::dtype);
        self.found.push(Found {
            name: self.path.join("."),
            shape: value.dims().to_vec(),
            state: is_fp8_state(),
            dtype,
            numbers: grad.map(|grad| {
                let data = grad.cast(FloatDType::F32).into_data();
                data.into_vec().expect("f32 now")
            }),
        });
    }
}

struct Put<B: AutodiffBackend> {
    grads: GradientsParams,
    found: std::vec::IntoIter<Found>,
    backend: PhantomData<B>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Put<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(Found { mut shape, state, dtype, numbers: Some(numbers), .. }) = self.found.next()
        else {
            return;
        };
        if state {
            shape[0] = 2;
        }
        let device = param.val().device();
        let data = TensorData::new(numbers, shape);
        let grad = Tensor::<B::InnerBackend, D>::from_data(data, (&device, DType::F32));
        let grad = if dtype == DType::F32 { grad } else { grad.cast(FloatDType::from(dtype)) };
        self.grads.register::<B::InnerBackend, D>(param.id, grad);
    }
}

/// What the parameters of a module are called, a line each.
struct Names {
    path: Vec<String>,
    parameters: String,
}

impl<B: Backend> ModuleVisitor<B> for Names {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let (name, value) = (self.path.join("."), param.val());
        self.parameters += &format!("parameter {name} {:?} {:?}\n", value.dims(), value.dtype());
    }
}

struct Share {
    peers: SharedPeers,
    error: Option<PeerError>,
}

impl<B: Backend> ModuleMapper<B> for Share {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| {
            if self.error.is_some() {
                return tensor;
            }
            let (shape, dtype, device) = (tensor.dims(), tensor.dtype(), tensor.device());
            let is_tracked = tensor.is_require_grad();
            let mine = tensor.clone().detach().cast(FloatDType::F32).into_data();
            match self.peers.broadcast(mine.into_vec().expect("f32 now")) {
                Ok(numbers) => {
                    let data = TensorData::new(numbers, shape);
                    let shared = Tensor::<B, D>::from_data(data, (&device, DType::F32));
                    let shared = if dtype == DType::F32 {
                        shared
                    } else {
                        shared.cast(FloatDType::from(dtype))
                    };
                    shared.set_require_grad(is_tracked)
                }
                Err(error) => {
                    self.error = Some(error);
                    tensor
                }
            }
        })
    }
}
