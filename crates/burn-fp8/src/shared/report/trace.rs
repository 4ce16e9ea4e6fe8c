//! Recording products while a closure runs.

use core::fmt;
use std::cell::RefCell;

use burn_backend::{Backend, tensor::FloatTensor, tensor::IntTensor};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Granularity, ProductKind};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::product::{Epilogue, HighPrecision, Implementation, OperandReport, ProductReport, Site};
use crate::config;
use crate::config::scope::within;
use crate::engine::{LaunchNote, Scalar, Scales, take_refusal};

/// Every product that a traced closure registered, in order. Printed, it is a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The products.
    pub products: Vec<ProductReport>,
    /// What they do not show, a sentence each: that no attention was found where the configuration asks for it as one operation.
    pub notes: Vec<&'static str>,
}

/// [`Fp8Config::saved`](crate::Fp8Config::saved) is FP8 where nothing is saved so.
const SAVED_WHOLE: &str = "note: what backward passes of Burn's operations take is kept as it is, though the configuration asks for FP8: that takes Flex, and `with_fused(true)`";

/// [`Fp8Config::attention`](crate::Fp8Config::attention) is set, and nothing was there that it applies to.
const NO_ATTENTION: &str = "note: no attention was found, which the configuration asks for as one operation: code that multiplies queries by keys with \
    `matmul` is left as it is. Call `burn::tensor::module::attention` there, or take `nn::Fp8Attention`, which loads records of Burn's `MultiHeadAttention`";

impl Report {
    /// The report as indented JSON: what `serde` makes of it.
    ///
    /// `notes` has the [notes](Self::notes), and `products` an object for each product:
    ///
    /// | field | value |
    /// |---|---|
    /// | `kind` | `linear`, `matmul`, `attention`, `scaled_matmul`, `convolution` |
    /// | `role` | `output`, `grad_input`, `grad_weight` |
    /// | `gemm` | `batch`, `m`, `n`, `k`: numbers of products and of elements; `plain_operand`: whether one operand is a plain matrix |
    /// | `lhs`, `rhs` | `null` in high precision and in attention as one operation; else `format` (`e4m3`, `e5m2`), `granularity` as in the JSON of a [`Recipe`](crate::Recipe), `scale` (the dequantization multiplier, the largest of several; `null` where it is not finite), `saturated` (a number of elements) |
    /// | `epilogue` | `null` but for `scaled_matmul`; there `c`, `bias`, `activation` (`none`, `relu`, `gelu`), `output` (`f32`, `bf16`, `f16`, `e4m3`, `e5m2`), `amax`, `fast_accumulation` |
    /// | `site` | `null` under current scaling; else `index`, from 0, and `status`: `known`, `new`, `moved`, `mismatch` |
    /// | `ran` | `by`: `tensor_cores`, `matrix_unit`, `emulation` or `high_precision`; `kernel`: the algorithm that cuBLASLt chose, the name of the unit, or whose sums were emulated, else `null`; `reason`: why the product was emulated on a device that runs others natively, what is not known of such sums, or why it was not in FP8, else `null` |
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers, booleans and texts always serialize")
    }

    /// The products that ran in FP8.
    pub fn fp8(&self) -> impl Iterator<Item = &ProductReport> {
        self.products
            .iter()
            .filter(|product| !matches!(product.ran, Implementation::HighPrecision(_)))
    }

    /// The products that did not run in FP8, with the reason.
    pub fn high_precision(&self) -> impl Iterator<Item = (&ProductReport, HighPrecision)> {
        self.products.iter().filter_map(|product| match product.ran {
            Implementation::HighPrecision(reason) => Some((product, reason)),
            _ => None,
        })
    }

    /// The share of FLOPs, two for each multiplication, that the products in FP8 have of those of all products here; `None` where there are none. Products that the trace
    /// does not see are not counted: see [`trace`](trace()).
    pub fn share_in_fp8(&self) -> Option<f64> {
        self.share(self.fp8().map(|product| product.gemm.flops()).sum())
    }

    fn flops(&self) -> u128 {
        self.products.iter().map(|product| product.gemm.flops()).sum()
    }

    fn share(&self, flops: u128) -> Option<f64> {
        match self.flops() {
            0 => None,
            all => Some(flops as f64 / all as f64),
        }
    }

    /// Adds what has been seen after this.
    #[allow(
        dead_code,
        reason = "a device that runs elsewhere is told of its products one by one; not every crate has one"
    )]
    pub(crate) fn add(&mut self, later: Self) {
        self.products.extend(later.products);
        let has = |note| self.notes.contains(&note) || later.notes.contains(&note);
        self.settle(has(NO_ATTENTION), has(SAVED_WHOLE));
    }

    /// Notes what is missing, where attention was wanted; and what was kept as it is.
    fn settle(&mut self, wants_attention: bool, saved_whole: bool) {
        let has = |is: &dyn Fn(&ProductReport) -> bool| self.products.iter().any(is);
        let is_there = has(&|product| product.kind == ProductKind::Attention);
        // A model without batches of matrices has nothing that could be attention.
        let may_be =
            has(&|product| product.kind == ProductKind::Matmul && !product.gemm.plain_operand);
        let missing = wants_attention && may_be && !is_there;
        let notes = [(missing, NO_ATTENTION), (saved_whole, SAVED_WHOLE)];
        self.notes = notes.into_iter().filter(|(is, _)| *is).map(|(_, note)| note).collect();
    }
}

/// FLOPs in a unit of which there are not many.
fn shown(flops: u128) -> String {
    let (mut value, mut units) = (flops as f64, ["k", "M", "G", "T"].iter());
    let mut unit = "";
    while value >= 1e3
        && let Some(larger) = units.next()
    {
        (value, unit) = (value / 1e3, larger);
    }
    format!("{value:.1} {unit}FLOPs")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header([
            "#",
            "operation",
            "role",
            "batch × M×N×K",
            "FLOPs",
            "left",
            "right",
            "ran",
        ]);
        let percent = |share: Option<f64>| {
            share.map_or("–".into(), |share| format!("{:.1}%", 100.0 * share))
        };
        let ran = |product: &ProductReport| match product.site {
            Some(site) => format!("{}, {site}", product.ran),
            None => product.ran.to_string(),
        };
        let operand = |operand: Option<OperandReport>| match operand {
            Some(operand) => operand.to_string(),
            None => "–".into(),
        };
        for (index, product) in self.products.iter().enumerate() {
            table.add_row([
                (index + 1).to_string(),
                product.kind.to_string(),
                product.role.to_string(),
                product.gemm.to_string(),
                percent(self.share(product.gemm.flops())),
                operand(product.lhs),
                operand(product.rhs),
                ran(product),
            ]);
        }
        for column in [0, 3, 4] {
            table
                .column_mut(column)
                .expect("eight columns")
                .set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(
            f,
            "{} of {} products in FP8, {} of {}",
            self.fp8().count(),
            self.products.len(),
            percent(self.share_in_fp8()),
            shown(self.flops()),
        )?;
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}"))
    }
}

/// An operand of which some numbers still lie on the device perhaps.
pub(crate) struct PendingOperand(Box<dyn FnOnce() -> OperandReport>);

impl PendingOperand {
    /// An operand, and how many of its finite elements saturated, where that was counted. Of several scales the largest is reported.
    pub(crate) fn new<B: Backend>(
        format: Fp8Format,
        granularity: Granularity,
        scales: Scales<FloatTensor<B>>,
        saturated: Option<IntTensor<B>>,
    ) -> Self {
        Self(Box::new(move || {
            let scale = match scales {
                Scales::One(scale) => scale.read::<B>(),
                Scales::Grid { scales, .. } => Scalar::Device(B::float_max(scales)).read::<B>(),
            };
            let saturated = saturated.map_or(0, read_count::<B>);
            OperandReport { format, granularity, scale, saturated }
        }))
    }
}

fn read_count<B: Backend>(count: IntTensor<B>) -> usize {
    let data = burn_backend::try_read_sync(B::int_into_data(count))
        .expect("counts are read where blocking on the device is possible")
        .expect("a count can be read from its device");
    data.iter::<i64>().next().map_or(0, |count| count as usize)
}

/// A product whose scales have not been read yet.
pub(crate) struct Pending {
    pub(crate) kind: ProductKind,
    pub(crate) role: GemmRole,
    pub(crate) gemm: Gemm,
    pub(crate) operands: Option<[PendingOperand; 2]>,
    pub(crate) site: Option<Site>,
    pub(crate) ran: PendingRan,
}

/// What ran a product, as soon as it is known.
pub(crate) enum PendingRan {
    Known(Implementation),
    /// Noted when the device is given the product, which may be after the call that registered it has returned.
    Noted {
        note: LaunchNote,
        wait: Box<dyn FnOnce()>,
    },
}

impl PendingRan {
    /// What a device notes when it is given a product.
    pub(crate) fn noted<B: Backend>(note: &LaunchNote, device: B::Device) -> Self {
        let wait = move || {
            // An error of the device shows where its results are read.
            let _ = B::sync(&device);
        };
        Self::Noted { note: note.clone(), wait: Box::new(wait) }
    }

    fn resolve(self) -> Implementation {
        match self {
            Self::Known(ran) => ran,
            Self::Noted { note, wait } => {
                if note.get().is_none() {
                    wait();
                }
                match note.get() {
                    Some(Ok(launched)) => launched.clone().into(),
                    Some(Err(refused)) => {
                        // Told here.
                        let _ = take_refusal();
                        panic!("{refused}");
                    }
                    None => panic!(
                        "the device did not run a traced FP8 product: an operation before it failed, see its message on standard error"
                    ),
                }
            }
        }
    }
}

impl Pending {
    fn resolve(self, epilogue: Option<Epilogue>) -> ProductReport {
        let Self { kind, role, gemm, operands, site, ran } = self;
        let [lhs, rhs] = match operands {
            Some(operands) => operands.map(|PendingOperand(read)| Some(read())),
            None => [None, None],
        };
        ProductReport { kind, role, gemm, lhs, rhs, epilogue, site, ran: ran.resolve() }
    }
}

enum Entry {
    Pending(Pending, Option<Epilogue>),
    Resolved(ProductReport),
}

/// What a trace has been told.
#[derive(Default)]
struct Told {
    entries: Vec<Entry>,
    /// Whether a product was recorded where the configuration asks for attention as one operation.
    wants_attention: bool,
    /// Whether something was asked to be saved in FP8, and was not.
    saved_whole: bool,
}

thread_local! {
    /// The traces that run on this thread, the innermost one last.
    static TRACES: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

/// Whether a trace is running on this thread.
pub(crate) fn is_tracing() -> bool {
    TRACES.with_borrow(|traces| !traces.is_empty())
}

/// Where a product is to leave what ran it, while a trace runs.
pub(crate) fn new_note() -> Option<LaunchNote> {
    is_tracing().then(LaunchNote::default)
}

/// Notes that what backward passes take is kept as it is, where a trace is running.
pub(crate) fn note_saved_whole() {
    TRACES.with_borrow_mut(|traces| {
        if let Some(trace) = traces.last_mut() {
            trace.saved_whole = true;
        }
    });
}

/// Records a product where a trace is running; `pending` is called only then.
pub(crate) fn record(pending: impl FnOnce() -> Pending) {
    record_with_epilogue(None, pending);
}

/// Records a product with what was made of its sums.
pub(crate) fn record_with_epilogue(epilogue: Option<Epilogue>, pending: impl FnOnce() -> Pending) {
    if is_tracing() {
        let entry = Entry::Pending(pending(), epilogue);
        add([entry], config::current().config.attention.is_some());
    }
}

/// Adds to the innermost trace, where there is one.
fn add(entries: impl IntoIterator<Item = Entry>, wants_attention: bool) {
    TRACES.with_borrow_mut(|traces| {
        if let Some(trace) = traces.last_mut() {
            trace.entries.extend(entries);
            trace.wants_attention |= wants_attention;
        }
    });
}

/// Records a product that the backend runs by itself.
pub(crate) fn record_high_precision(
    kind: ProductKind,
    role: GemmRole,
    gemm: Gemm,
    reason: HighPrecision,
) {
    let ran = PendingRan::Known(Implementation::HighPrecision(reason));
    record(|| Pending { kind, role, gemm, operands: None, site: None, ran });
}

/// Tells the trace of a product that an operation of your own makes, one that Burn does not have: the decorator does not see it. It is listed in high precision, as a
/// product of two tensors.
///
/// ```
/// use burn_fp8::report::{HighPrecision, own_product};
/// use burn_fp8::{Gemm, GemmRole, trace};
///
/// let (_, report) = trace(|| own_product(GemmRole::Output, Gemm::matrix(16, 32, 64)));
/// assert_eq!(report.products[0].gemm.flops(), 2 * 16 * 32 * 64);
/// assert_eq!(report.high_precision().next().unwrap().1, HighPrecision::Own);
/// ```
pub fn own_product(role: GemmRole, gemm: Gemm) {
    record_high_precision(ProductKind::Matmul, role, gemm, HighPrecision::Own);
}

/// Runs `f` and returns its result with a report of every matrix product that it ran on this thread through
/// `Fp8Backend`, forward and backward, and of every convolution as the products that it comes to.
///
/// Scales are read from the device after `f` has ended. Traces nest: an outer report holds what inner ones saw. With
/// `Fp8Backend<Autodiff<B>>` the gradient products of a product that did not run in FP8, and of a convolution, are Autodiff's own and do not
/// appear. Nor do products of integers.
///
/// # Panics
/// Where `f` does; and, after `f` has ended, where the device refused a product that had to run natively, or did not run a product at all
/// because an operation before it failed.
///
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/trace.md"))]
pub fn trace<R>(f: impl FnOnce() -> R) -> (R, Report) {
    let (result, told) = within(&TRACES, Told::default(), f);
    let products: Vec<_> = told
        .entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Pending(pending, epilogue) => pending.resolve(epilogue),
            Entry::Resolved(product) => product,
        })
        .collect();
    if is_tracing() {
        add(products.iter().cloned().map(Entry::Resolved), told.wants_attention);
        if told.saved_whole {
            note_saved_whole();
        }
    }
    let mut report = Report { products, notes: vec![] };
    report.settle(told.wants_attention, told.saved_whole);
    (result, report)
}
