//! The configuration that a product finds when it runs: of the innermost scope of the thread, else the default.

use std::cell::RefCell;
use std::fmt;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use burn_fp8_core::{Filter, Gemm, GemmRole, ProductKind, Rejection};

use super::Fp8Config;
use super::scope::{innermost, within};

/// What a predicate of [`Fp8Config::scope_where`] sees of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductInfo {
    /// The operation of the model that the product comes from.
    pub kind: ProductKind,
    /// The role of the product. With `Fp8Backend<Autodiff<B>>` always [`GemmRole::Output`]: the forward product decides
    /// for its gradients.
    pub role: GemmRole,
    /// The shape of the product.
    pub gemm: Gemm,
}

impl ProductInfo {
    /// Whether the filter takes the product, its weight as well, which has this id of Burn's where that is known, and gains by it.
    pub(crate) fn check(
        &self,
        filter: &Filter,
        with_gradients: bool,
        weight: impl FnOnce() -> Option<u64>,
    ) -> Result<(), Rejection> {
        let forward = self.gemm.for_role(self.role);
        if !filter.except.is_empty() {
            filter.check_weight(forward, weight())?;
        }
        filter.check(self.kind, self.gemm)?;
        filter.check_gain(forward, with_gradients)
    }
}

type Predicate = dyn Fn(&ProductInfo) -> bool + Send + Sync;

/// A configuration with the predicate of its scope.
#[derive(Clone)]
pub(crate) struct Ambient {
    pub(crate) config: Fp8Config,
    predicate: Option<Arc<Predicate>>,
}

impl Ambient {
    /// Whether the scope's predicate takes the product.
    pub(crate) fn takes(&self, product: &ProductInfo) -> bool {
        self.predicate.as_ref().is_none_or(|predicate| predicate(product))
    }

    fn new(config: Fp8Config, predicate: Option<Arc<Predicate>>) -> Self {
        if let Err(error) = config.validate() {
            panic!("this Fp8Config cannot be used: {error}");
        }
        Self { config, predicate }
    }
}

impl fmt::Debug for Ambient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ambient")
            .field("config", &self.config)
            .field("predicate", &self.predicate.is_some())
            .finish()
    }
}

/// What holds outside of scopes.
struct Default {
    /// As it was set, without what has been put on top of it.
    config: Fp8Config,
    ambient: Arc<Ambient>,
}

static DEFAULT: LazyLock<RwLock<Default>> = LazyLock::new(|| {
    let config = Fp8Config::default();
    RwLock::new(Default { config, ambient: Arc::new(Ambient::new(config, None)) })
});

thread_local! {
    static SCOPES: RefCell<Vec<Arc<Ambient>>> = const { RefCell::new(Vec::new()) };
}

/// The configuration of the innermost scope of this thread, else the process-wide default.
pub(crate) fn current() -> Arc<Ambient> {
    innermost(&SCOPES).unwrap_or_else(|| {
        // A holder of the lock makes the ambient before it assigns: one that panics leaves nothing half done.
        DEFAULT.read().unwrap_or_else(PoisonError::into_inner).ambient.clone()
    })
}

/// Whether this thread is in a scope.
#[allow(
    dead_code,
    reason = "asked for devices that scopes do not reach, which not every crate has"
)]
pub(crate) fn is_in_scope() -> bool {
    SCOPES.with_borrow(|scopes| !scopes.is_empty())
}

fn enter<R>(ambient: Ambient, f: impl FnOnce() -> R) -> R {
    within(&SCOPES, Arc::new(ambient), f).0
}

impl Fp8Config {
    /// The configuration that a product on this thread would use now.
    pub fn current() -> Self {
        current().config
    }

    /// Makes this the configuration of every thread that is not inside a scope, until it is set anew. A default policy stays, but
    /// for its key `m`, which this overrides.
    ///
    /// # Panics
    /// Where the recipe is not valid ([`Recipe::validate`](crate::Recipe::validate)).
    pub fn set_default(self) {
        let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
        let ambient = Arc::new(Ambient::new(self, None));
        *default = Default { config: self, ambient };
    }

    /// Puts something on top of the configuration that [`set_default`](Self::set_default) has set, until either is set anew.
    ///
    /// # Panics
    /// As [`set_default`](Self::set_default).
    pub fn change_default(change: impl FnOnce(Self) -> Self) {
        let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
        default.ambient = Arc::new(Ambient::new(change(default.config), None));
    }

    /// Runs `f` with this configuration on this thread and returns its result.
    ///
    /// Scopes nest; the innermost one holds, and keeps a policy around it. A scope ends when `f` returns or panics. Threads started inside use the
    /// default. With `Fp8Backend<Autodiff<B>>` the backward pass of a product uses the configuration of its forward pass,
    /// wherever `backward` is called.
    ///
    /// # Panics
    /// Where the recipe is not valid ([`Recipe::validate`](crate::Recipe::validate)).
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        enter(Ambient::new(*self, None), f)
    }

    /// Runs `f` with what `change` makes of the configuration around it, and with the predicate around it ([`scope_where`](Self::scope_where)).
    ///
    /// # Panics
    /// As [`scope`](Self::scope).
    pub fn scope_with<R>(change: impl FnOnce(Self) -> Self, f: impl FnOnce() -> R) -> R {
        let around = current();
        enter(Ambient::new(change(around.config), around.predicate.clone()), f)
    }

    /// As [`scope`](Self::scope), and a product runs in FP8 only where `predicate` takes it as well as the filter.
    ///
    /// With `Fp8Backend<Autodiff<B>>` the predicate is asked for each forward product and decides for its gradients too; with
    /// `Autodiff<Fp8Backend<B>>` it is asked for each product that runs inside the scope. It may be asked twice for one
    /// product, and must answer alike. It is not part of the configuration and never saved.
    ///
    /// # Panics
    /// As [`scope`](Self::scope); and where the predicate panics, the product that it was asked about does.
    pub fn scope_where<R>(
        &self,
        predicate: impl Fn(&ProductInfo) -> bool + Send + Sync + 'static,
        f: impl FnOnce() -> R,
    ) -> R {
        enter(Ambient::new(*self, Some(Arc::new(predicate))), f)
    }
}

/// Runs `f` with FP8 switched off on this thread and returns its result.
///
/// A scope entered inside `f` holds again: the innermost one decides.
pub fn high_precision<R>(f: impl FnOnce() -> R) -> R {
    let config = Fp8Config { enabled: false, ..current().config };
    enter(Ambient::new(config, None), f)
}
