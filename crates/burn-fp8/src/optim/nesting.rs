//! Which optimizer may be inside which.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Ends when dropped, so also when the wrapped optimizer panics.
struct Inside {
    before: bool,
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}

/// Runs the step of the optimizer that an [`Fp8Optimizer`](super::Fp8Optimizer) wraps.
pub(super) fn inside_fp8_optimizer<R>(step: impl FnOnce() -> R) -> R {
    let _inside = Inside { before: INSIDE.replace(true) };
    step()
}

/// Checks that a step that may be skipped is not that of an optimizer inside [`Fp8Optimizer`](super::Fp8Optimizer): FP8 state would be
/// overwritten already.
///
/// # Panics
/// Where it is.
#[track_caller]
pub(super) fn assert_outside_fp8_optimizer() {
    assert!(
        !INSIDE.get(),
        "LossScaledOptimizer is inside Fp8Optimizer, which has overwritten the FP8 state before a step can be skipped: wrap them \
         the other way round, LossScaledOptimizer::new(Fp8Optimizer::new(optimizer), loss_scale)"
    );
}
