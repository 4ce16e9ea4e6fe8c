//! Conversions as integer operations on four elements at a time, shared by all kernels.
//!
//! Nothing is classified by comparing floats, and no NaN reaches an operation that a compiler may assume to be free of them;
//! the only float operations are the division by the scale, additions that are exact, and multiplications by powers of two.
//! So a compiler that fuses a product and a sum changes nothing.

mod division;
mod encoding;
mod units;

pub(crate) use division::{Division, Divisor, divisor, divisor_of_each};
pub(crate) use encoding::{Encoding, decode, decode_word, encode, repair};
pub(crate) use units::{
    INFINITY, QUIET_NAN, Quad, code_signs, four_of, largest, largest_finite, magnitudes, pack,
    read_element, signs, widen_four,
};
