//! How matrices of codes lie in memory for tensor cores, which sum over a contiguous dimension.

/// Rows and columns of codes are padded, with zeros, to multiples of this.
pub const PADDING: usize = 16;

/// In which layouts the codes of a matrix are wanted. Both are written in one pass over the tensor.
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
