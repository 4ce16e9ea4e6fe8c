//! A matrix in FP8 that is multiplied again and again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn_backend::{Backend, BackendTypes};

use crate::engine::MatrixOf;

/// A matrix `[K, N]` in the layout that the last product took: column by column on Flex and for tensor cores, row by row for emulated ones elsewhere.
///
/// Clones share it: what one of them has moved need not be moved by the others, and there is one copy.
pub(crate) struct Held<B: BackendTypes>(Arc<Mutex<MatrixOf<B>>>);

/// The matrix that some numbers were decoded from, as long as somebody else holds it, and nobody has written other numbers in their place.
#[cfg_attr(not(feature = "flex"), allow(dead_code, reason = "Flex alone decodes when it is read"))]
pub(crate) struct Known<B: BackendTypes> {
    matrix: Weak<Mutex<MatrixOf<B>>>,
    is_written: Arc<AtomicBool>,
}

impl<B: BackendTypes> Known<B> {
    pub(crate) fn get(&self) -> Option<Held<B>> {
        let is_written = self.is_written.load(Ordering::Relaxed);
        if is_written { None } else { self.matrix.upgrade().map(Held) }
    }
}

impl<B: BackendTypes> Clone for Held<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: BackendTypes> fmt::Debug for Held<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<B: Backend> Held<B> {
    pub(crate) fn new(matrix: MatrixOf<B>) -> Self {
        Self(Arc::new(Mutex::new(matrix)))
    }

    #[cfg_attr(
        not(feature = "flex"),
        allow(dead_code, reason = "Flex alone decodes when it is read")
    )]
    pub(crate) fn known(&self, is_written: Arc<AtomicBool>) -> Known<B> {
        Known { matrix: Arc::downgrade(&self.0), is_written }
    }

    fn lock(&self) -> MutexGuard<'_, MatrixOf<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> MatrixOf<B> {
        self.lock().clone()
    }

    /// The matrix with its codes row by row, or column by column. They stay in this layout.
    pub(crate) fn laid_out(&self, of_transpose: bool) -> MatrixOf<B> {
        let mut held = self.lock();
        if held.codes.is_none() != of_transpose {
            *held = held.laid_out::<B>(of_transpose);
        }
        held.clone()
    }
}
