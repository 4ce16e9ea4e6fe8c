//! What ran where.

mod product;
mod trace;

pub use product::{HighPrecision, OperandReport, ProductReport, Ran};
pub(crate) use trace::{Pending, record};
pub use trace::{Report, trace};
