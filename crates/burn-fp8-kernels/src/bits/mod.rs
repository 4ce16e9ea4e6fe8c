//! Conversions as integer operations on four elements at a time, shared by all kernels.
//!
//! Nothing is classified by comparing floats, and no NaN reaches an operation that a compiler may assume to be free of them;
//! the only float operations are the division by the scale, additions that are exact, and multiplications by powers of two.
//! So a compiler that fuses a product and a sum changes nothing.

mod decoding;
mod division;
mod encoding;
mod narrowing;
mod units;

pub(crate) use decoding::{decode, decode_word};
pub(crate) use division::{Division, Divisor, divisor, divisor_of_each};
pub(crate) use encoding::{Encoding, encode, repair};
pub(crate) use narrowing::{narrow, output_words};
pub(crate) use units::{
    INFINITY, QUIET_NAN, Quad, code_signs, largest, largest_finite, magnitudes, pack, read_element,
    signs, widen_four,
};
