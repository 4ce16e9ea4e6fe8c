//! The place of a product under delayed scaling.

use core::fmt;

/// The place of a product under delayed scaling, as a report shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// How many tracked products came before this one in its step.
    pub index: usize,
    /// Whether its histories could be used.
    pub status: SiteStatus,
}

/// Whether the histories of a site could be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteStatus {
    /// They belong to a product of this K and N.
    Known,
    /// No product has been at this place before: current scaling.
    New,
    /// The product before at this place had another K or N: current scaling, and new histories.
    Mismatch,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            SiteStatus::Known => write!(f, "site {}", self.index),
            SiteStatus::New => write!(f, "site {} (new)", self.index),
            SiteStatus::Mismatch => write!(f, "site {} (other K×N than before: reset)", self.index),
        }
    }
}
