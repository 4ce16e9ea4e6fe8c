//! The history of one operand: on the host where amaxes are known there, else on the device, without reading it back.

use std::any::Any;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Slice, TensorData, TensorMetadata};
use burn_fp8_core::{AmaxChoice, AmaxHistory};

use super::site::larger;
use crate::matmul::Fp8Matmul;
use crate::scaling::{Scalar, read};

/// The history of an operand, and what the running step has observed of it.
pub(super) enum Slot {
    Host {
        history: AmaxHistory,
        pending: Option<f32>,
    },
    /// Histories on a device are of the backend's type, which a state does not have as a parameter.
    Device(Box<dyn DeviceSlot>),
}

/// A [`TensorSlot`] of any backend.
pub(super) trait DeviceSlot: Any + Send {
    fn commit(&mut self);
    fn discard(&mut self);
    fn export(&self) -> AmaxHistory;
    fn length(&self) -> usize;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// A history in a tensor, f32, shape `[history length]`, in the order of [`AmaxHistory`].
struct TensorSlot<B: Fp8Matmul> {
    history: FloatTensor<B>,
    pending: Option<FloatTensor<B>>,
}

impl Slot {
    pub(super) fn new(history_length: usize) -> Self {
        Self::from_history(AmaxHistory::new(history_length))
    }

    pub(super) fn from_history(history: AmaxHistory) -> Self {
        Self::Host { history, pending: None }
    }

    pub(super) fn export(&self) -> AmaxHistory {
        match self {
            Self::Host { history, .. } => history.clone(),
            Self::Device(slot) => slot.export(),
        }
    }

    /// Makes room for `length` steps. Does nothing where that is the length.
    pub(super) fn resize(&mut self, length: usize) {
        let current = match self {
            Self::Host { history, .. } => history.entries().len(),
            Self::Device(slot) => slot.length(),
        };
        if current != length {
            *self = Self::from_history(self.export().resized(length));
        }
    }

    /// The amax that counts.
    pub(super) fn amax<B: Fp8Matmul>(
        &mut self,
        choice: AmaxChoice,
        device: &B::Device,
    ) -> Scalar<B> {
        if let Self::Device(slot) = self {
            if let Some(slot) = slot.as_any().downcast_ref::<TensorSlot<B>>() {
                return Scalar::Device(slot.amax(choice, device));
            }
            // The model has moved to another backend.
            *self = Self::from_history(slot.export());
        }
        match self {
            Self::Host { history, .. } => Scalar::Host(history.amax(choice)),
            Self::Device(_) => unreachable!("moved to the host"),
        }
    }

    /// Takes in an amax of the running step.
    pub(super) fn observe<B: Fp8Matmul>(&mut self, amax: Scalar<B>) {
        match (&mut *self, amax) {
            (Self::Host { pending, .. }, Scalar::Host(amax)) => {
                *pending = Some(pending.map_or(amax, |other| other.max(amax)));
            }
            (Self::Device(slot), Scalar::Device(amax)) => {
                if let Some(slot) = slot.as_any().downcast_mut::<TensorSlot<B>>() {
                    slot.observe(amax);
                } else {
                    *self = Self::on_device::<B>(slot.export(), amax);
                }
            }
            (Self::Host { history, .. }, Scalar::Device(amax)) => {
                *self = Self::on_device::<B>(history.clone(), amax);
            }
            (Self::Device(slot), Scalar::Host(amax)) => {
                *self = Self::Host { history: slot.export(), pending: Some(amax) };
            }
        }
    }

    fn on_device<B: Fp8Matmul>(history: AmaxHistory, amax: FloatTensor<B>) -> Self {
        let entries = history.entries().to_vec();
        let data = TensorData::new(entries, [history.entries().len()]);
        let history = B::float_from_data(data, &B::float_device(&amax));
        Self::Device(Box::new(TensorSlot::<B> { history, pending: Some(amax) }))
    }

    pub(super) fn commit(&mut self) {
        match self {
            Self::Host { history, pending } => {
                if let Some(amax) = pending.take() {
                    history.push(amax);
                }
            }
            Self::Device(slot) => slot.commit(),
        }
    }

    pub(super) fn discard(&mut self) {
        match self {
            Self::Host { pending, .. } => *pending = None,
            Self::Device(slot) => slot.discard(),
        }
    }
}

impl<B: Fp8Matmul> TensorSlot<B> {
    fn amax(&self, choice: AmaxChoice, device: &B::Device) -> FloatTensor<B> {
        let amax = match choice {
            AmaxChoice::Maximum => B::float_max(self.history.clone()),
            AmaxChoice::MostRecent => slice::<B>(&self.history, 0, 1),
        };
        B::float_to_device(amax, device)
    }

    fn observe(&mut self, amax: FloatTensor<B>) {
        let amax = B::float_to_device(amax, &B::float_device(&self.history));
        self.pending = Some(match self.pending.take() {
            Some(other) => larger::<B>(other, amax),
            None => amax,
        });
    }
}

impl<B: Fp8Matmul> DeviceSlot for TensorSlot<B> {
    fn commit(&mut self) {
        let Some(amax) = self.pending.take() else { return };
        let length = self.length();
        let mut parts = vec![B::float_reshape(amax, Shape::new([1]))];
        // Rotated by one to the left: what was second comes third; index 0 goes to the end.
        if length > 2 {
            parts.push(slice::<B>(&self.history, 2, length));
        }
        if length > 1 {
            parts.push(slice::<B>(&self.history, 0, 1));
        }
        self.history = B::float_cat(parts, 0);
    }

    fn discard(&mut self) {
        self.pending = None;
    }

    fn export(&self) -> AmaxHistory {
        AmaxHistory::from_entries(read::<B>(self.history.clone()))
            .expect("amaxes are taken over finite elements")
    }

    fn length(&self) -> usize {
        self.history.shape().num_elements()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

fn slice<B: Fp8Matmul>(tensor: &FloatTensor<B>, start: usize, end: usize) -> FloatTensor<B> {
    B::float_slice(tensor.clone(), &[Slice::from(start..end)])
}
