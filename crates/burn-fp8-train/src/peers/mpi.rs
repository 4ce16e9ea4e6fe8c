//! Peers that are processes, on one machine or many, by the Message Passing Interface.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use super::{PeerError, Peers, Sent, Traffic};

/// The largest message in one call of MPI, in elements: its counts are `i32`.
const LARGEST: usize = 1 << 28;

/// A process that `mpirun`, or a cluster's `srun`, has started beside others.
///
/// A thread of its own makes all calls of MPI, which cannot be left: whoever waits for it gives up in time, and the process ends with an error, upon which `mpirun` ends the others.
///
/// Drop it before the program ends: that says goodbye to the others, and waits for theirs. A program that fails ends without it.
#[derive(Debug)]
pub struct Mpi {
    rank: usize,
    size: usize,
    timeout: Duration,
    /// None once it is dropped, or has lost the others.
    caller: Mutex<Option<Caller>>,
    sent: Sent,
}

#[derive(Debug)]
struct Caller {
    calls: Sender<Call>,
    thread: JoinHandle<()>,
}

/// A call, and where its result goes.
enum Call {
    Sum(Vec<f32>, Sender<Vec<f32>>),
    Broadcast(Vec<f32>, Sender<Vec<f32>>),
    Gather(Vec<u8>, Sender<Vec<Vec<u8>>>),
}

impl Mpi {
    /// The process that this is. All of the job call it, and wait for each other so long at most in each later operation.
    ///
    /// # Errors
    /// [`PeerError::Setup`] where MPI is in use already, or this process was not started by `mpirun`.
    pub fn new(timeout: Duration) -> Result<Self, PeerError> {
        let (calls, received) = channel();
        let (started, ready) = channel();
        let serve = move || {
            let universe = mpi::initialize_with_threading(Threading::Funneled);
            let place = universe.as_ref().map(|(universe, threading)| {
                let world = universe.world();
                ([world.rank(), world.size()], *threading)
            });
            // Nobody waits any more where this fails.
            if started.send(place).is_ok()
                && let Some((universe, _)) = universe
            {
                serve(&universe, &received);
            }
        };
        let thread = std::thread::Builder::new()
            .name("mpi".into())
            .spawn(serve)
            .map_err(|error| PeerError::Setup(format!("no thread for MPI: {error}")))?;
        let place = ready.recv_timeout(timeout);
        let place = place.map_err(|_| PeerError::Setup("MPI did not start in time".into()))?;
        let (place, threading) = place.ok_or_else(|| {
            PeerError::Setup("MPI is in use already: make one `Mpi` a process".into())
        })?;
        if threading < Threading::Funneled {
            let reason = "this MPI allows no threads beside the one that calls it: use one that has MPI_THREAD_FUNNELED";
            return Err(PeerError::Setup(reason.into()));
        }
        let [rank, size] =
            place.map(|number| usize::try_from(number).expect("ranks are counted from 0"));
        let caller = Mutex::new(Some(Caller { calls, thread }));
        Ok(Self { rank, size, timeout, caller, sent: Sent::default() })
    }

    fn call<R>(&self, call: impl FnOnce(Sender<R>) -> Call) -> Result<R, PeerError> {
        let Self { rank, size, timeout, ref caller, .. } = *self;
        let gone = |reason: &str| PeerError::Gone { rank, reason: reason.into() };
        let mut caller =
            caller.lock().map_err(|_| gone("a thread that met the others has panicked"))?;
        let Some(Caller { calls, .. }) = &*caller else {
            return Err(gone("it has lost the others before"));
        };
        let (sender, result) = channel();
        let sent = calls.send(call(sender));
        sent.map_err(|_| gone("MPI has failed"))?;
        match result.recv_timeout(timeout) {
            Ok(result) => Ok(result),
            Err(error) => {
                // The thread stays in its call for good.
                *caller = None;
                Err(match error {
                    RecvTimeoutError::Timeout => {
                        PeerError::TimedOut { rank, size, waited: timeout }
                    }
                    RecvTimeoutError::Disconnected => gone("MPI has failed"),
                })
            }
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        let Ok(Some(Caller { calls, thread })) = self.caller.get_mut().map(Option::take) else {
            return;
        };
        drop(calls);
        // The others wait for this one, and MPI would wait for them: the process ends without a goodbye, and the launcher ends theirs.
        if std::thread::panicking() {
            return;
        }
        // With the last call MPI is finalized. A panic was reported where it happened.
        let _ = thread.join();
    }
}

impl Peers for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn traffic(&self) -> Traffic {
        self.sent.traffic()
    }

    fn sum(&self, x: Vec<f32>) -> Result<Vec<f32>, PeerError> {
        self.sent.count(&x);
        self.call(|result| Call::Sum(x, result))
    }

    fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, PeerError> {
        self.sent.count(&mine);
        self.call(|result| Call::Gather(mine, result))
    }

    fn broadcast(&self, x: Vec<f32>) -> Result<Vec<f32>, PeerError> {
        self.sent.count(if self.rank == 0 { &x } else { &[] });
        self.call(|result| Call::Broadcast(x, result))
    }
}

/// Makes calls until nobody is left to ask for them.
fn serve(universe: &Universe, calls: &Receiver<Call>) {
    let world = universe.world();
    for call in calls {
        // Nobody waits any more where sending fails.
        let _ = match call {
            Call::Sum(x, result) => result.send(sum(&world, &x)).is_ok(),
            Call::Broadcast(mut x, result) => {
                let root = world.process_at_rank(0);
                x.chunks_mut(LARGEST).for_each(|x| root.broadcast_into(x));
                result.send(x).is_ok()
            }
            Call::Gather(mine, result) => result.send(gather(&world, &mine)).is_ok(),
        };
    }
}

fn sum(world: &SimpleCommunicator, x: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0; x.len()];
    for (x, sums) in x.chunks(LARGEST).zip(sums.chunks_mut(LARGEST)) {
        world.all_reduce_into(x, sums, SystemOperation::sum());
    }
    sums
}

fn gather(world: &SimpleCommunicator, mine: &[u8]) -> Vec<Vec<u8>> {
    let size = usize::try_from(world.size()).expect("there is one at least");
    let mut lengths = vec![0u64; size];
    world.all_gather_into(&(mine.len() as u64), &mut lengths[..]);
    let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
    let mut all = vec![vec![]; size];
    // What fits in the counts of MPI, of all together.
    let part = (i32::MAX as usize / size).max(1);
    for start in (0..longest).step_by(part) {
        let of = |length: u64| (length as usize).saturating_sub(start).min(part);
        let counts: Vec<i32> = lengths.iter().map(|length| of(*length) as i32).collect();
        let offsets: Vec<i32> = counts
            .iter()
            .scan(0, |offset, count| Some(std::mem::replace(offset, *offset + count)))
            .collect();
        let mut bytes = vec![0u8; counts.iter().map(|count| *count as usize).sum()];
        let mine = &mine[start.min(mine.len())..][..of(mine.len() as u64)];
        world.all_gather_varcount_into(
            mine,
            &mut PartitionMut::new(&mut bytes[..], counts.clone(), &offsets[..]),
        );
        let mut rest = bytes.as_slice();
        for (all, count) in all.iter_mut().zip(counts) {
            let (theirs, after) = rest.split_at(count as usize);
            all.extend_from_slice(theirs);
            rest = after;
        }
    }
    all
}
