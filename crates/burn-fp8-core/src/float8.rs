//! Slices of the types of the crate `float8` as codes, and codes as these types: the same bytes, nothing is copied.
//!
//! Beware of what `float8` 0.7 says of its types: `F8E4M3::MAX` is 416 and `F8E5M2::MAX` 49152, `is_infinite` is true for the largest numbers, and
//! `F8E5M2::is_nan` misses 0x7D and 0x7F. [`Fp8Format`] has the limits of the specification.
//!
//! ```
//! use burn_fp8_core::{Fp8Format, Overflow, float8};
//! use ::float8::F8E4M3;
//!
//! let mut numbers = [F8E4M3::from_f32(0.0); 3];
//! float8::codes_of_mut(&mut numbers)[1] = Fp8Format::E4M3.encode(-2.1, Overflow::Saturate);
//! assert_eq!(numbers.map(|x| x.to_f32()), [0.0, -2.0, 0.0]);
//! ```

use ::float8::{F8E4M3, F8E5M2};
use bytemuck::Pod;

use crate::Fp8Format;

/// `F8E4M3` or `F8E5M2`. Sealed.
pub trait Float8: Pod + sealed::Sealed {
    /// The format of its codes.
    const FORMAT: Fp8Format;
}

impl Float8 for F8E4M3 {
    const FORMAT: Fp8Format = Fp8Format::E4M3;
}

impl Float8 for F8E5M2 {
    const FORMAT: Fp8Format = Fp8Format::E5M2;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for ::float8::F8E4M3 {}
    impl Sealed for ::float8::F8E5M2 {}
}

/// The codes of numbers.
pub fn codes_of<T: Float8>(numbers: &[T]) -> &[u8] {
    bytemuck::cast_slice(numbers)
}

/// The codes of numbers, to be written.
pub fn codes_of_mut<T: Float8>(numbers: &mut [T]) -> &mut [u8] {
    bytemuck::cast_slice_mut(numbers)
}

/// The numbers that codes of [`T::FORMAT`](Float8::FORMAT) stand for.
pub fn numbers_of<T: Float8>(codes: &[u8]) -> &[T] {
    bytemuck::cast_slice(codes)
}

/// The numbers that codes of [`T::FORMAT`](Float8::FORMAT) stand for, to be written.
pub fn numbers_of_mut<T: Float8>(codes: &mut [u8]) -> &mut [T] {
    bytemuck::cast_slice_mut(codes)
}

/// The codes of numbers, in their memory.
pub fn into_codes<T: Float8>(numbers: Vec<T>) -> Vec<u8> {
    bytemuck::cast_vec(numbers)
}

/// The numbers that codes of [`T::FORMAT`](Float8::FORMAT) stand for, in their memory.
pub fn from_codes<T: Float8>(codes: Vec<u8>) -> Vec<T> {
    bytemuck::cast_vec(codes)
}
