//! Threads that do not fall asleep between products.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Rounds without work after which a thread lets others have its core.
const ROUNDS: usize = 64;

/// How many pieces of text go through models of this process.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Runs this with the other threads of the pool looking for work all the time. A token has some two hundred products with microseconds between them, in which a thread of rayon falls asleep; to
/// wake it up takes as long as a small product.
///
/// Out of a pool, where it has one thread, and while another does the same, nothing is different: a thread that waits in the midst of one text would not go back to it before the other one is done.
pub(super) fn awake<R>(work: impl FnOnce() -> R) -> R {
    let is_over = Over::default();
    let _running = Running::new(is_over.clone());
    if let Some(this) = rayon::current_thread_index()
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

    /// Does what there is to do until it is over.
    fn wait(&self) {
        let mut idle = 0;
        while Self::is_alone() && !self.0.load(Ordering::Acquire) {
            match rayon::yield_now() {
                Some(rayon::Yield::Executed) => idle = 0,
                _ if idle < ROUNDS => {
                    idle += 1;
                    spin_loop();
                }
                _ => thread::yield_now(),
            }
        }
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

    use rayon::prelude::*;

    use super::awake;

    /// Many times, one in another, two beside each other in one pool, and after a panic.
    #[test]
    fn it_ends_with_what_the_work_gives() {
        let sum = || (0..64u32).into_par_iter().with_max_len(1).sum::<u32>();
        assert_eq!(awake(sum), 2016);
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let many = || {
                    for _ in 0..200 {
                        assert_eq!(awake(|| awake(sum) + sum()), 4032, "{threads} threads");
                    }
                };
                many();
                rayon::join(many, many);
                let panics = || awake(|| -> u32 { panic!("as it should") });
                assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
                assert_eq!(awake(sum), 2016);
            });
        }
    }
}
