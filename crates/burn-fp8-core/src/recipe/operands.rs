//! The formats of the operands, and the precision of the products.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{Fp8Format, GemmRole, Operand};

/// The formats of the three tensors that the products of training multiply.
///
/// At most one of them may be E5M2: hardware multiplies E4M3 by E4M3 and E4M3 by E5M2, never E5M2 by E5M2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Formats {
    /// The input, the left operand of the forward product.
    pub input: Fp8Format,
    /// The weight, the right operand of the forward product.
    pub weight: Fp8Format,
    /// The gradient of the output.
    pub output_grad: Fp8Format,
}

impl Formats {
    /// E4M3 forward, E5M2 for output gradients: the usual choice.
    pub const HYBRID: Self =
        Self { input: Fp8Format::E4M3, weight: Fp8Format::E4M3, output_grad: Fp8Format::E5M2 };

    /// E4M3 everywhere.
    pub const E4M3: Self = Self { output_grad: Fp8Format::E4M3, ..Self::HYBRID };

    /// The format of one of them.
    pub const fn of(self, operand: Operand) -> Fp8Format {
        match operand {
            Operand::Input => self.input,
            Operand::Weight => self.weight,
            Operand::OutputGrad => self.output_grad,
        }
    }
}

impl Default for Formats {
    fn default() -> Self {
        Self::HYBRID
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}, gradients {}", self.input, self.weight, self.output_grad)
    }
}

/// Which numbers a product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// In FP8.
    #[default]
    Fp8,
    /// In bf16: its operands are rounded to it, and summed in f32.
    Bf16,
    /// In the precision of its operands.
    High,
}

/// The precision of the three products of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Products {
    /// The forward product.
    pub output: Precision,
    /// The gradient of the input.
    pub grad_input: Precision,
    /// The gradient of the weight.
    pub grad_weight: Precision,
}

impl Products {
    /// All three in FP8.
    pub const ALL: Self =
        Self { output: Precision::Fp8, grad_input: Precision::Fp8, grad_weight: Precision::Fp8 };

    /// All three in bf16.
    pub const BF16: Self =
        Self { output: Precision::Bf16, grad_input: Precision::Bf16, grad_weight: Precision::Bf16 };

    /// The precision of one of them.
    pub const fn of(self, role: GemmRole) -> Precision {
        match role {
            GemmRole::Output => self.output,
            GemmRole::GradInput => self.grad_input,
            GemmRole::GradWeight => self.grad_weight,
        }
    }

    /// The same with another precision for one of them.
    pub const fn with(self, role: GemmRole, precision: Precision) -> Self {
        match role {
            GemmRole::Output => Self { output: precision, ..self },
            GemmRole::GradInput => Self { grad_input: precision, ..self },
            GemmRole::GradWeight => Self { grad_weight: precision, ..self },
        }
    }

    /// Whether any product runs in FP8.
    pub fn any_in_fp8(self) -> bool {
        GemmRole::ALL.into_iter().any(|role| self.in_fp8(role))
    }

    /// Whether the product of this role runs in FP8.
    pub fn in_fp8(self, role: GemmRole) -> bool {
        self.of(role) == Precision::Fp8
    }
}
