//! A tensor that is not quantized.

use std::path::PathBuf;

use super::info::TensorInfo;
use crate::error::CheckpointError;
use crate::numbers::{floats, is_float};

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainTensor {
    info: TensorInfo,
    data: Vec<u8>,
    path: PathBuf,
}

impl PlainTensor {
    pub(crate) fn new(info: TensorInfo, data: Vec<u8>, path: PathBuf) -> Self {
        Self { info, data, path }
    }

    /// Its name, type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Its elements as they are stored, little-endian, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// F32, BF16 or F16 as f32, exactly. Values are not judged: NaN stays NaN.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] for other types.
    pub fn to_f32(&self) -> Result<Vec<f32>, CheckpointError> {
        let TensorInfo { name, dtype, .. } = &self.info;
        match is_float(*dtype) {
            true => Ok(floats(*dtype, &self.data)),
            false => {
                let advice = match dtype.is_fp8() {
                    true => {
                        "codes mean nothing without their scales: read the layer with `linear`, or take the bytes"
                    }
                    false => "take the bytes",
                };
                let (found, expected) = (dtype.name(), "F32, BF16 or F16");
                Err(CheckpointError::tensor(&self.path, name, found, expected, advice))
            }
        }
    }
}
