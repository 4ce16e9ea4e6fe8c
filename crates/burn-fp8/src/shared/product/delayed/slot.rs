//! The history of one operand: on the host where amaxes are known there, else on the device, without reading it back.

use std::any::Any;

use burn_backend::{Shape, Slice, TensorData, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::{AmaxChoice, AmaxHistory, Delayed};

use crate::engine::tensor::read;
use crate::engine::{Fp8Engine, Scalar, ScalarOf};
use crate::host;

/// The history of an operand, and what steps have observed of it, by their ids.
pub(super) enum Slot {
    Host {
        history: AmaxHistory,
        pending: Vec<(u64, f32)>,
    },
    /// Histories on a device are of the backend's type, which a state does not have as a parameter.
    Device(Box<dyn DeviceSlot>),
}

/// A [`TensorSlot`] of any backend.
pub(super) trait DeviceSlot: Any + Send {
    fn commit(&mut self, step: u64, history_length: usize, anew: bool) -> bool;
    fn discard(&mut self, step: u64);
    fn export(&self) -> AmaxHistory;
    fn pending(&self) -> Vec<(u64, f32)>;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// A history in a tensor, f32, shape `[history length]`, in the order of [`AmaxHistory`].
struct TensorSlot<B: Fp8Engine> {
    history: FloatTensor<B>,
    pending: Vec<(u64, FloatTensor<B>)>,
}

impl Slot {
    pub(super) fn new(history_length: usize) -> Self {
        Self::from_history(AmaxHistory::new(history_length))
    }

    pub(super) fn from_history(history: AmaxHistory) -> Self {
        Self::Host { history, pending: vec![] }
    }

    pub(super) fn export(&self) -> AmaxHistory {
        match self {
            Self::Host { history, .. } => history.clone(),
            Self::Device(slot) => slot.export(),
        }
    }

    /// The amax that counts.
    pub(super) fn amax<B: Fp8Engine>(
        &mut self,
        delayed: Delayed,
        device: &B::Device,
    ) -> ScalarOf<B> {
        let Delayed { history_length, amax_choice } = delayed;
        match self {
            Self::Device(slot) => {
                let tensors = slot.as_any().downcast_ref::<TensorSlot<B>>();
                match tensors.filter(|slot| slot.length() == history_length) {
                    Some(slot) => Scalar::Device(slot.amax(amax_choice, device)),
                    // The model has moved to another backend, or remembers more or less than it did: until the next commit.
                    None => Scalar::Host(slot.export().resized(history_length).amax(amax_choice)),
                }
            }
            Self::Host { history, .. } if history.entries().len() == history_length => {
                Scalar::Host(history.amax(amax_choice))
            }
            Self::Host { history, .. } => {
                Scalar::Host(history.resized(history_length).amax(amax_choice))
            }
        }
    }

    /// Takes in an amax of a step.
    pub(super) fn observe<B: Fp8Engine>(&mut self, step: u64, amax: ScalarOf<B>) {
        match amax {
            Scalar::Host(amax) => self.observe_on_host(step, amax),
            Scalar::Device(amax) => {
                let device = host::float_device::<B>(&amax);
                match self {
                    Self::Device(slot) => {
                        if !slot.as_any().is::<TensorSlot<B>>() {
                            *self = Self::on_device::<B>(&slot.export(), &slot.pending(), &device);
                        }
                    }
                    Self::Host { history, pending } => {
                        *self = Self::on_device::<B>(history, pending, &device);
                    }
                }
                if let Self::Device(slot) = self
                    && let Some(slot) = slot.as_any().downcast_mut::<TensorSlot<B>>()
                {
                    slot.observe(step, amax);
                }
            }
        }
    }

    /// Takes in an amax that is known on the host.
    pub(super) fn observe_on_host(&mut self, step: u64, amax: f32) {
        if let Self::Device(slot) = self {
            *self = Self::Host { history: slot.export(), pending: slot.pending() };
        }
        if let Self::Host { pending, .. } = self {
            match pending.iter_mut().find(|(id, _)| *id == step) {
                Some((_, other)) => *other = other.max(amax),
                None => pending.push((step, amax)),
            }
        }
    }

    /// What a step has observed so far. Waits for the device where it lies there.
    pub(super) fn observed(&self, step: u64) -> Option<f32> {
        let of_step = |pending: &[(u64, f32)]| {
            pending.iter().find(|(id, _)| *id == step).map(|(_, amax)| *amax)
        };
        match self {
            Self::Host { pending, .. } => of_step(pending),
            Self::Device(slot) => of_step(&slot.pending()),
        }
    }

    fn on_device<B: Fp8Engine>(
        history: &AmaxHistory,
        pending: &[(u64, f32)],
        device: &B::Device,
    ) -> Self {
        let pending = pending.iter().map(|(step, amax)| (*step, upload::<B>(&[*amax], device)));
        let history = upload::<B>(history.entries(), device);
        Self::Device(Box::new(TensorSlot::<B> { history, pending: pending.collect() }))
    }

    /// Enters what a step has observed, into a history of this length, or into a new one. Whether there was anything.
    pub(super) fn commit(&mut self, step: u64, history_length: usize, anew: bool) -> bool {
        match self {
            Self::Host { history, pending } => {
                let Some(index) = pending.iter().position(|(id, _)| *id == step) else {
                    return false;
                };
                let (_, amax) = pending.swap_remove(index);
                if anew {
                    *history = AmaxHistory::new(history_length);
                } else if history.entries().len() != history_length {
                    *history = history.resized(history_length);
                }
                history.push(amax);
                true
            }
            Self::Device(slot) => slot.commit(step, history_length, anew),
        }
    }

    pub(super) fn discard(&mut self, step: u64) {
        match self {
            Self::Host { pending, .. } => pending.retain(|(id, _)| *id != step),
            Self::Device(slot) => slot.discard(step),
        }
    }
}

impl<B: Fp8Engine> TensorSlot<B> {
    fn length(&self) -> usize {
        self.history.shape().num_elements()
    }

    fn amax(&self, choice: AmaxChoice, device: &B::Device) -> FloatTensor<B> {
        let amax = match choice {
            AmaxChoice::Maximum => B::float_max(self.history.clone()),
            AmaxChoice::MostRecent => slice::<B>(&self.history, 0, 1),
        };
        B::float_to_device(amax, device)
    }

    fn observe(&mut self, step: u64, amax: FloatTensor<B>) {
        let amax = B::float_to_device(amax, &host::float_device::<B>(&self.history));
        match self.pending.iter_mut().find(|(id, _)| *id == step) {
            Some((_, other)) => *other = larger::<B>(other.clone(), amax),
            None => self.pending.push((step, amax)),
        }
    }
}

impl<B: Fp8Engine> DeviceSlot for TensorSlot<B> {
    fn commit(&mut self, step: u64, history_length: usize, anew: bool) -> bool {
        let Some(index) = self.pending.iter().position(|(id, _)| *id == step) else {
            return false;
        };
        let (_, amax) = self.pending.swap_remove(index);
        if anew || self.length() != history_length {
            let resized = match anew {
                true => AmaxHistory::new(history_length),
                false => self.export().resized(history_length),
            };
            self.history = upload::<B>(resized.entries(), &host::float_device::<B>(&self.history));
        }
        let length = self.length();
        let mut parts = vec![B::float_reshape(amax, Shape::new([1]))];
        // Rotated by one to the left: what was third comes second; index 0 goes to the end.
        if length > 2 {
            parts.push(slice::<B>(&self.history, 2, length));
        }
        if length > 1 {
            parts.push(slice::<B>(&self.history, 0, 1));
        }
        self.history = B::float_cat(parts, 0);
        true
    }

    fn discard(&mut self, step: u64) {
        self.pending.retain(|(id, _)| *id != step);
    }

    fn export(&self) -> AmaxHistory {
        AmaxHistory::from_entries(read::<B>(self.history.clone()))
            .expect("amaxes are taken over finite elements")
    }

    fn pending(&self) -> Vec<(u64, f32)> {
        let read = |(step, amax): &(u64, FloatTensor<B>)| (*step, read::<B>(amax.clone())[0]);
        self.pending.iter().map(read).collect()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

fn upload<B: Fp8Engine>(values: &[f32], device: &B::Device) -> FloatTensor<B> {
    B::float_from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

fn slice<B: Fp8Engine>(tensor: &FloatTensor<B>, start: usize, end: usize) -> FloatTensor<B> {
    B::float_slice(tensor.clone(), &[Slice::from(start..end)])
}

/// The larger of two amaxes on the device. Shape `[1]`, no NaN.
fn larger<B: Fp8Engine>(a: FloatTensor<B>, b: FloatTensor<B>) -> FloatTensor<B> {
    B::float_max(B::float_cat(vec![a, b], 0))
}
