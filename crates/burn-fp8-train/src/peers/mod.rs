//! Processes, or threads, that train one model together: how they exchange numbers.
//!
//! `Mpi` is for processes, on one machine or many, that `mpirun` or Slurm starts (feature `mpi`); [`Threads`] for threads of one process. Both are [`Peers`]. [`join`] finds out whether there are
//! others.

mod join;
#[cfg(feature = "mpi")]
mod mpi;
mod threads;

use std::sync::{Mutex, PoisonError};

pub use burn_fp8_core::peers::{PeerError, Peers, SharedPeers, Traffic};
pub(crate) use burn_fp8_core::peers::{from_bytes, to_bytes};
pub use join::join;
#[cfg(feature = "mpi")]
pub use mpi::Mpi;
pub use threads::Threads;

/// Counts what a peer has handed over.
#[derive(Debug, Default)]
struct Sent(Mutex<Traffic>);

impl Sent {
    fn count<T>(&self, message: &[T]) {
        let mut traffic = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        traffic.bytes += size_of_val(message);
        traffic.messages += 1;
    }

    fn traffic(&self) -> Traffic {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
