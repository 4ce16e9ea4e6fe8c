//! Ends a run that its user interrupts: the phase that runs is ended too, and what was measured is reported.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use signal_hook::consts::TERM_SIGNALS;

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Makes signals that would end this process a request to end the run. Without it a phase, which has a process group of its own,
/// would go on alone.
///
/// # Errors
/// If the operating system refuses a handler.
pub fn listen() -> Result<()> {
    TERM_SIGNALS
        .iter()
        .try_for_each(|signal| {
            signal_hook::flag::register(*signal, Arc::clone(&INTERRUPTED)).map(drop)
        })
        .context("cannot listen for signals")
}

/// Whether a signal has asked for the end.
pub(crate) fn requested() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
