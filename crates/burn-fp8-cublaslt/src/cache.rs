//! Algorithms that were found, by their products.

use std::num::NonZeroUsize;

use lru::LruCache;

use crate::problem::ScaledMatmul;

/// How many products are remembered. A model has a few dozen; one whose M is new each time (sequences that are not padded to some lengths)
/// adds a few each time.
pub const CAPACITY: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// A map from products with their alignments that counts, and forgets what was used longest ago beyond [`CAPACITY`]. Of one device and workspace,
/// which algorithms depend on, too.
///
/// Looking up hashes and compares a few hundred bytes without allocating: well under a microsecond.
#[derive(Debug)]
pub struct PlanCache<V> {
    entries: LruCache<ScaledMatmul, V>,
    hits: u64,
    misses: u64,
}

impl<V> Default for PlanCache<V> {
    fn default() -> Self {
        Self { entries: LruCache::new(CAPACITY), hits: 0, misses: 0 }
    }
}

impl<V> PlanCache<V> {
    /// The entry of `key`, made by `make` if there is none. An error of `make` is returned and not kept.
    ///
    /// # Errors
    ///
    /// What `make` returned.
    pub fn get_or_try_insert<E>(
        &mut self,
        key: &ScaledMatmul,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        let mut found = true;
        let entry = self.entries.try_get_or_insert_mut(*key, || {
            found = false;
            make()
        });
        match found {
            true => self.hits += 1,
            false => self.misses += 1,
        }
        entry
    }

    /// How often an entry was found.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// How often an entry had to be made.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
