//! Algorithms: what the heuristics' answer means, and the choice in numbers for reports.
#![allow(unsafe_code, reason = "reads attributes of an algorithm")]

use core::fmt;

use crate::raw::constants as c;
use crate::raw::lt::{HeuristicResult, INVALID_VALUE, Lt, LtError, NOT_SUPPORTED};

/// An algorithm and its configuration. The numbers of tile, stages and cluster are those of the enums `cublasLtMatmulTile_t`,
/// `cublasLtMatmulStages_t` and `cublasLtClusterShape_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmInfo {
    /// `CUBLASLT_ALGO_CONFIG_ID`.
    pub id: i32,
    /// `CUBLASLT_ALGO_CONFIG_TILE_ID`.
    pub tile: u32,
    /// `CUBLASLT_ALGO_CONFIG_STAGES_ID`.
    pub stages: u32,
    /// In how many parts K is split.
    pub split_k: i32,
    /// `CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID`.
    pub cluster: u16,
    /// Bytes of workspace that it needs.
    pub workspace: usize,
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
                cluster: lt
                    .algorithm_attribute(algorithm, c::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)?,
                workspace: result.workspace,
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
        )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::OLDEST_LIBRARY;
    use crate::error::Error;
    use crate::problem::Shape;
    use crate::version::ComputeCapability;

    const SHAPE: Shape = Shape { m: 16, n: 32, k: 64 };

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
}
