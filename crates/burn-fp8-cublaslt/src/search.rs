//! The timed search among candidates, for users of this crate: burn-fp8 takes the heuristics' first choice.

use crate::algorithm::Choice;
use crate::error::Error;
use crate::problem::Shape;

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

/// The index of the smallest time, the first of equal ones, with what is told of it. Times are those of one product in microseconds, in
/// the order of the heuristics; an error stands for a candidate that did not run.
///
/// # Errors
///
/// The first error, where no candidate has a time; [`Error::NotTimed`] where there is no error either.
pub(crate) fn fastest(
    times: &[Result<f32, Error>],
    shape: Shape,
) -> Result<(usize, Choice), Error> {
    let timed =
        times.iter().enumerate().filter_map(|(rank, time)| Some((rank, *time.as_ref().ok()?)));
    let timed: Vec<_> = timed.filter(|(_, time)| !time.is_nan()).collect();
    match timed.iter().min_by(|(_, a), (_, b)| a.total_cmp(b)) {
        Some(&(rank, microseconds)) => {
            let first_microseconds = times[0].as_ref().ok().copied();
            let candidates = timed.len();
            Ok((rank, Choice::Timed { candidates, rank, microseconds, first_microseconds }))
        }
        None => {
            let error = times.iter().find_map(|time| time.as_ref().err());
            Err(error.cloned().unwrap_or(Error::NotTimed { shape, candidates: times.len() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fastest;
    use crate::algorithm::Choice;
    use crate::error::Error;
    use crate::problem::Shape;
    use crate::raw::lt::LtError;

    const SHAPE: Shape = Shape { m: 16, n: 32, k: 64, batch: 1 };

    fn failed(status: i32) -> Result<f32, Error> {
        Err(LtError { call: "cublasLtMatmul", status }.into())
    }

    #[test]
    fn the_first_of_the_smallest_times_wins() {
        let times = [failed(15), Ok(2.0), Ok(1.0), Ok(1.0)];
        let (candidates, rank, microseconds, first_microseconds) = (3, 2, 1.0, None);
        let choice = Choice::Timed { candidates, rank, microseconds, first_microseconds };
        assert_eq!(fastest(&times, SHAPE), Ok((2, choice)));
    }

    #[test]
    fn candidates_that_did_not_run_never_win() {
        let times = [Ok(4.0), Ok(f32::NAN), Ok(3.0), failed(15)];
        let (candidates, rank, microseconds, first_microseconds) = (2, 2, 3.0, Some(4.0));
        let choice = Choice::Timed { candidates, rank, microseconds, first_microseconds };
        assert_eq!(fastest(&times, SHAPE), Ok((2, choice)));
    }

    /// The caller asked for the fastest, and there is none.
    #[test]
    fn without_any_time_the_first_error_is_returned() {
        let times = [Ok(f32::NAN), failed(13), failed(15)];
        assert_eq!(fastest(&times, SHAPE), failed(13).map(|_| unreachable!()));
        for (times, candidates) in [(&[][..], 0), (&[Ok(f32::NAN)], 1)] {
            assert_eq!(fastest(times, SHAPE), Err(Error::NotTimed { shape: SHAPE, candidates }));
        }
    }
}
