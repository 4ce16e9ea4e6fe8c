//! The scales of each layer, read off a trace.

use burn_fp8::burn_fp8_core::Operand;
use burn_fp8::report::ProductReport;
use burn_fp8::{GemmRole, Report};
use serde::{Deserialize, Serialize};

use crate::model::Layers;

/// The scale of an operand of a layer in some step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerScale {
    /// The layer, from 0.
    pub layer: usize,
    /// The name of one of its tensors, as [`Operand`] displays it.
    pub operand: String,
    /// The scale.
    pub scale: f32,
}

/// Every scale of the products of a step that ran in FP8.
pub fn of_step(report: &Report, layers: &Layers) -> Vec<LayerScale> {
    let mut scales = Vec::new();
    for product in report.fp8() {
        let Some(layer) = layer(product, layers) else { continue };
        let operands = match product.role {
            GemmRole::Output => [Some(Operand::Input), Some(Operand::Weight)],
            GemmRole::GradWeight => [None, Some(Operand::OutputGrad)],
            // What it multiplies, the others do too.
            GemmRole::GradInput => continue,
        };
        for (operand, report) in operands.into_iter().zip([product.lhs, product.rhs]) {
            if let (Some(operand), Some(report)) = (operand, report) {
                let operand = operand.to_string();
                scales.push(LayerScale { layer, operand, scale: report.scale });
            }
        }
    }
    scales
}

/// The layer that a product belongs to.
fn layer(product: &ProductReport, layers: &Layers) -> Option<usize> {
    let shape = match product.role {
        GemmRole::Output => (product.gemm.k, product.gemm.n),
        GemmRole::GradInput => (product.gemm.n, product.gemm.k),
        GemmRole::GradWeight => (product.gemm.m, product.gemm.n),
    };
    layers.iter().position(|layer| *layer == shape)
}
