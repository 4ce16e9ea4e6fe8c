//! What runs a product: whether it may be emulated, and what was done in the end.

use core::fmt::Display;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

use burn_fp8_core::sums::Sums;

use super::capability::Fallback;

/// What becomes of a native product that the unit turns out not to take: cuBLASLt has no algorithm for it, or scales of blocks are too far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// It is emulated, and its note says why.
    Emulate,
    /// It panics, with the reason.
    Refuse,
    /// It is emulated, on a thread that must not panic, and the thread that has asked for it panics when it next reads a tensor.
    RefuseLater(ThreadId),
}

impl Otherwise {
    /// What is asked for here and becomes known in a stream, whose thread a panic would leave without its tensors.
    ///
    /// Panics where this thread has not yet been told of an earlier refusal.
    #[cfg(feature = "fusion")]
    pub(super) fn in_stream(self) -> Self {
        if self != Self::Refuse {
            return self;
        }
        raise_refusal();
        Self::RefuseLater(thread::current().id())
    }
}

/// What threads are to be told of products that have been refused: the first of each.
static REFUSED: Mutex<Option<HashMap<ThreadId, String>>> = Mutex::new(None);

/// What this thread is to be told, which is then told.
pub fn take_refusal() -> Option<String> {
    let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    refused.as_mut()?.remove(&thread::current().id())
}

/// Panics where a product that this thread has asked for was refused meanwhile.
pub fn raise_refusal() {
    if let Some(refused) = take_refusal() {
        panic!("{refused}");
    }
}

/// What a device did with a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launched {
    /// Tensor cores multiplied the codes.
    Native {
        /// What cuBLASLt chose.
        algorithm: String,
    },
    /// A matrix unit of the CPU, of this name, multiplied the codes.
    MatrixUnit(&'static str),
    /// The decoded codes were multiplied in f32.
    FakeQuantized,
    /// The same, on a device that runs other products natively.
    Fallback(Fallback),
    /// The codes were multiplied in integers, with the sums of tensor cores.
    Sums {
        /// Whose.
        sums: Sums,
        /// What is not known of the hardware, or why it did not run natively.
        reason: Option<String>,
    },
}

/// Filled when a product is launched, perhaps after the call that registers it has returned, and perhaps on another thread: with what ran
/// it, or why nothing did.
pub type LaunchNote = Arc<OnceLock<Result<Launched, String>>>;

/// Notes what ran a product, where somebody wants to know. The first answer counts.
pub(super) fn note(note: &Option<LaunchNote>, ran: impl FnOnce() -> Launched) {
    if let Some(note) = note {
        let _ = note.get_or_init(|| Ok(ran()));
    }
}

/// Notes that a product is emulated, and why. Panics where it must not be, now or later.
#[cfg(any(feature = "cubecl", feature = "flex"))]
pub(super) fn fall_back(fallback: Fallback, otherwise: Otherwise, to: &Option<LaunchNote>) {
    if otherwise == Otherwise::Emulate {
        return note(to, || Launched::Fallback(fallback));
    }
    let refused = refusal(&fallback);
    if let Some(note) = to {
        let _ = note.set(Err(refused.clone()));
    }
    let Otherwise::RefuseLater(thread) = otherwise else { panic!("{refused}") };
    let mut all = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
    all.get_or_insert_default().entry(thread).or_insert(refused);
}

/// What a product says that must run natively and cannot.
pub(super) fn refusal(reason: &impl Display) -> String {
    format!(
        "Execution::Native: {reason}. Use Execution::Auto, which emulates such products, or leave it out: Filter, \
         Fp8Config::scope_where"
    )
}
