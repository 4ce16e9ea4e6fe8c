//! What the example programs share: the command line, the choice of a backend, what they print and write, and where results come from.

mod args;
mod backend;
pub mod committed;
mod origin;
mod output;

pub use args::{once, parse};
pub use backend::{BackendName, OnBackend};
pub use origin::Origin;
pub use output::{end, print, write, write_json};
