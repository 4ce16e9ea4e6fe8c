//! What torch reached on the same device: the output of `peers/gpu_peers.py`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::rows::Row;

#[derive(Deserialize)]
pub struct Torch {
    #[serde(rename = "torch")]
    version: String,
    gemm: Vec<Shape>,
    kernels: BTreeMap<String, Kernel>,
    linear: Vec<Shape>,
}

/// Figures of a shape: `bf16_ms` and the like.
#[derive(Deserialize)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    #[serde(flatten)]
    figures: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Kernel {
    ms: Option<f64>,
    gb_per_s: Option<f64>,
}

impl Torch {
    pub fn load(path: &Path) -> Result<Self> {
        let json =
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&json)
            .with_context(|| format!("{} is not what gpu_peers.py writes", path.display()))
    }

    /// What it is called in a table.
    pub fn name(&self, what: &str) -> String {
        format!("torch {}: {what}", self.version)
    }

    /// Milliseconds of a matrix product: `bf16`, `fp8_fast`, `fp8` or `fp8_e5m2`.
    pub fn gemm(&self, [m, k, n]: [usize; 3], what: &str) -> Option<f64> {
        figure(&self.gemm, [m, k, n], what)
    }

    /// Milliseconds of a linear layer, forward and backward: `bf16`, `fp8_eager` or `fp8_compiled`.
    pub fn linear(&self, [m, k, n]: [usize; 3], what: &str) -> Option<f64> {
        figure(&self.linear, [m, k, n], what)
    }

    /// Milliseconds and 10^9 bytes a second of a kernel.
    pub fn kernel(&self, name: &str) -> Option<(f64, f64)> {
        let kernel = self.kernels.get(name)?;
        Some((kernel.ms?, kernel.gb_per_s?))
    }
}

impl Row {
    /// The same measurement beside something else, which took so long.
    pub fn beside(&self, reference: &str, milliseconds: f64, target: Option<f64>) -> Self {
        Self {
            reference: reference.to_owned(),
            reference_milliseconds: milliseconds,
            ratio: milliseconds / self.milliseconds,
            target,
            ..self.clone()
        }
    }
}

fn figure(shapes: &[Shape], [m, k, n]: [usize; 3], what: &str) -> Option<f64> {
    let shape = shapes.iter().find(|shape| [shape.m, shape.k, shape.n] == [m, k, n])?;
    shape.figures.get(&format!("{what}_ms"))?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::Torch;

    #[test]
    fn figures_are_found_by_shape_and_name() {
        let json = r#"{"torch": "2.11", "cuda": "13.0", "device": "some", "gemm": [{"m": 1, "n": 2, "k": 3, "bf16_ms": 4.0}],
            "kernels": {"copy": {"ms": 1.0, "gb_per_s": 2.0}, "amax": {"error": "none"}},
            "linear": [{"m": 1, "n": 2, "k": 3, "fp8_compiled_error": "none", "fp8_eager_ms": 5.0}]}"#;
        let torch: Torch = serde_json::from_str(json).unwrap();
        assert_eq!(torch.gemm([1, 3, 2], "bf16"), Some(4.0));
        assert_eq!(torch.gemm([1, 2, 3], "bf16"), None);
        assert_eq!(torch.linear([1, 3, 2], "fp8_eager"), Some(5.0));
        assert_eq!(torch.linear([1, 3, 2], "fp8_compiled"), None);
        assert_eq!(torch.kernel("copy"), Some((1.0, 2.0)));
        assert_eq!(torch.kernel("amax"), None);
        assert_eq!(torch.name("bf16"), "torch 2.11: bf16");
    }
}
