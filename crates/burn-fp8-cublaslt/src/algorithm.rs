//! Algorithms: what the heuristics' answer means, the fastest of a timed search, and the choice in numbers for reports.
#![allow(unsafe_code, reason = "reads attributes of an algorithm")]

use core::fmt;

use crate::error::Error;
use crate::problem::Shape;
use crate::raw::constants as c;
use crate::raw::lt::{HeuristicResult, INVALID_VALUE, Lt, LtError, NOT_SUPPORTED};

/// An algorithm and its configuration. The numbers of tile, stages, inner shape and cluster are those of the enums
/// `cublasLtMatmulTile_t`, `cublasLtMatmulStages_t`, `cublasLtMatmulInnerShape_t` and `cublasLtClusterShape_t`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlgorithmInfo {
    /// `CUBLASLT_ALGO_CONFIG_ID`.
    pub id: i32,
    /// `CUBLASLT_ALGO_CONFIG_TILE_ID`.
    pub tile: u32,
    /// `CUBLASLT_ALGO_CONFIG_STAGES_ID`.
    pub stages: u32,
    /// In how many parts K is split.
    pub split_k: i32,
    /// `CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME`.
    pub reduction: u32,
    /// `CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID`.
    pub inner_shape: u16,
    /// `CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID`.
    pub cluster: u16,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
    /// Waves of thread blocks; 1 fills the device once.
    pub waves: f32,
    /// Who chose it.
    pub choice: Choice,
}

/// Who chose an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// cuBLASLt's heuristics.
    Heuristic,
    /// A timed search.
    Timed {
        /// How many candidates ran.
        candidates: usize,
        /// The place of this one in the order of the heuristics, from 0.
        rank: usize,
        /// Its time for one product.
        microseconds: f32,
        /// The time of the heuristics' first choice, if it ran.
        first_microseconds: Option<f32>,
    },
}

impl AlgorithmInfo {
    pub(crate) fn read(lt: &Lt, result: &HeuristicResult) -> Result<Self, LtError> {
        let algorithm = &result.algorithm;
        // SAFETY: every field has the width that cublasLt.h names for its attribute.
        unsafe {
            Ok(Self {
                id: lt.algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_ID)?,
                tile: lt.algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_TILE_ID)?,
                stages: lt.algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_STAGES_ID)?,
                split_k: lt.algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
                reduction: lt
                    .algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
                inner_shape: lt
                    .algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)?,
                cluster: lt
                    .algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)?,
                workspace: result.workspace,
                waves: result.waves,
                choice: Choice::Heuristic,
            })
        }
    }
}

impl fmt::Display for AlgorithmInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "algorithm {}, tile {}, stages {}, split-K {}, cluster {}, workspace {} bytes",
            self.id, self.tile, self.stages, self.split_k, self.cluster, self.workspace
        )?;
        match self.choice {
            Choice::Heuristic => write!(f, ", by heuristics"),
            Choice::Timed { candidates, rank, microseconds, .. } => {
                write!(f, ", the fastest of {candidates} ({microseconds} µs, rank {rank})")
            }
        }
    }
}

/// The algorithms that `workspace` bytes suffice for, the most promising first, with the status that tells why there are none.
///
/// [`INVALID_VALUE`] is the answer to some products that cuBLASLt has no kernel for:
/// <https://github.com/pytorch/pytorch/issues/160816>.
///
/// # Errors
///
/// Every other status.
pub(crate) fn candidates(
    answer: Result<Vec<HeuristicResult>, LtError>,
    workspace: usize,
) -> Result<(Vec<HeuristicResult>, i32), LtError> {
    match answer {
        Ok(results) => {
            // The preference says so already; a library that ignored it would write past the workspace.
            let fits = |result: &HeuristicResult| result.workspace <= workspace;
            Ok((results.into_iter().filter(fits).collect(), 0))
        }
        Err(LtError { status: status @ (NOT_SUPPORTED | INVALID_VALUE), .. }) => {
            Ok((Vec::new(), status))
        }
        Err(error) => Err(error),
    }
}

/// How many candidates of a timed search run, and how often. For users of this crate: burn-fp8 takes the heuristics' first choice.
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
    use super::*;
    use crate::capability::OLDEST_LIBRARY;
    use crate::version::ComputeCapability;

    const SHAPE: Shape = Shape { m: 16, n: 32, k: 64, batch: 1 };

    fn message(status: i32) -> String {
        let shape = SHAPE;
        let (compute, library) = (ComputeCapability::SM_90, OLDEST_LIBRARY);
        let hint = Some("GELU with D in F32 is not always there");
        Error::NoAlgorithm { shape, compute, library, status, hint }.to_string()
    }

    #[test]
    fn not_supported_and_invalid_value_mean_no_algorithm_and_keep_their_status() {
        for (status, name) in
            [(15, "CUBLAS_STATUS_NOT_SUPPORTED"), (7, "CUBLAS_STATUS_INVALID_VALUE")]
        {
            let error = LtError { call: "cublasLtMatmulAlgoGetHeuristic", status };
            let (found, why) = candidates(Err(error), 0).expect("no algorithm");
            assert!(found.is_empty() && why == status);
            assert_eq!(
                message(status),
                format!(
                    "cuBLASLt 12.4.0 has no algorithm for the FP8 product 16×32×64 on sm_90, its heuristics answered {name} ({status}): \
                     GELU with D in F32 is not always there; another type of output, or no epilogue where it has one, may do"
                )
            );
        }
        assert!(message(0).contains("its heuristics named none: GELU"));
    }

    #[test]
    fn other_statuses_stay_errors() {
        for status in [1, 3, 8, 13, 14] {
            let error = LtError { call: "cublasLtMatmulAlgoGetHeuristic", status };
            assert_eq!(candidates(Err(error), 0).err(), Some(error));
        }
    }

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
