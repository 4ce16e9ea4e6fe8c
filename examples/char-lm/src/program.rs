//! The program's name.

/// As cargo and command lines call it.
pub const PROGRAM: &str = env!("CARGO_PKG_NAME");
