//! What the amax of a slice is.

/// The largest magnitude of a slice, and whether anything in it is not a number of finite size.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Amax {
    /// The largest `|x|` over finite elements; 0 if there are none.
    pub value: f32,
    /// Whether there are infinite or NaN elements.
    pub non_finite: bool,
    /// Whether there are NaN elements.
    pub nan: bool,
}

impl Amax {
    /// The amax of two slices taken together.
    pub fn union(self, other: Self) -> Self {
        Self {
            value: self.value.max(other.value),
            non_finite: self.non_finite | other.non_finite,
            nan: self.nan | other.nan,
        }
    }

    /// The largest magnitude as `max(abs(x))` of JAX and numpy has it: NaN where there is a NaN, else infinity where there is one.
    pub fn with_non_finite(self) -> f32 {
        match self {
            Self { nan: true, .. } => f32::NAN,
            Self { non_finite: true, .. } => f32::INFINITY,
            Self { value, .. } => value,
        }
    }
}
