//! The three matrix products of training, and their shapes.
//!
//! A product `output = input · weight` of the forward pass brings two more in the backward pass:
//!
//! | role          | product               | usual formats |
//! |---------------|-----------------------|---------------|
//! | `output`      | input · weight        | E4M3 × E4M3   |
//! | `grad_input`  | output_grad · weightᵀ | E5M2 × E4M3   |
//! | `grad_weight` | inputᵀ · output_grad  | E4M3 × E5M2   |
//!
//! The left operand of a plain matrix product plays the input, the right one the weight.

use core::fmt;

use serde::Serialize;

/// The role of a matrix product in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GemmRole {
    /// The forward product: input · weight.
    Output,
    /// The gradient of the left operand: output gradient · weightᵀ.
    GradInput,
    /// The gradient of the right operand: inputᵀ · output gradient.
    GradWeight,
}

impl GemmRole {
    /// The three roles, in the order in which a training step runs them.
    pub const ALL: [GemmRole; 3] = [Self::Output, Self::GradInput, Self::GradWeight];
}

/// A tensor that the products of training multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The left operand of the forward product.
    Input,
    /// The right operand of the forward product.
    Weight,
    /// The gradient of the output.
    OutputGrad,
}

impl Operand {
    /// The three operands.
    pub const ALL: [Operand; 3] = [Self::Input, Self::Weight, Self::OutputGrad];
}

impl GemmRole {
    /// The left and the right operand.
    pub const fn operands(self) -> [Operand; 2] {
        match self {
            Self::Output => [Operand::Input, Operand::Weight],
            Self::GradInput => [Operand::OutputGrad, Operand::Weight],
            Self::GradWeight => [Operand::Input, Operand::OutputGrad],
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Input => "input",
            Self::Weight => "weight",
            Self::OutputGrad => "output_grad",
        })
    }
}

impl fmt::Display for GemmRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Output => "output",
            Self::GradInput => "grad_input",
            Self::GradWeight => "grad_weight",
        })
    }
}

/// The operation of the user's model that a product comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProductKind {
    /// A linear layer: `[…, K] · [K, N]`, or one of its two gradient products.
    Linear,
    /// A plain matrix product of two tensors.
    Matmul,
    /// One of the two products inside attention: scores, then context.
    Attention,
    /// A product of two FP8 tensors that the user quantized: no filter applies.
    ScaledMatmul,
    /// A convolution or one of its two gradients, as the products that it comes to: one for each group, of M positions of the window, N filters, and
    /// K numbers under the window. A transposed one comes to the gradient of the input of a convolution.
    Convolution,
}

impl fmt::Display for ProductKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Linear => "linear",
            Self::Matmul => "matmul",
            Self::Attention => "attention",
            Self::ScaledMatmul => "scaled_matmul",
            Self::Convolution => "convolution",
        })
    }
}

/// The shape of a GEMM: `batch` products of an M×K by a K×N matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Gemm {
    /// How many products run side by side; 1 for a plain one.
    pub batch: usize,
    /// Rows of the left operand and of the result.
    pub m: usize,
    /// Columns of the right operand and of the result.
    pub n: usize,
    /// The dimension summed over.
    pub k: usize,
    /// Whether one operand is a plain matrix (2-D, or its leading dimensions all 1).
    pub plain_operand: bool,
}

impl Gemm {
    /// One product of an M×K by a K×N matrix.
    pub const fn matrix(m: usize, n: usize, k: usize) -> Self {
        Self { batch: 1, m, n, k, plain_operand: true }
    }

    /// The GEMM that a product of tensors of the shapes `lhs` `[…, M, K]` and `rhs` `[…, K, N]` runs as.
    ///
    /// Where the right operand is a plain matrix, the leading dimensions of the left one join M. Otherwise the
    /// leading dimensions, broadcast against each other, are the batch.
    ///
    /// Returns `None` where the shapes do not multiply: ranks differ or are below 2, inner dimensions differ, or leading
    /// dimensions do not broadcast.
    pub fn from_shapes(lhs: &[usize], rhs: &[usize]) -> Option<Self> {
        let rank = lhs.len();
        if rank < 2 || rhs.len() != rank || lhs[rank - 1] != rhs[rank - 2] {
            return None;
        }
        let (lhs_lead, rhs_lead) = (&lhs[..rank - 2], &rhs[..rank - 2]);
        let (m, k, n) = (lhs[rank - 2], lhs[rank - 1], rhs[rank - 1]);
        let is_one = |d: &usize| *d == 1;
        let mut batch = 1;
        for (&l, &r) in lhs_lead.iter().zip(rhs_lead) {
            batch *= match (l, r) {
                (l, r) if l == r => l,
                (1, r) => r,
                (l, 1) => l,
                _ => return None,
            };
        }
        Some(if rhs_lead.iter().all(is_one) {
            Self::matrix(batch * m, n, k)
        } else {
            Self { batch, m, n, k, plain_operand: lhs_lead.iter().all(is_one) }
        })
    }

    /// The shape of the product of the given role that belongs to this forward product.
    pub const fn for_role(self, role: GemmRole) -> Self {
        let Self { m, n, k, .. } = self;
        match role {
            GemmRole::Output => self,
            GemmRole::GradInput => Self { n: k, k: n, ..self },
            GemmRole::GradWeight => Self { m: k, k: m, ..self },
        }
    }

    /// Multiply-add operations times two: 2·batch·M·N·K.
    pub const fn flops(self) -> u128 {
        2 * (self.batch as u128) * (self.m as u128) * (self.n as u128) * (self.k as u128)
    }
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} × {}×{}×{}", self.batch, self.m, self.n, self.k))
    }
}

/// Rows and columns of codes for tensor cores are padded, with zeros, to multiples of this.
pub const PADDING: usize = 16;

/// In which layouts the codes of a matrix are wanted: tensor cores sum over a contiguous dimension. Both are written in one pass over the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layouts {
    /// Row by row.
    Rows,
    /// The codes of the transposed matrix, row by row.
    Transposed,
    /// Both.
    Both,
}

impl Layouts {
    /// `None` where neither is wanted.
    pub fn of(rows: bool, transposed: bool) -> Option<Self> {
        match (rows, transposed) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Rows),
            (false, true) => Some(Self::Transposed),
            (false, false) => None,
        }
    }

    /// Whether the codes are wanted row by row.
    pub fn rows(self) -> bool {
        self != Self::Transposed
    }

    /// Whether the codes of the transposed matrix are wanted.
    pub fn transposed(self) -> bool {
        self != Self::Rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gemm(batch: usize, m: usize, n: usize, k: usize, plain_operand: bool) -> Option<Gemm> {
        Some(Gemm { batch, m, n, k, plain_operand })
    }

    #[test]
    fn leading_dimensions_join_m_when_the_right_operand_is_plain() {
        assert_eq!(Gemm::from_shapes(&[5, 7], &[7, 3]), gemm(1, 5, 3, 7, true));
        assert_eq!(Gemm::from_shapes(&[2, 4, 5, 7], &[1, 1, 7, 3]), gemm(1, 40, 3, 7, true));
    }

    #[test]
    fn leading_dimensions_are_the_batch_otherwise() {
        assert_eq!(Gemm::from_shapes(&[1, 5, 7], &[6, 7, 3]), gemm(6, 5, 3, 7, true));
        assert_eq!(Gemm::from_shapes(&[2, 1, 5, 7], &[1, 3, 7, 4]), gemm(6, 5, 4, 7, false));
    }

    #[test]
    fn shapes_that_do_not_multiply_are_none() {
        for (lhs, rhs) in [
            (&[5usize, 7][..], &[6usize, 3][..]),
            (&[2, 5, 7], &[3, 7, 3]),
            (&[5, 7], &[1, 7, 3]),
            (&[7], &[7]),
        ] {
            assert_eq!(Gemm::from_shapes(lhs, rhs), None, "{lhs:?} {rhs:?}");
        }
    }

    #[test]
    fn backward_products_have_the_shapes_of_the_gradients() {
        let forward = Gemm::from_shapes(&[5, 7], &[7, 3]).unwrap();
        assert_eq!(Some(forward.for_role(GemmRole::GradInput)), gemm(1, 5, 7, 3, true));
        assert_eq!(Some(forward.for_role(GemmRole::GradWeight)), gemm(1, 7, 3, 5, true));
        assert_eq!(forward.for_role(GemmRole::GradWeight).flops(), 2 * 5 * 7 * 3);
    }
}
