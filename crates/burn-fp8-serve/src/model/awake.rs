//! Threads that do not fall asleep between products.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Rounds without work after which a thread lets others have its core.
const ROUNDS: usize = 64;

/// Time without work after which a thread goes back to where it came from. That may be the midst of work that is waited for: rayon gives a thread
/// what waits for it also while it waits for a piece of its own.
const PATIENCE: Duration = Duration::from_millis(1);

/// Threads of the process that are kept awake at most, whatever pools there are: of a server with many cores the others sleep as they do.
const MOST: usize = 16;

/// How many are.
static AWAKE: AtomicUsize = AtomicUsize::new(0);

/// How many pieces of text go through models of this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Runs this; for a single token with other threads of the pool looking for work all the time. A token has some two hundred products with
/// microseconds between them, in which a thread of rayon falls asleep; to wake it up takes as long as a small product.
///
/// Out of a pool, where it has one thread, and while another text goes through a model, nothing is different.
pub(super) fn awake<R>(is_token: bool, work: impl FnOnce() -> R) -> R {
    let is_over = Over::default();
    let _running = Running::new(is_over.clone());
    if is_token
        && let Some(this) = rayon::current_thread_index()
        && rayon::current_num_threads() > 1
        && Over::is_alone()
    {
        rayon::spawn_broadcast(move |context| {
            // This one works: it would wait for itself.
            if context.index() != this {
                is_over.wait();
            }
        });
    }
    work()
}

#[derive(Clone, Default)]
struct Over(Arc<AtomicBool>);

impl Over {
    fn is_alone() -> bool {
        RUNNING.load(Ordering::Acquire) == 1
    }

    /// Does what there is to do until it is over, or there was nothing for a while; nothing where as many threads do so as may.
    fn wait(&self) {
        let one_more = |count: usize| (count < MOST).then_some(count + 1);
        if AWAKE.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
            return;
        }
        let (mut idle, mut since) = (0, Instant::now());
        while Self::is_alone() && !self.0.load(Ordering::Acquire) && since.elapsed() < PATIENCE {
            match rayon::yield_now() {
                Some(rayon::Yield::Executed) => (idle, since) = (0, Instant::now()),
                _ if idle < ROUNDS => {
                    idle += 1;
                    spin_loop();
                }
                _ => thread::yield_now(),
            }
        }
        AWAKE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Work that ends when this is dropped, after a panic too.
struct Running(Over);

impl Running {
    fn new(is_over: Over) -> Self {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        Self(is_over)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use rayon::prelude::*;

    use super::{AWAKE, MOST, awake};

    /// Each is the only text that goes through a model.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn so_many_threads_are_kept_awake_and_no_more() {
        let _alone = ALONE.lock().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(MOST + 24).build().unwrap();
        let start = Instant::now();
        let mut most = 0;
        while most < MOST && start.elapsed() < Duration::from_secs(10) {
            most = pool.install(|| {
                awake(true, || {
                    let counts = (0..100).map(|_| {
                        thread::yield_now();
                        AWAKE.load(Ordering::Acquire)
                    });
                    counts.max().unwrap().max(most)
                })
            });
            assert!(most <= MOST, "{most} threads");
        }
        assert!(most > 0);
        while AWAKE.load(Ordering::Acquire) > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "a thread is kept for good");
            thread::yield_now();
        }
    }

    /// A thread takes what keeps it awake while it waits in the midst of work that is waited for.
    #[test]
    fn it_ends_where_a_thread_is_kept_from_what_is_waited_for() {
        let _alone = ALONE.lock().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let [begun, asked, done] = [const { AtomicBool::new(false) }; 3];
        let start = Instant::now();
        let wait_for = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                assert!(start.elapsed() < Duration::from_secs(60), "a thread is kept for good");
            }
        };
        pool.install(|| {
            rayon::scope(|scope| {
                scope.spawn(|_| {
                    begun.store(true, Ordering::Release);
                    wait_for(&asked);
                    // As a `join` does while it waits.
                    rayon::yield_now();
                    done.store(true, Ordering::Release);
                });
                wait_for(&begun);
                awake(true, || {
                    asked.store(true, Ordering::Release);
                    wait_for(&done);
                });
            });
        });
    }

    /// Many times, one in another, two beside each other in one pool, and after a panic.
    #[test]
    fn it_ends_with_what_the_work_gives() {
        let _alone = ALONE.lock().unwrap();
        let sum = || (0..64u32).into_par_iter().with_max_len(1).sum::<u32>();
        assert_eq!(awake(true, sum), 2016);
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let many = || {
                    for _ in 0..200 {
                        assert_eq!(
                            awake(true, || awake(true, sum) + sum()),
                            4032,
                            "{threads} threads"
                        );
                    }
                };
                many();
                rayon::join(many, many);
                let panics = || awake(true, || -> u32 { panic!("as it should") });
                assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
                assert_eq!(awake(true, sum), 2016);
            });
        }
    }
}
