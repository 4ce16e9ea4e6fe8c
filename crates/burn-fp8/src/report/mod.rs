//! What ran where.

mod product;
mod trace;

pub use product::{HighPrecision, OperandReport, ProductReport, Ran};
pub use trace::{Report, trace};
pub(crate) use trace::{Pending, record};
