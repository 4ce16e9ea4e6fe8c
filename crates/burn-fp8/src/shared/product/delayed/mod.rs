//! Delayed scaling in the decorator: amax histories of the products of a model that knows nothing of them.
//!
//! [`DelayedState`] holds the histories, [`DelayedRecord`] is what it holds as data, for files and for records of optimizers.

mod place;
mod record;
mod scope;
mod site;
mod site_use;
mod slot;
mod state;
mod step;
mod thread;
mod weight;

pub use record::{DelayedRecord, KnownBy, SiteRecord};
pub(crate) use site_use::SiteUse;
pub use state::DelayedState;
pub(crate) use thread::{backward, current};
pub(crate) use weight::WeightKey;
