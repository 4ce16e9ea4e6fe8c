//! Products on a device: handle, workspace, stream and cache in one.
#![allow(unsafe_code, reason = "passes device pointers to cuBLASLt")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::algorithm::{AlgorithmInfo, candidates};
use crate::cache::PlanCache;
use crate::call::Pointers;
use crate::capability::Capability;
use crate::context::{PrimaryContext, Workspace};
use crate::descriptor::{Descriptor, Descriptors};
use crate::error::Error;
use crate::library;
use crate::plan::{Plan, plan};
use crate::problem::ScaledMatmul;
use crate::raw::lt::{self, Arguments, HeuristicResult, Lt};
use crate::stream::{Ordering, SideStream};

/// The workspace that cuBLAS recommends for Hopper: 32 MiB (`cublasSetWorkspace`).
pub const WORKSPACE_BYTES: usize = 32 << 20;

/// A workspace that is never allocated, to tell a product without an algorithm from one whose algorithms need more space.
const GENEROUS_WORKSPACE: usize = 1 << 30;

/// FP8 products in one CUDA context.
///
/// Holds a cuBLASLt handle, a workspace, a stream of its own, and the algorithms found so far. Products run one after the other on that
/// stream, so one workspace serves all. May be used from any thread on which the context is current; calls take turns.
#[derive(Debug)]
pub struct CublasLt {
    // Dropped in this order: what is used by pending work after what waits for it.
    cache: Mutex<PlanCache<Prepared>>,
    handle: Handle,
    stream: SideStream,
    workspace: Workspace,
    capability: Capability,
    context: Arc<PrimaryContext>,
}

/// What has been found for a product.
#[derive(Debug)]
enum Prepared {
    Ready(Box<Ready>),
    /// Broken rules and missing algorithms do not go away: they are found once.
    Impossible(Error),
}

#[derive(Debug)]
struct Ready {
    plan: Plan,
    descriptors: Descriptors,
    algorithm: lt::Algorithm,
    info: AlgorithmInfo,
}

/// How a product was enqueued, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What runs it.
    pub algorithm: AlgorithmInfo,
    /// How it is ordered with the other streams of the context.
    pub ordering: Ordering,
}

impl CublasLt {
    /// For the context that is current to the calling thread, with a workspace of [`WORKSPACE_BYTES`]. Keep it: making one allocates
    /// and loads.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where FP8 products cannot run, [`Error::Context`] where no primary context is current,
    /// [`Error::Driver`] where memory is short.
    pub fn current() -> Result<Self, Error> {
        Self::with_workspace(WORKSPACE_BYTES)
    }

    /// The same with a workspace of `bytes`, which may be 0. Algorithms that need more are not chosen.
    ///
    /// # Errors
    ///
    /// As [`current`](Self::current).
    pub fn with_workspace(bytes: usize) -> Result<Self, Error> {
        let context = PrimaryContext::current()?;
        let capability = Capability::of_device(context.driver(), context.device())?;
        let lt = library::cublaslt()?;
        Ok(Self {
            cache: Mutex::default(),
            handle: Handle { lt, raw: lt.create()?, context: Arc::clone(&context) },
            stream: SideStream::new(Arc::clone(&context))?,
            workspace: Workspace::new(Arc::clone(&context), bytes)?,
            capability,
            context,
        })
    }

    /// The same, ordered as drivers older than CUDA 12.5 have to. For tests: elsewhere that path would run on such a driver only.
    #[doc(hidden)]
    #[must_use]
    pub fn synchronizing(mut self) -> Self {
        self.stream.synchronize_always();
        self
    }

    /// Device and libraries.
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// How products are ordered with the other streams of the context.
    pub fn ordering(&self) -> Ordering {
        self.stream.ordering()
    }

    /// Hits and misses of the cache so far.
    pub fn cache_statistics(&self) -> (u64, u64) {
        let cache = self.lock();
        (cache.hits(), cache.misses())
    }

    /// Plans a product and asks the heuristics for an algorithm, once; later calls find both in the cache.
    ///
    /// # Errors
    ///
    /// [`Error::Plan`] names the rule that is broken; [`Error::NoAlgorithm`] and [`Error::Workspace`] say that cuBLASLt has none, or
    /// none that fits; these are kept, too. [`Error::Context`] where another context is current.
    pub fn prepare(&self, problem: &ScaledMatmul) -> Result<AlgorithmInfo, Error> {
        self.context.check_current()?;
        Ok(self.ready(&mut self.lock(), problem)?.info)
    }

    /// How many algorithms the heuristics name for a plan that may break rules, or their status. For tests of the rules.
    ///
    /// # Errors
    ///
    /// [`Error::CublasLt`] for a status that does not mean that there is none.
    #[doc(hidden)]
    pub fn ask(&self, plan: &Plan) -> Result<Result<usize, i32>, Error> {
        self.context.check_current()?;
        let descriptors = Descriptors::build(self.handle.lt, plan)?;
        let (found, status) = self.heuristics(plan, &descriptors, self.workspace.raw().1, 1)?;
        Ok(if status == 0 { Ok(found.len()) } else { Err(status) })
    }

    /// Enqueues `D = scale_D · act(alpha · (scale_A · A)(scale_B · B)ᵀ + beta · C + bias)` after everything submitted to the context
    /// before, and everything submitted later after it. When the host waits is said at [`Ordering`].
    ///
    /// cuBLASLt multiplies the f32 accumulators by alpha and both scales; its documentation does not say in which order. Where the product
    /// of the three is not a normal f32 a result may overflow or vanish although it could be represented: pass 1 for one scale and
    /// multiply D by it afterwards.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare); [`Error::Call`] where a pointer is missing, not wanted or not aligned as the product promises, or beta
    /// comes without C. Nothing has been enqueued then.
    ///
    /// # Safety
    ///
    /// Every address names device memory, accessible from this context, that covers what `problem` describes (matrices with their
    /// leading dimensions and strides, as many scales as [`Scales`](crate::Scales) says) and holds initialized data where it is read. Outputs
    /// overlap nothing else of the call, except D where it is C. All of it stays allocated until work that is submitted to the
    /// context after this call has run; memory that a stream-ordered allocator reuses in that order is fine.
    pub unsafe fn run(
        &self,
        problem: &ScaledMatmul,
        pointers: &Pointers,
        alpha: f32,
        beta: f32,
    ) -> Result<Launch, Error> {
        self.context.check_current()?;
        pointers.check(problem, beta)?;
        let mut cache = self.lock();
        let ready = self.ready(&mut cache, problem)?;
        ready.descriptors.set_pointers(&ready.plan, pointers)?;
        let arguments = Arguments {
            desc: ready.descriptors.desc.raw(),
            layouts: ready.descriptors.raw_layouts(),
            // Swapped: cuBLASLt's A is our B.
            pointers: [pointers.b, pointers.a, pointers.c, pointers.d],
            alpha,
            beta,
            workspace: self.workspace.raw(),
            stream: self.stream.raw(),
        };
        let launch = Launch { algorithm: ready.info, ordering: self.ordering() };
        self.stream.after_context()?;
        // SAFETY: handle and descriptors are ours; the algorithm was found for them on this device, whose context is current; the
        // caller vouches for the addresses; the workspace is ours and used on this stream alone.
        let ran = unsafe { self.handle.lt.matmul(self.handle.raw, &arguments, &ready.algorithm) };
        // Also after a failure: part of a product that cuBLASLt splits may have been enqueued.
        self.stream.before_context()?;
        ran?;
        Ok(launch)
    }

    fn lock(&self) -> MutexGuard<'_, PlanCache<Prepared>> {
        // Entries are whole at any time: a panic elsewhere does not spoil them.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready<'a>(
        &self,
        cache: &'a mut PlanCache<Prepared>,
        problem: &ScaledMatmul,
    ) -> Result<&'a mut Ready, Error> {
        let prepared = cache.get_or_try_insert(problem, || match self.find(problem) {
            Ok(ready) => Ok(Prepared::Ready(Box::new(ready))),
            Err(error @ (Error::Plan(_) | Error::NoAlgorithm { .. } | Error::Workspace { .. })) => {
                Ok(Prepared::Impossible(error))
            }
            Err(error) => Err(error),
        })?;
        match prepared {
            Prepared::Ready(ready) => Ok(ready),
            Prepared::Impossible(error) => Err(error.clone()),
        }
    }

    fn find(&self, problem: &ScaledMatmul) -> Result<Ready, Error> {
        let available = self.workspace.raw().1;
        let Capability { compute, library, .. } = self.capability;
        let lt = self.handle.lt;
        let plan = plan(problem, &self.capability)?;
        let descriptors = Descriptors::build(lt, &plan)?;
        let shape = problem.shape;
        let (found, status) = self.heuristics(&plan, &descriptors, available, 1)?;
        if let Some(best) = found.first() {
            let info = AlgorithmInfo::read(lt, best)?;
            return Ok(Ready { plan, descriptors, algorithm: best.algorithm, info });
        }
        let (larger, _) = self.heuristics(&plan, &descriptors, GENEROUS_WORKSPACE, 16)?;
        Err(match larger.iter().map(|result| result.workspace).min() {
            Some(needed) => Error::Workspace { shape, available, needed },
            None => Error::NoAlgorithm { shape, compute, library, status, hint: plan.gap },
        })
    }

    fn heuristics(
        &self,
        plan: &Plan,
        descriptors: &Descriptors,
        workspace: usize,
        count: usize,
    ) -> Result<(Vec<HeuristicResult>, i32), Error> {
        let lt = self.handle.lt;
        let preference = Descriptor::preference(lt, plan, workspace)?;
        let layouts = descriptors.raw_layouts();
        // SAFETY: all handles are alive for the call, and the callers checked that the context is current.
        let answer = unsafe {
            lt.heuristics(self.handle.raw, descriptors.desc.raw(), layouts, preference.raw(), count)
        };
        Ok(candidates(answer, workspace)?)
    }
}

/// A cuBLASLt handle, destroyed with its owner.
#[derive(Debug)]
struct Handle {
    lt: &'static Lt,
    raw: lt::Handle,
    context: Arc<PrimaryContext>,
}

// SAFETY: "the library is thread-safe and its functions can be called from multiple host threads, even with the same handle"
// (cuBLAS documentation, "Thread Safety").
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.enter(|_| {
            // SAFETY: made by cublasLtCreate, destroyed once; it waits for the device.
            let _ = unsafe { self.lt.cublasLtDestroy(self.raw) };
        });
    }
}
