//! Where the files of a checkpoint lie.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Location {
    /// `config.json`.
    pub(crate) config: PathBuf,
    /// `hf_quant_config.json`, if there is one.
    pub(crate) quant_config: Option<PathBuf>,
    pub(crate) weights: Weights,
}

/// Where the tensors are.
#[derive(Debug)]
pub(crate) enum Weights {
    /// In one file.
    File(PathBuf),
    /// In the files that an index names.
    Index(PathBuf),
}

impl Location {
    /// Finds the files of a folder, or those beside a file. Of `model.safetensors` and an index it takes the former, as transformers does.
    pub(crate) fn find(path: &Path) -> Result<Self, CheckpointError> {
        let kind = fs::metadata(path).map_err(|reason| CheckpointError::read(path, reason))?;
        if !kind.is_dir() {
            let folder = path.parent().unwrap_or(Path::new(""));
            return Ok(Self::new(folder, Weights::File(path.into())));
        }
        let (model, index) = (path.join(MODEL), path.join(INDEX));
        match (model.exists(), index.exists()) {
            (true, _) => Ok(Self::new(path, Weights::File(model))),
            (false, true) => Ok(Self::new(path, Weights::Index(index))),
            (false, false) => {
                let found = format!("neither {MODEL} nor {INDEX}");
                let expected = "one of them and config.json in the folder";
                let advice = "give the folder of a checkpoint, or one of its safetensors files";
                Err(CheckpointError::file(path, found, expected, advice))
            }
        }
    }

    fn new(folder: &Path, weights: Weights) -> Self {
        let quant_config = folder.join("hf_quant_config.json");
        let quant_config = quant_config.exists().then_some(quant_config);
        Self { config: folder.join("config.json"), quant_config, weights }
    }
}
