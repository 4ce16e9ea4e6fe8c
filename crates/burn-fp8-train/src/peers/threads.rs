//! Peers that are threads of one process.
//!
//! burn-collective has no maximum, no gathering and no time limit: a peer that panics leaves the others waiting for good.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{PeerError, Peers, Sent, Traffic, from_bytes, to_bytes};

/// A thread among peers.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    room: Arc<Room>,
    sent: Sent,
}

/// Where they meet.
#[derive(Debug)]
struct Room {
    timeout: Duration,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Debug)]
struct Meeting {
    /// What all of them do: of the first who came.
    call: Option<Call>,
    /// What each has brought.
    brought: Vec<Option<Vec<u8>>>,
    /// What all have brought, while they take it.
    all: Option<Arc<Vec<Vec<u8>>>>,
    /// How many have still to take it.
    waiting: usize,
    /// Two who came for different things, and for what: nobody meets again.
    different: Option<[(usize, Call); 2]>,
    gone: Option<usize>,
}

/// What a meeting is for, and the elements of each.
type Call = (&'static str, Option<usize>);

impl Threads {
    /// So many peers, one for each thread, which wait for each other so long at most.
    ///
    /// # Panics
    /// Where there are none.
    pub fn new(size: usize, timeout: Duration) -> Vec<Self> {
        assert!(size > 0, "there is no peer");
        let brought = vec![None; size];
        let meeting =
            Meeting { call: None, brought, all: None, waiting: 0, different: None, gone: None };
        let room = Room { timeout, meeting: Mutex::new(meeting), changed: Condvar::new() };
        let room = Arc::new(room);
        (0..size).map(|rank| Self { rank, room: room.clone(), sent: Sent::default() }).collect()
    }

    fn exchange(&self, call: Call, mine: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>, PeerError> {
        self.sent.count(&mine);
        let start = Instant::now();
        let mut meeting = self.room.lock();
        meeting.check(self)?;
        // The meeting before may not have ended.
        meeting = self.wait(meeting, start, |meeting| meeting.all.is_none())?;
        let of_first = *meeting.call.get_or_insert(call);
        if of_first != call {
            let first = meeting.brought.iter().position(Option::is_some).unwrap_or(0);
            meeting.different = Some([(first, of_first), (self.rank, call)]);
            self.room.changed.notify_all();
            meeting.check(self)?;
        }
        meeting.brought[self.rank] = Some(mine);
        if meeting.brought.iter().all(Option::is_some) {
            let all = meeting.brought.iter_mut().flat_map(Option::take).collect();
            meeting.all = Some(Arc::new(all));
            meeting.call = None;
            meeting.waiting = meeting.brought.len();
            self.room.changed.notify_all();
        } else {
            meeting = self.wait(meeting, start, |meeting| meeting.all.is_some())?;
        }
        let all = meeting.all.clone().expect("the meeting has not ended");
        meeting.waiting -= 1;
        if meeting.waiting == 0 {
            meeting.all = None;
            self.room.changed.notify_all();
        }
        Ok(all)
    }

    fn wait<'a>(
        &self,
        mut meeting: MutexGuard<'a, Meeting>,
        start: Instant,
        is_over: impl Fn(&Meeting) -> bool,
    ) -> Result<MutexGuard<'a, Meeting>, PeerError> {
        while !is_over(&meeting) {
            let (rank, timeout) = (self.rank, self.room.timeout);
            meeting.check(self)?;
            // A meeting that all had come to ends for those who are still in it.
            if let Some(gone) = meeting.gone {
                return Err(PeerError::Gone { rank, reason: format!("rank {gone} has ended") });
            }
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                let size = meeting.brought.len();
                return Err(PeerError::TimedOut { rank, size, waited: timeout });
            };
            let waited = self.room.changed.wait_timeout(meeting, left);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(meeting)
    }
}

impl Meeting {
    /// Whether all want the same; what of two others is told to a third as what the first has.
    fn check(&self, peer: &Threads) -> Result<(), PeerError> {
        let Some([one, two]) = self.different else { return Ok(()) };
        let [(_, mine), (other, theirs)] = if two.0 == peer.rank { [two, one] } else { [one, two] };
        let [mine, theirs] = [mine, theirs].map(|(name, elements)| match elements {
            Some(elements) => format!("{name} of {elements} numbers"),
            None => name.to_owned(),
        });
        Err(PeerError::Differs { rank: peer.rank, mine, other, theirs })
    }
}

impl Room {
    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.room.lock().gone.get_or_insert(self.rank);
        self.room.changed.notify_all();
    }
}

impl Peers for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.room.lock().brought.len()
    }

    fn traffic(&self) -> Traffic {
        self.sent.traffic()
    }

    fn sum(&self, mut x: Vec<f32>) -> Result<Vec<f32>, PeerError> {
        let all = self.exchange(("sum", Some(x.len())), to_bytes(&x))?;
        x.fill(0.0);
        // In the order of ranks, by each for itself.
        for theirs in all.iter() {
            x.iter_mut().zip(from_bytes(theirs)).for_each(|(sum, x)| *sum += x);
        }
        Ok(x)
    }

    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, PeerError> {
        self.exchange(("gather", None), mine).map(Arc::unwrap_or_clone)
    }

    fn broadcast(&self, x: Vec<f32>) -> Result<Vec<f32>, PeerError> {
        let mine = if self.rank == 0 { to_bytes(&x) } else { vec![] };
        let all = self.exchange(("broadcast", Some(x.len())), mine)?;
        Ok(from_bytes(&all[0]).collect())
    }
}
