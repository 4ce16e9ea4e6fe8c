//! What runs a product: whether it may be emulated, and what was done in the end.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::capability::Fallback;

/// What becomes of a native product that cuBLASLt has no algorithm for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// It is emulated, and its note says why.
    Emulate,
    /// It panics, with what cuBLASLt says.
    Refuse,
    /// The same, where it runs on a thread that others need: whoever next reads a tensor or asks for such a product panics.
    RefuseLater,
}

impl Otherwise {
    /// On the thread of a stream, which a panic would leave without its tensors.
    #[cfg(feature = "fusion")]
    pub(super) fn in_stream(self) -> Self {
        match self {
            Self::Refuse => Self::RefuseLater,
            otherwise => otherwise,
        }
    }
}

/// What the next reader of a tensor is to be told.
static REFUSED: Mutex<Option<String>> = Mutex::new(None);

/// Panics where a product of a stream has been refused since it was last asked.
pub(crate) fn raise_refusal() {
    let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(refused) = refused {
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
}

/// Filled when a product is launched, perhaps after the call that registers it has returned, and perhaps on another thread: with what ran
/// it, or why nothing did.
pub type LaunchNote = Arc<OnceLock<Result<Launched, String>>>;

/// Notes what ran a product, where somebody wants to know. The first answer counts.
pub(crate) fn note(note: &Option<LaunchNote>, ran: impl FnOnce() -> Launched) {
    if let Some(note) = note {
        let _ = note.get_or_init(|| Ok(ran()));
    }
}

/// Notes that a product is emulated, and why. Panics where it must not be, now or later.
#[cfg(feature = "cubecl")]
pub(crate) fn fall_back(fallback: Fallback, otherwise: Otherwise, to: &Option<LaunchNote>) {
    if otherwise == Otherwise::Emulate {
        return note(to, || Launched::Fallback(fallback));
    }
    let refused = refusal(&fallback);
    if let Some(note) = to {
        let _ = note.set(Err(refused.clone()));
    }
    if otherwise == Otherwise::Refuse {
        panic!("{refused}");
    }
    *REFUSED.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
}

/// What a product says that must run natively and cannot.
pub(super) fn refusal(fallback: &Fallback) -> String {
    format!(
        "Execution::Native: {fallback}. Use Execution::Auto, which emulates such products, or leave it out: Filter, \
         Fp8Config::scope_where"
    )
}
