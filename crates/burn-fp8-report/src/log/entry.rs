//! The lines of a log.

use burn_fp8_core::{Gemm, GemmRole, Operand};
use serde::{Deserialize, Serialize};

use crate::sample::{OperandStats, ProductStats};

/// The version of the format that this library writes and reads.
pub const VERSION: u32 = 1;

/// The first line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The version of the format: [`VERSION`].
    pub fp8_observatory: u32,
    /// Every how many steps one is sampled.
    pub every: u64,
    /// How many elements of an operand are read at most.
    pub max_elements: u64,
}

impl Header {
    /// Checks what serde does not. The reason is one line.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { fp8_observatory: version, every, max_elements } = *self;
        if version != VERSION {
            return Err(format!("a log of version {version}; this program has version {VERSION}"));
        }
        match every > 0 && max_elements > 0 {
            true => Ok(()),
            false => Err(format!(
                "a header with every = {every} and max_elements = {max_elements}; both are at least 1"
            )),
        }
    }
}

/// Every other line: one product of the forward pass, with the products of the backward pass that belong to it, in one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteEntry {
    /// The step, from 0.
    pub step: u64,
    /// Which product it is since the step began, from 1.
    pub site: u64,
    /// The name that the model gave it; may be empty.
    pub name: String,
    /// The operation of the model.
    pub kind: String,
    /// The shape of the forward product.
    pub gemm: Shape,
    /// The recipe, in words.
    pub recipe: String,
    /// The operands that were quantized.
    pub operands: Operands,
    /// The products that ran in FP8.
    pub products: Products,
}

/// The shape of a GEMM: `batch` products of an M×K by a K×N matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// How many products side by side.
    pub batch: u64,
    /// Rows of the result.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// The dimension summed over.
    pub k: u64,
}

impl From<Gemm> for Shape {
    fn from(gemm: Gemm) -> Self {
        let [batch, m, n, k] = [gemm.batch, gemm.m, gemm.n, gemm.k].map(|size| size as u64);
        Self { batch, m, n, k }
    }
}

impl Shape {
    /// The shape of the product of the given role that belongs to this forward product.
    pub fn for_role(self, role: GemmRole) -> Self {
        let Self { m, n, k, .. } = self;
        match role {
            GemmRole::Output => self,
            GemmRole::GradInput => Self { n: k, k: n, ..self },
            GemmRole::GradWeight => Self { m: k, k: m, ..self },
        }
    }

    /// Floating-point operations of each of the three products: 2·batch·M·N·K.
    pub fn flops(self) -> f64 {
        [self.batch, self.m, self.n, self.k]
            .into_iter()
            .fold(2.0, |flops, size| flops * size as f64)
    }
}

impl core::fmt::Display for Shape {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if self.batch != 1 {
            write!(f, "{} × ", self.batch)?;
        }
        write!(f, "{}×{}×{}", self.m, self.n, self.k)
    }
}

/// What was measured of each operand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operands {
    /// The left operand of the forward product.
    pub input: Option<OperandStats>,
    /// The right operand.
    pub weight: Option<OperandStats>,
    /// The gradient of the output.
    pub output_grad: Option<OperandStats>,
}

impl Operands {
    /// One of them.
    pub fn of(&self, operand: Operand) -> Option<&OperandStats> {
        match operand {
            Operand::Input => self.input.as_ref(),
            Operand::Weight => self.weight.as_ref(),
            Operand::OutputGrad => self.output_grad.as_ref(),
        }
    }

    /// Sets one of them.
    pub fn set(&mut self, operand: Operand, stats: OperandStats) {
        *match operand {
            Operand::Input => &mut self.input,
            Operand::Weight => &mut self.weight,
            Operand::OutputGrad => &mut self.output_grad,
        } = Some(stats);
    }
}

/// What was measured of each product.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// The forward product.
    pub output: Option<ProductStats>,
    /// The gradient of the left operand.
    pub grad_input: Option<ProductStats>,
    /// The gradient of the right operand.
    pub grad_weight: Option<ProductStats>,
}

impl Products {
    /// One of them.
    pub fn of(&self, role: GemmRole) -> Option<&ProductStats> {
        match role {
            GemmRole::Output => self.output.as_ref(),
            GemmRole::GradInput => self.grad_input.as_ref(),
            GemmRole::GradWeight => self.grad_weight.as_ref(),
        }
    }

    /// Sets one of them.
    pub fn set(&mut self, role: GemmRole, stats: ProductStats) {
        *match role {
            GemmRole::Output => &mut self.output,
            GemmRole::GradInput => &mut self.grad_input,
            GemmRole::GradWeight => &mut self.grad_weight,
        } = Some(stats);
    }
}

impl SiteEntry {
    /// Checks what serde does not, nor the arithmetic of what was measured. The reason is one line.
    pub(crate) fn check(&self) -> Result<(), String> {
        let named = |reason| format!("site {} of step {}: {reason}", self.site, self.step);
        self.check_fields().map_err(named)
    }

    fn check_fields(&self) -> Result<(), String> {
        let texts = [("name", &self.name), ("kind", &self.kind), ("recipe", &self.recipe)];
        if let Some((what, text)) = texts.into_iter().find(|(_, text)| text.len() > MAX_TEXT) {
            return Err(format!("{what} has {} bytes, of at most {MAX_TEXT}", text.len()));
        }
        let Shape { batch, m, n, k } = self.gemm;
        // Together no more than u128 has: sums of FLOPs stay numbers.
        if let Some(size) = [batch, m, n, k].into_iter().find(|size| !(1..=1 << 40).contains(size))
        {
            return Err(format!("a dimension of {size} is outside 1..=2^40"));
        }
        for operand in Operand::ALL {
            if let Some(stats) = self.operands.of(operand) {
                stats.check().map_err(|reason| format!("{operand}: {reason}"))?;
            }
        }
        for role in GemmRole::ALL {
            if let Some(stats) = self.products.of(role) {
                stats.check().map_err(|reason| format!("{role}: {reason}"))?;
            }
        }
        Ok(())
    }
}

/// The longest name, in bytes.
pub const MAX_TEXT: usize = 512;
