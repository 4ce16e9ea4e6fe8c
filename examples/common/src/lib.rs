//! What the example programs share: the command line, the choice of a backend, what they print, draw and write, and where results come from.

mod args;
mod backend;
#[cfg(feature = "charts")]
pub mod charts;
mod layer;
mod origin;
mod output;
#[cfg(feature = "testing")]
pub mod testing;

pub use args::{main, once};
pub use backend::{BackendName, OnBackend};
pub use layer::Layer;
pub use origin::Origin;
pub use output::{check_place, print, table, write, write_json};
