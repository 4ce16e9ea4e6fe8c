//! How many elements share a scale.

use core::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::Operand;

/// How many elements share a scale.
///
/// As JSON `"per_tensor"`, `"per_row"`, `"mxfp8"`, `{"mxfp8": "floor"}`, `"blockwise"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// A scale for each tensor.
    #[default]
    PerTensor,
    /// A scale for each row of the left operand of a product, and for each column of the right one: for all elements that are multiplied
    /// and summed into one row, or one column, of the result. An outlier costs the precision of its own row alone.
    ///
    /// A tensor that two products sum over different dimensions of is quantized twice. torchao and PyTorch call this row-wise scaling.
    PerRow,
    /// MXFP8 of the OCP Microscaling Formats specification (1.0): a scale for each 32 elements that a product sums over, a power of two in one
    /// byte (E8M0).
    ///
    /// A tensor that two products sum over different dimensions of is quantized twice. Blackwell's tensor cores take such operands.
    #[serde(rename = "mxfp8")]
    Mx(ScaleRounding),
    /// Scales of blocks of 128: for each 128 elements of an input or an output gradient that a product sums over, and for each 128 × 128 elements
    /// of a weight, which is quantized once for both of its products.
    ///
    /// What DeepSeek-V3 was trained with; TransformerEngine's `Float8BlockScaling`.
    Blockwise,
}

/// To which power of two the scale of an MXFP8 block is rounded. `amax` is the largest magnitude of the block, `max` the largest number of the
/// format, `2^emax` its largest power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRounding {
    /// `2^⌈log2(amax / max)⌉`: the smallest with which nothing saturates. What Blackwell and cuBLAS do.
    #[default]
    Rceil,
    /// `2^(⌊log2 amax⌋ − emax)`, as the specification of OCP has it (6.3). Saturation costs an amax up to an eighth of its magnitude.
    Floor,
    /// `2^(⌈log2 amax⌉ − emax)`. Nothing saturates; most blocks leave half of the format's range unused.
    Ceil,
    /// As `Floor`, after the amax is rounded to the format's precision, halves upwards. Saturates less.
    Even,
}

/// How many elements along each dimension of an operand share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Along the dimension that the product sums over.
    pub along: usize,
    /// Along the other one.
    pub across: usize,
}

impl Granularity {
    /// The elements of an operand that share a scale: every granularity is a block shape. [`usize::MAX`] stands for the whole dimension; blocks at the
    /// end of one are cut off by it.
    pub const fn block(self, operand: Operand) -> Block {
        let (along, across) = match (self, operand) {
            (Self::PerTensor, _) => (usize::MAX, usize::MAX),
            (Self::PerRow, _) => (usize::MAX, 1),
            (Self::Mx(_), _) => (32, 1),
            (Self::Blockwise, Operand::Weight) => (128, 128),
            (Self::Blockwise, _) => (128, 1),
        };
        Block { along, across }
    }
}

impl fmt::Display for Granularity {
    /// As current scaling is called with it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerTensor => f.write_str("current scaling"),
            Self::PerRow => f.write_str("current scaling per row"),
            Self::Mx(ScaleRounding::Rceil) => f.write_str("MXFP8"),
            Self::Mx(rounding) => write!(f, "MXFP8 ({rounding})"),
            Self::Blockwise => f.write_str("current scaling of blocks of 128"),
        }
    }
}

const NAMES: &[&str] = &["per_tensor", "per_row", "mxfp8", "blockwise"];

fn named<E: Error>(name: &str) -> Result<Granularity, E> {
    match name {
        "per_tensor" => Ok(Granularity::PerTensor),
        "per_row" => Ok(Granularity::PerRow),
        "mxfp8" => Ok(Granularity::Mx(ScaleRounding::default())),
        "blockwise" => Ok(Granularity::Blockwise),
        name => Err(E::unknown_variant(name, NAMES)),
    }
}

/// Not derived: `"mxfp8"` by itself stands for the usual rounding.
impl<'de> Deserialize<'de> for Granularity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct GranularityVisitor;

        impl<'de> Visitor<'de> for GranularityVisitor {
            type Value = Granularity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "one of {}, or {{\"mxfp8\": …}}", NAMES.join(", "))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Granularity, E> {
                named(name)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Granularity, A::Error> {
                let granularity = match map.next_key::<String>()?.as_deref() {
                    Some("mxfp8") => Granularity::Mx(map.next_value()?),
                    Some(name) => return Err(A::Error::unknown_field(name, &["mxfp8"])),
                    None => return Err(A::Error::invalid_length(0, &self)),
                };
                match map.next_key::<String>()? {
                    Some(name) => Err(A::Error::unknown_field(&name, &[])),
                    None => Ok(granularity),
                }
            }
        }

        deserializer.deserialize_any(GranularityVisitor)
    }
}

impl fmt::Display for ScaleRounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rceil => "rceil",
            Self::Floor => "floor",
            Self::Ceil => "ceil",
            Self::Even => "even",
        })
    }
}
