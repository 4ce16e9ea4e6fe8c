//! The step that is sampled on this thread.

use core::fmt::Display;
use std::cell::{Cell, RefCell};

use burn_fp8_core::Gemm;
use burn_fp8_report::log::SiteEntry;

use super::tap::Tap;

/// A step while it is sampled.
struct Step {
    number: u64,
    max_elements: usize,
    names: Vec<String>,
    taps: Vec<Tap>,
}

thread_local! {
    /// Whether there is a step: all that products read where there is none.
    static IS_SAMPLED: Cell<bool> = const { Cell::new(false) };
    static STEP: RefCell<Option<Step>> = const { RefCell::new(None) };
}

/// Puts back, when dropped, the step that there was before: also when the closure panics.
struct Restore(Option<Step>);

impl Restore {
    fn replace(step: Option<Step>) -> Self {
        IS_SAMPLED.set(step.is_some());
        Self(STEP.replace(step))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        IS_SAMPLED.set(self.0.is_some());
        STEP.set(self.0.take());
    }
}

/// Samples the products of `f`.
pub(super) fn sampled<R>(
    number: u64,
    max_elements: usize,
    f: impl FnOnce() -> R,
) -> (R, Vec<SiteEntry>) {
    let step = Step { number, max_elements, names: Vec::new(), taps: Vec::new() };
    let restore = Restore::replace(Some(step));
    let result = f();
    let taps = STEP.with_borrow_mut(Option::take).map_or(Vec::new(), |step| step.taps);
    drop(restore);
    (result, taps.iter().filter_map(Tap::close).collect())
}

/// Runs `f` outside of any step.
pub(super) fn outside<R>(f: impl FnOnce() -> R) -> R {
    if !IS_SAMPLED.get() {
        return f();
    }
    let _restore = Restore::replace(None);
    f()
}

/// A tap for a product that is about to run, where a step is sampled.
pub(crate) fn observe(kind: impl Display, forward: Gemm) -> Option<Tap> {
    if !IS_SAMPLED.get() {
        return None;
    }
    STEP.with_borrow_mut(|step| {
        let Step { number, max_elements, names, taps } = step.as_mut()?;
        let site = taps.len() as u64 + 1;
        let tap =
            Tap::new([*number, site], *max_elements, names.join("."), kind.to_string(), forward);
        taps.push(tap.clone());
        Some(tap)
    })
}

/// Names the forward products that `f` runs in a sampled step of an [`Observatory`](super::Observatory); outer names come first:
/// `blocks.0.mlp`. Products of the backward pass belong to the forward product that they come from.
///
/// Costs a read of a thread-local where no step is sampled.
///
/// ```
/// use burn_fp8::report::named;
///
/// let logits = named("blocks.0", || named("mlp", || 7));
/// assert_eq!(logits, 7);
/// ```
pub fn named<R>(name: &str, f: impl FnOnce() -> R) -> R {
    if !IS_SAMPLED.get() {
        return f();
    }
    /// Removes the name, also when the closure panics.
    struct Unname;

    impl Drop for Unname {
        fn drop(&mut self) {
            STEP.with_borrow_mut(|step| step.as_mut().and_then(|step| step.names.pop()));
        }
    }

    STEP.with_borrow_mut(|step| step.as_mut().map(|step| step.names.push(name.to_owned())));
    let _unname = Unname;
    f()
}
