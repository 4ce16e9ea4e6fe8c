//! The state of delayed scaling in the decorator: amax histories of the products of a model that knows nothing of them.
//!
//! ```text
//! forward:  state.next_site()  → scales from the site's histories, amaxes measured on the way, kept in the graph
//! backward: site.deposit()     → the amaxes of the products that the graph reached, combined by maximum
//! end of the step: commit      → one entry in each history that received something
//!
//! Nothing that a step does is seen by others before it is committed: a step that is given up leaves no trace.
//! ```

mod record;
mod scope;
mod site;
mod site_use;
mod slot;
mod state;
mod step;
mod thread;
mod weight;

pub use record::{DelayedRecord, SiteRecord};
pub(crate) use site_use::SiteUse;
pub use state::DelayedState;
pub(crate) use thread::{backward, current};
pub(crate) use weight::WeightKey;
