//! Recording products while a closure runs.

use core::fmt;
use std::cell::{Cell, RefCell};

use burn_fp8_core::{Fp8Format, Gemm, GemmRole, ProductKind};
use comfy_table::{CellAlignment, Table, presets};

use super::{HighPrecision, OperandReport, ProductReport, Ran};

/// Every product that a traced closure registered, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The products.
    pub products: Vec<ProductReport>,
}

impl Report {
    /// The products that ran in FP8.
    pub fn fp8(&self) -> impl Iterator<Item = &ProductReport> {
        self.products.iter().filter(|product| !matches!(product.ran, Ran::HighPrecision(_)))
    }

    /// The products that did not run in FP8, with the reason.
    pub fn high_precision(&self) -> impl Iterator<Item = (&ProductReport, HighPrecision)> {
        self.products.iter().filter_map(|product| match product.ran {
            Ran::HighPrecision(reason) => Some((product, reason)),
            _ => None,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["#", "operation", "role", "batch × M×N×K", "left", "right", "ran"]);
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
                operand(product.lhs),
                operand(product.rhs),
                product.ran.to_string(),
            ]);
        }
        for column in [0, 3] {
            table
                .column_mut(column)
                .expect("seven columns")
                .set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{}", table.trim_fmt())?;
        write!(f, "{} of {} products in FP8", self.fp8().count(), self.products.len())
    }
}

/// Reads a scale from where it lies, on the device perhaps.
type ReadScale = Box<dyn FnOnce() -> f32>;

/// A product whose scales have not been read yet.
pub(crate) struct Pending {
    pub(crate) kind: ProductKind,
    pub(crate) role: GemmRole,
    pub(crate) gemm: Gemm,
    pub(crate) operands: Option<[(Fp8Format, ReadScale); 2]>,
    pub(crate) ran: Ran,
}

impl Pending {
    fn resolve(self) -> ProductReport {
        let Self { kind, role, gemm, operands, ran } = self;
        let resolve =
            |(format, read): (Fp8Format, ReadScale)| OperandReport { format, scale: read() };
        let (lhs, rhs) = match operands {
            Some([lhs, rhs]) => (Some(resolve(lhs)), Some(resolve(rhs))),
            None => (None, None),
        };
        ProductReport { kind, role, gemm, lhs, rhs, ran }
    }
}

enum Entry {
    Pending(Pending),
    Resolved(ProductReport),
}

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    static ENTRIES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// Records a product where a trace is running; `pending` is called only then.
pub(crate) fn record(pending: impl FnOnce() -> Pending) {
    if DEPTH.get() > 0 {
        let pending = pending();
        ENTRIES.with_borrow_mut(|entries| entries.push(Entry::Pending(pending)));
    }
}

/// Ends a trace when dropped, so also when the traced closure panics: the outermost one forgets what is left.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            ENTRIES.with_borrow_mut(Vec::clear);
        }
    }
}

/// Runs `f` and returns its result with a report of every matrix product that it ran on this thread through
/// [`Fp8Backend`](crate::Fp8Backend), forward and backward.
///
/// Scales are read from the device after `f` has ended. Traces nest: an outer report holds what inner ones saw. With
/// `Fp8Backend<Autodiff<B>>` the gradient products of a product that did not run in FP8 are Autodiff's own and do not
/// appear.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::Tensor;
/// use burn_fp8::{Fp8Backend, trace};
///
/// type B = Fp8Backend<Flex>;
/// let x = Tensor::<B, 2>::ones([16, 32], &Default::default());
/// let (y, report) = trace(|| x.clone().matmul(x.transpose()));
/// assert_eq!(y.dims(), [16, 16]);
/// assert_eq!(report.fp8().count(), 1);
/// println!("{report}");
/// ```
pub fn trace<R>(f: impl FnOnce() -> R) -> (R, Report) {
    let start = ENTRIES.with_borrow(Vec::len);
    DEPTH.set(DEPTH.get() + 1);
    let leave = Leave;
    let result = f();
    let entries = ENTRIES.with_borrow_mut(|entries| entries.split_off(start));
    let products: Vec<_> = entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Pending(pending) => pending.resolve(),
            Entry::Resolved(product) => product,
        })
        .collect();
    if DEPTH.get() > 1 {
        ENTRIES.with_borrow_mut(|entries| {
            entries.extend(products.iter().cloned().map(Entry::Resolved))
        });
    }
    drop(leave);
    (result, Report { products })
}
