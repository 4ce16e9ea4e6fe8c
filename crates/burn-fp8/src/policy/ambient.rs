//! The policy that casts find: of the innermost scope of the thread, else the default.

use std::cell::RefCell;
use std::sync::{PoisonError, RwLock};

use super::definition::Policy;
use crate::config;

static DEFAULT: RwLock<Option<Policy>> = RwLock::new(None);

thread_local! {
    static SCOPES: RefCell<Vec<Policy>> = const { RefCell::new(Vec::new()) };
}

/// Leaves a scope when dropped, so also when the scope's closure panics.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| {
            scopes.pop();
        });
    }
}

impl Policy {
    /// The policy of the innermost scope of this thread, else the process-wide default, if there is one.
    pub fn current() -> Option<Self> {
        SCOPES.with_borrow(|scopes| scopes.last().copied()).or_else(|| {
            // A policy is assigned whole: a holder of the lock that panics leaves nothing half done.
            *DEFAULT.read().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Runs `f` with this policy in force on this thread and returns its result.
    ///
    /// Scopes nest, and end when `f` returns or panics. Where the policy has the key `m`, FP8 is off in it, or on with that recipe; filter,
    /// predicate and execution are those around it.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        SCOPES.with_borrow_mut(|scopes| scopes.push(*self));
        let _leave = Leave;
        config::scope_with(|config| self.configure(config), f)
    }

    /// Makes this the policy of every thread that is not inside a [`Policy::scope`], until it is set anew.
    ///
    /// Its key `m` is put on top of the configuration that [`Fp8Config::set_default`](crate::Fp8Config::set_default) has set, and holds until
    /// either is set anew.
    pub fn set_default(self) {
        set_default(Some(self));
    }

    /// No policy by default, as at first; the configuration is as [`Fp8Config::set_default`](crate::Fp8Config::set_default) has set it.
    pub fn clear_default() {
        set_default(None);
    }
}

fn set_default(policy: Option<Policy>) {
    let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
    *default = policy;
    config::change_default(|config| policy.map_or(config, |policy| policy.configure(config)));
}
