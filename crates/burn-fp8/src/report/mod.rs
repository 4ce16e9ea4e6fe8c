//! What ran where.

mod product;
mod trace;

pub use product::{HighPrecision, OperandReport, ProductReport, Ran};
pub(crate) use trace::{Pending, PendingOperand, is_tracing, record};
pub use trace::{Report, trace};
