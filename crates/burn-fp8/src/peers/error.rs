//! Why peers have lost each other.

use std::time::Duration;

/// Why peers cannot go on together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Not all came.
    #[error("rank {rank} of {size} waited {} seconds for the others: one has died, hangs, or never came; start again from the last checkpoint", .waited.as_secs())]
    TimedOut {
        /// Who waited.
        rank: usize,
        /// How many there are.
        size: usize,
        /// How long.
        waited: Duration,
    },
    /// A peer has ended, or has failed.
    #[error("rank {rank} goes on alone: {reason}; start again from the last checkpoint")]
    Gone {
        /// Who noticed.
        rank: usize,
        /// What is known.
        reason: String,
    },
    /// Two peers do not do the same.
    #[error(
        "ranks {rank} and {other} differ: rank {rank} has `{mine}`, rank {other} has `{theirs}`; start the same program with the same options on the same data"
    )]
    Differs {
        /// Who noticed.
        rank: usize,
        /// What it has.
        mine: String,
        /// The other one.
        other: usize,
        /// What that has.
        theirs: String,
    },
    /// There is nobody to meet.
    #[error("{0}")]
    Setup(String),
}
