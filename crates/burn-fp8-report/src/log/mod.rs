//! The log: JSON, one object a line. The first line is a [`Header`], every other one a [`SiteEntry`].

mod entry;
mod file;
pub mod peers;

pub use entry::{Header, MAX_TEXT, Operands, Products, Shape, SiteEntry, VERSION};
pub use file::{LogError, Writer, read};
