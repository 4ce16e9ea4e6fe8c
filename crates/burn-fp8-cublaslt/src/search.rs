//! The timed search among candidates: what is asked, and how the fastest is chosen.

/// How many candidates run, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Algorithms asked of the heuristics.
    pub candidates: usize,
    /// Runs that are timed together, after one that is not.
    pub repetitions: usize,
}

impl Default for Search {
    fn default() -> Self {
        Self { candidates: 8, repetitions: 10 }
    }
}

/// The index of the smallest time, the first of equal ones; `None` stands for a candidate that did not run.
pub(crate) fn fastest(times: &[Option<f32>]) -> Option<(usize, f32)> {
    let ran = times.iter().enumerate().filter_map(|(index, time)| Some((index, (*time)?)));
    ran.filter(|(_, time)| !time.is_nan()).min_by(|(_, a), (_, b)| a.total_cmp(b))
}

#[cfg(test)]
mod tests {
    use super::fastest;

    #[test]
    fn the_first_of_the_smallest_times_wins() {
        assert_eq!(fastest(&[None, Some(2.0), Some(1.0), Some(1.0)]), Some((2, 1.0)));
    }

    #[test]
    fn candidates_that_did_not_run_never_win() {
        assert_eq!(fastest(&[None, Some(f32::NAN), Some(3.0)]), Some((2, 3.0)));
        assert_eq!(fastest(&[None, None]), None);
        assert_eq!(fastest(&[]), None);
    }
}
