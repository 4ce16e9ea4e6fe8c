//! Whether this process has been started among others.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "mpi")]
use super::{Mpi, Peers};
use super::{PeerError, SharedPeers, Threads};

/// The process among those that `mpirun` or Slurm's `srun` has started with it, which wait for each other so long at most; a peer without others where neither has.
///
/// # Errors
/// [`PeerError::Setup`] where there are others and they cannot meet: the feature `mpi` is missing, or the launcher is that of another MPI.
pub fn join(timeout: Duration) -> Result<SharedPeers, PeerError> {
    match launched() {
        None | Some(1) => {
            let alone = Threads::new(1, timeout).pop();
            Ok(Arc::new(alone.expect("there is one")))
        }
        #[cfg(feature = "mpi")]
        Some(launched) => {
            let peers = Mpi::new(timeout)?;
            if peers.size() != launched {
                return Err(PeerError::Setup(format!(
                    "{launched} processes were started, but the MPI that this program was built with sees {}: start them with the mpirun of that MPI",
                    peers.size()
                )));
            }
            Ok(Arc::new(peers))
        }
        #[cfg(not(feature = "mpi"))]
        Some(launched) => Err(PeerError::Setup(format!(
            "{launched} processes were started, but this program cannot train among them: build it with the feature `mpi`"
        ))),
    }
}

/// How many processes a launcher says that it has started.
fn launched() -> Option<usize> {
    // OpenMPI; MPICH, and what descends from it; srun, which sets it in the processes of a step alone.
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
}
