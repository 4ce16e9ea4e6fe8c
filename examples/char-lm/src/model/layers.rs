//! The linear layers of the model, by name.

use std::fmt;

/// The standard deviation of new weights, as in GPT-2.
pub(super) const DEVIATION: f64 = 0.02;

/// A linear layer by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Queries, keys and values of attention.
    Qkv,
    /// The output projection of attention.
    Projection,
    /// The first layer of the MLP.
    Up,
    /// The second layer of the MLP.
    Down,
    /// From the residual stream to the characters.
    Head,
}

impl LayerKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Qkv, Self::Projection, Self::Up, Self::Down, Self::Head];

    /// Those that each block has.
    pub const OF_BLOCK: [Self; 4] = [Self::Qkv, Self::Projection, Self::Up, Self::Down];

    /// The name that `--high` takes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Projection => "projection",
            Self::Up => "up",
            Self::Down => "down",
            Self::Head => "head",
        }
    }
}

/// Layers to keep out of FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Those of this kind, in all blocks.
    Kind(LayerKind),
    /// All of this block, counted from 0.
    Block(usize),
    /// One of this block.
    One(usize, LayerKind),
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => f.write_str(kind.as_str()),
            Self::Block(index) => write!(f, "block{index}"),
            Self::One(index, kind) => write!(f, "block{index}.{}", kind.as_str()),
        }
    }
}
