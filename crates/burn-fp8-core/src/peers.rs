//! What peers say to each other: threads or processes that train one model together. How they meet is up to those who implement it.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// One of several that take the same steps. Every operation is a meeting: each peer calls the same ones in the same order, and gets the same bits.
///
/// An error is final: the peers have lost each other, and training goes on from a checkpoint.
pub trait Peers: Debug + Send + Sync {
    /// Which one this is, from 0 on.
    fn rank(&self) -> usize;

    /// How many there are.
    fn size(&self) -> usize;

    /// What this one has handed over so far.
    fn traffic(&self) -> Traffic;

    /// The sum of what the peers have, which has to be of one length: MPI does not see where it is not.
    ///
    /// # Errors
    /// Where a peer does not come in time, or has gone.
    fn sum(&self, x: Vec<f32>) -> Result<Vec<f32>, PeerError>;

    /// What each peer has, by rank, of any length.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, PeerError>;

    /// What rank 0 has. That of others is of the same length and does not matter.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    fn broadcast(&self, x: Vec<f32>) -> Result<Vec<f32>, PeerError>;

    /// The largest of what the peers have, element by element; NaN where one is NaN. All have to call it for the same and for as many numbers, in words that name what differs if they do not.
    ///
    /// # Errors
    /// [`PeerError::Differs`] where they do not; otherwise as [`sum`](Self::sum).
    fn maximum(&self, of: &str, x: &[f32]) -> Result<Vec<f32>, PeerError> {
        let mut hasher = DefaultHasher::new();
        (of, x.len()).hash(&mut hasher);
        let of_this = hasher.finish().to_le_bytes();
        let all = self.gather([&of_this[..], &to_bytes(x)].concat())?;
        if all.iter().any(|theirs| !theirs.starts_with(&of_this)) {
            // Every peer sees that, and comes here.
            self.agree(&format!("{of}\n{} numbers", x.len()))?;
        }
        let mut largest = vec![f32::NEG_INFINITY; x.len()];
        for theirs in &all {
            for (largest, x) in largest.iter_mut().zip(from_bytes(&theirs[of_this.len()..])) {
                *largest = if x > *largest || x.is_nan() { x } else { *largest };
            }
        }
        Ok(largest)
    }

    /// Returns when all have come.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    fn meet(&self) -> Result<(), PeerError> {
        self.gather(vec![]).map(|_| ())
    }

    /// Checks that all peers say the same, in words that name what differs.
    ///
    /// # Errors
    /// [`PeerError::Differs`] for the first that does not say what this one says; otherwise as [`sum`](Self::sum).
    fn agree(&self, mine: &str) -> Result<(), PeerError> {
        let all = self.gather(mine.as_bytes().to_vec())?;
        let differs = |(_, theirs): &(usize, &Vec<u8>)| theirs.as_slice() != mine.as_bytes();
        let Some((other, theirs)) = all.iter().enumerate().find(differs) else { return Ok(()) };
        // Of long texts, the lines where they part.
        let theirs = String::from_utf8_lossy(theirs);
        let [ours, others] = [mine, &theirs].map(|text| text.lines().map(Some).chain([None]));
        let parting = ours.zip(others).find(|(ours, others)| ours != others);
        let (mine, theirs) = parting.unwrap_or((None, None));
        let [mine, theirs] = [mine, theirs].map(|line| line.unwrap_or("nothing more").to_owned());
        Err(PeerError::Differs { rank: self.rank(), mine, other, theirs })
    }
}

/// Numbers as bytes, little-endian.
pub fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The numbers of such bytes.
pub fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}

/// What a peer has handed over to the others, or to the engine that sums for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes, each counted once however many get it.
    pub bytes: usize,
    /// Messages.
    pub messages: usize,
}

impl Traffic {
    /// What has come since then.
    pub fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes - before.bytes, messages: self.messages - before.messages }
    }
}

/// A peer among peers, shared by what uses it.
pub type SharedPeers = Arc<dyn Peers>;

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
