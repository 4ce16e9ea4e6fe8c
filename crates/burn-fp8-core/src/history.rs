//! Amax histories: what delayed scaling remembers of a tensor.

use serde::{Deserialize, Serialize};

use crate::{AmaxChoice, Recipe};

/// The amaxes of the last steps, in the order of Flax's `fp8_ops`: index 0 is the newest, index 1 the oldest, the last one that
/// of the step before the newest. An update rotates the entries by one to the left and overwrites index 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f32>", into = "Vec<f32>")]
pub struct AmaxHistory {
    entries: Vec<f32>,
}

impl TryFrom<Vec<f32>> for AmaxHistory {
    type Error = &'static str;

    fn try_from(entries: Vec<f32>) -> Result<Self, Self::Error> {
        Self::from_entries(entries).ok_or(
            "an amax history is empty, too long, or holds something that is no finite magnitude",
        )
    }
}

impl From<AmaxHistory> for Vec<f32> {
    fn from(history: AmaxHistory) -> Self {
        history.entries
    }
}

impl AmaxHistory {
    /// A history of `length` steps, at least 1, that has seen nothing: all zeros.
    pub fn new(length: usize) -> Self {
        Self { entries: vec![0.0; length.max(1)] }
    }

    /// A history with these entries, `None` where there are none, more than [`Recipe::MAX_HISTORY_LENGTH`], or one is negative
    /// or not finite.
    pub fn from_entries(entries: Vec<f32>) -> Option<Self> {
        let valid = |amax: &f32| amax.is_finite() && *amax >= 0.0;
        let length = 1..=Recipe::MAX_HISTORY_LENGTH;
        (length.contains(&entries.len()) && entries.iter().all(valid)).then_some(Self { entries })
    }

    /// The entries, the newest first; see the type for the order of the others.
    pub fn entries(&self) -> &[f32] {
        &self.entries
    }

    /// The amax that counts; 0 where the history has seen nothing but zeros.
    pub fn amax(&self, choice: AmaxChoice) -> f32 {
        match choice {
            AmaxChoice::Maximum => self.entries.iter().copied().fold(0.0, f32::max),
            AmaxChoice::MostRecent => self.entries[0],
        }
    }

    /// The same history with room for `length` steps, at least 1: the newest are kept, and what is missing has seen nothing.
    pub fn resized(&self, length: usize) -> Self {
        let Some((newest, older)) = self.entries.split_first() else { return Self::new(length) };
        let mut resized = Self::new(length);
        let kept = older.len().min(resized.entries.len() - 1);
        resized.entries[0] = *newest;
        let start = resized.entries.len() - kept;
        resized.entries[start..].copy_from_slice(&older[older.len() - kept..]);
        resized
    }

    /// Enters the amax of a step; the oldest one is forgotten.
    pub fn push(&mut self, amax: f32) {
        debug_assert!(amax.is_finite() && amax >= 0.0, "amax = {amax} is not a finite magnitude");
        self.entries.rotate_left(1);
        self.entries[0] = amax;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_amax_is_forgotten() {
        let mut history = AmaxHistory::new(3);
        for (amax, maximum) in
            [(5.0, 5.0), (2.0, 5.0), (3.0, 5.0), (1.0, 3.0), (0.5, 3.0), (0.0, 1.0)]
        {
            history.push(amax);
            assert_eq!(history.amax(AmaxChoice::Maximum), maximum);
            assert_eq!(history.amax(AmaxChoice::MostRecent), amax);
        }
        // Newest, oldest, the one between.
        assert_eq!(history.entries(), [0.0, 1.0, 0.5]);
    }

    #[test]
    fn resizing_keeps_the_newest() {
        let pushed = |length, amaxes: &[f32]| {
            let mut history = AmaxHistory::new(length);
            amaxes.iter().for_each(|amax| history.push(*amax));
            history
        };
        let amaxes = [1.0, 2.0, 3.0, 4.0, 5.0];
        for from in 1..7 {
            for to in 1..7 {
                let kept = amaxes.len() - amaxes.len().min(from).min(to);
                let expected = pushed(to, &amaxes[kept..]);
                assert_eq!(pushed(from, &amaxes).resized(to), expected, "{from} to {to}");
            }
        }
    }

    #[test]
    fn what_is_no_magnitude_is_refused() {
        for entries in [vec![], vec![1.0, -1.0], vec![f32::NAN], vec![f32::INFINITY]] {
            assert_eq!(AmaxHistory::from_entries(entries), None);
        }
        assert!(AmaxHistory::from_entries(vec![0.0, f32::MAX]).is_some());
    }
}
