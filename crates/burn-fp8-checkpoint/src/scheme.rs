//! How weights and activations of a layer are scaled.

use std::fmt;

/// What one scale of a weight `[out, in]` is for. Weights are E4M3: `x ≈ code × scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightScaling {
    /// The whole weight.
    PerTensor,
    /// A row, one output.
    PerChannel,
    /// A block of these rows and columns; the last ones may be smaller.
    Blocks([usize; 2]),
    /// 32 elements along a row, with an E8M0 scale: MXFP8.
    Mx,
}

impl WeightScaling {
    /// Rows and columns of a block in a weight of this shape.
    pub fn block(self, shape: [usize; 2]) -> [usize; 2] {
        match self {
            Self::PerTensor => shape,
            Self::PerChannel => [1, shape[1]],
            Self::Blocks(block) => block,
            Self::Mx => [1, MX_BLOCK],
        }
    }

    /// Rows and columns of blocks in a weight of this shape.
    pub fn grid(self, shape: [usize; 2]) -> [usize; 2] {
        let block = self.block(shape);
        [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
    }
}

/// The elements of a block of MXFP8.
pub(crate) const MX_BLOCK: usize = 32;

impl fmt::Display for WeightScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerTensor => f.write_str("per tensor"),
            Self::PerChannel => f.write_str("per channel"),
            Self::Blocks([rows, columns]) => write!(f, "per {rows}×{columns} block"),
            Self::Mx => write!(f, "per 1×{MX_BLOCK} block (MXFP8)"),
        }
    }
}

/// How a checkpoint means a layer's activations to be quantized, to E4M3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ActivationScaling {
    /// Not at all: only weights are FP8.
    None,
    /// With one scale that the checkpoint holds.
    Static,
    /// With a scale for each row of activations, from its amax.
    PerToken,
    /// With one scale, from the amax of all of them.
    PerTensor,
    /// With a scale for each block along a row.
    Blocks {
        /// The elements of a block.
        size: usize,
        /// Whether scales are rounded up to powers of two: `scale_fmt: ue8m0` of DeepSeek-V3.1.
        power_of_two: bool,
    },
    /// As MXFP8: blocks of 32 along a row, with E8M0 scales.
    Mx,
}

impl fmt::Display for ActivationScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("not quantized"),
            Self::Static => f.write_str("static, per tensor"),
            Self::PerToken => f.write_str("dynamic, per token"),
            Self::PerTensor => f.write_str("dynamic, per tensor"),
            Self::Blocks { size, power_of_two: false } => {
                write!(f, "dynamic, per 1×{size} block")
            }
            Self::Blocks { size, power_of_two: true } => {
                write!(f, "dynamic, per 1×{size} block, scales powers of two")
            }
            Self::Mx => write!(f, "dynamic, per 1×{MX_BLOCK} block (MXFP8)"),
        }
    }
}

/// Both of them, as a configuration gives them to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) weight: WeightScaling,
    pub(crate) activations: ActivationScaling,
}
