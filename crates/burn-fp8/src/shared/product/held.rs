//! A matrix in FP8 that is multiplied again and again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use burn_backend::{Backend, BackendTypes};

use crate::engine::MatrixOf;

/// A matrix `[K, N]` in the layout that the last product took: column by column on Flex and for tensor cores, row by row for emulated ones elsewhere.
///
/// Clones share it: what one of them has moved need not be moved by the others, and there is one copy.
pub(crate) struct Held<B: BackendTypes>(Arc<Mutex<MatrixOf<B>>>);

/// A [`Held`] matrix, as long as somebody else holds it.
pub(crate) struct Known<B: BackendTypes>(Weak<Mutex<MatrixOf<B>>>);

impl<B: BackendTypes> Known<B> {
    pub(crate) fn get(&self) -> Option<Held<B>> {
        self.0.upgrade().map(Held)
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

    pub(crate) fn known(&self) -> Known<B> {
        Known(Arc::downgrade(&self.0))
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
