//! What ran where.

mod product;
mod trace;

pub use product::{Fallback, HighPrecision, OperandReport, ProductReport, Ran};
pub(crate) use trace::{Pending, PendingOperand, PendingRan, is_tracing, record};
pub use trace::{Report, trace};
