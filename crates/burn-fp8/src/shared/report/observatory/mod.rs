//! The observatory: how well FP8 fits, sampled while a model trains.

#[cfg(feature = "train")]
pub mod metric;
mod options;
mod read;
mod tap;
mod thread;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_fp8_core::peers::SharedPeers;
use burn_fp8_report::Observations;
use burn_fp8_report::log::{self, Header, LogError, SiteEntry, VERSION, Writer};

pub use options::ObservatoryOptions;
pub(crate) use tap::{Quantization, Tap};
pub use thread::named;
pub(crate) use thread::observe;

use crate::Fp8Error;

/// Watches how well FP8 fits a model: every N-th training step it samples the operands of every FP8 product, and measures
///
/// - for each operand: amax, scale, shares of elements flushed to zero, saturated and not finite, SQNR, exponent histogram;
/// - for each of the three products: the SQNR of its result against the product of the operands in high precision, and the SQNR
///   that row-wise scales, other formats or current scaling would have given it;
/// - for each card that is asked about ([`ObservatoryOptions::sums`]), what its tensor cores lose while they accumulate, fast and split:
///   the SQNR of their sum of the very codes against the exact one. Not of products with scales of blocks.
///
/// A handle: clones watch together. Products are observed in the order in which they are registered on the thread that runs
/// [`step`](Self::step), so a step has to make the same products each time; [`named`] gives them names.
///
/// # Cost
/// Steps that are not sampled, and products outside of a step, cost a read of a thread-local. On a sampled step each operand is
/// read back in f32, at most `4 × max_elements` bytes, with its scale and amax and, where that is not all of it, the amax of each row
/// and column taken: up to five reads, each of which waits for the device. The device passes over whole rows and columns for these
/// amaxes, and over the whole tensor for an amax that nobody has measured. The host quantizes these elements once, then up to 32 lines of each operand up to
/// five times for each product, and forms up to 32 × 32 sums of their products six times; where cards are asked about once more, and twice as
/// each of them does. It holds input and weight of a site until its backward pass, or the step, has ended: `8 × max_elements` bytes at most.
///
/// Where an operand has more than `max_elements` elements, rows and columns are left out, evenly, the same ones of all three
/// operands. Sums then have fewer terms than those of the model, and where terms agree in sign the SQNR measured is lower than
/// that of the whole sum. What tensor cores lose grows with the terms: of fewer, it is a lower bound. Scales and amaxes, also those of rows, are those of whole tensors. Of a batched product one pair of
/// matrices is sampled.
///
/// # What is seen
/// Products of `Fp8Backend` in FP8, and those of the FP8 layers of [`nn`](crate::nn), with their scales as
/// they are before bf16 or f16 rounds them; not those of frozen layers, nor `scaled_matmul`. With
/// `Autodiff<Fp8Backend<B>>` products of the backward pass are sites of their own. Rounding of the result is not measured.
///
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/observatory.md"))]
#[derive(Clone, Debug)]
pub struct Observatory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ObservatoryOptions,
    /// How many steps have begun.
    steps: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    observations: Observations,
    log: Option<Writer>,
    failure: Option<String>,
    /// Who sees other samples of the same steps.
    peers: Option<SharedPeers>,
    /// Of the last sampled step. Metrics ask for it in every step.
    summary: Option<burn_fp8_report::Summary>,
}

impl Observatory {
    /// An observatory that has seen nothing. Creates its log, if it has one.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where `every` or `max_elements` is 0; [`Fp8Error::Io`] where the log cannot be created, also where it exists.
    pub fn new(options: ObservatoryOptions) -> Result<Self, Fp8Error> {
        options.check()?;
        let header = Header {
            fp8_observatory: VERSION,
            every: options.every,
            max_elements: options.max_elements as u64,
        };
        let log = options.log.as_deref().map(|path| Writer::create(path, &header));
        let log = log.transpose().map_err(|error| log_error(options.log.as_deref(), error))?;
        let observations = Observations::new(header);
        let seen = Seen { observations, log, failure: None, peers: None, summary: None };
        Ok(Self {
            shared: Arc::new(Shared {
                steps: AtomicU64::new(options.first_step),
                options,
                seen: Mutex::new(seen),
            }),
        })
    }

    /// Runs a training step, forward and backward, on this thread. The first is step 0, unless the options say otherwise; steps 0, N,
    /// 2·N, … are sampled.
    ///
    /// Forward passes without a backward pass count as well: leave validation outside. A step that panics leaves nothing behind.
    /// Within a step one of another observatory may be run: its products are its own.
    pub fn step<R>(&self, f: impl FnOnce() -> R) -> R {
        let step = self.shared.steps.fetch_add(1, Ordering::Relaxed);
        if !step.is_multiple_of(self.shared.options.every) {
            return thread::outside(f);
        }
        let (result, entries) = thread::sampled(step, &self.shared.options, f);
        let peers = self.seen().peers.clone().filter(|peers| peers.size() > 1);
        let entries = match peers {
            Some(peers) => self.of_all(&peers, &entries),
            None => entries,
        };
        self.seen().add(step, entries);
        result
    }

    /// Shares what is seen with peers that train the same model on other samples, each with an observatory of its own that samples the same steps: report and log of every one are those of
    /// all, see [`log::peers`].
    ///
    /// # Panics
    /// Later, where a sampled step ends and the peers have lost each other.
    pub fn share(&self, peers: SharedPeers) {
        self.seen().peers = Some(peers);
    }

    fn of_all(&self, peers: &SharedPeers, entries: &[SiteEntry]) -> Vec<SiteEntry> {
        let all = peers.gather(log::peers::to_bytes(entries));
        let all = all.unwrap_or_else(|error| panic!("samples of peers: {error}"));
        let (entries, failure) = match log::peers::merged(&all) {
            Ok(merged) => merged,
            Err(reason) => (vec![], Some(reason)),
        };
        if let Some(reason) = failure {
            self.seen().failure.get_or_insert(format!("left out: {reason}"));
        }
        entries
    }

    /// What was seen so far.
    pub fn report(&self) -> Observations {
        self.seen().observations.clone()
    }

    /// The last sampled step in a few numbers; `None` before there is one.
    pub fn summary(&self) -> Option<burn_fp8_report::Summary> {
        self.seen().summary
    }

    /// What went wrong first, in one line, since [`step`](Self::step) cannot tell: the log could not be written, and ended there; or
    /// something was left out of report and log: a site whose scale is 0 or not finite, one of more sites than anyone would look at,
    /// one of several steps that overlapped on different threads; or no step was observed though a metric of Burn's `Learner` shows them. Training goes on.
    pub fn failure(&self) -> Option<String> {
        self.seen().failure.clone()
    }

    /// Whether a step has begun.
    #[cfg(feature = "train")]
    fn has_begun(&self) -> bool {
        self.shared.steps.load(Ordering::Relaxed) > self.shared.options.first_step
    }

    /// Tells what went wrong; whether that was the first.
    #[cfg(feature = "train")]
    fn fail(&self, failure: &str) -> bool {
        let known = &mut self.seen().failure;
        let is_first = known.is_none();
        known.get_or_insert_with(|| failure.into());
        is_first
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        // Nothing panics while it holds the lock and is halfway through a change.
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// Adds a step to what was seen and to the log.
    fn add(&mut self, step: u64, mut entries: Vec<SiteEntry>) {
        let Self { observations, log, failure, summary, .. } = self;
        if let Some([_, last]) = observations.span
            && last > step
        {
            failure.get_or_insert(format!(
                "step {step} ended after step {last} and was left out; give each thread an observatory of its own"
            ));
            return;
        }
        // The log has what the report has: what the one refuses could not be read from the other.
        entries.retain(|entry| match observations.push(entry.clone()) {
            Ok(()) => true,
            Err(reason) => {
                failure.get_or_insert(format!("left out: {reason}"));
                false
            }
        });
        *summary = observations.summary();
        if let Some(Err(error)) = log.as_mut().map(|log| log.append(&entries)) {
            // It would have a gap.
            *log = None;
            failure.get_or_insert(error.to_string());
        }
    }
}

fn log_error(path: Option<&Path>, error: LogError) -> Fp8Error {
    match error {
        LogError::Io { action, path, reason } => Fp8Error::Io { action, path, reason },
        error => Fp8Error::InvalidState {
            path: path.map(Path::to_path_buf).unwrap_or_default(),
            reason: error.to_string(),
        },
    }
}
