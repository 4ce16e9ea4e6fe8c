//! What cuBLASLt chose, in numbers for reports.
#![allow(unsafe_code, reason = "reads attributes of an algorithm")]

use core::fmt;

use crate::raw::constants as c;
use crate::raw::lt::{HeuristicResult, Lt, LtError};

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
