//! What tests assert.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bits, with every NaN made equal where payloads are not promised.
pub fn comparable(x: f32) -> u32 {
    if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }
}

/// The bits of numbers.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The same bits; any NaN equals any NaN.
#[track_caller]
pub fn assert_same(actual: &[f32], expected: &[f32], what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(comparable(*a) == comparable(*e), "{what}[{index}]: {a:e} instead of {e:e}");
    }
}

/// Asserts that values agree to `tolerance` times the largest finite magnitude expected: how golden files are to be compared, and
/// what suits numbers of one size. What is not finite is the same, element by element. See [`crate::Exact`] for products of anything else.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    let finite = expected.iter().filter(|value| value.is_finite());
    let largest = finite.fold(0f32, |max, value| max.max(value.abs()));
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let near = match e.is_finite() {
            true => (a - e).abs() <= tolerance * largest,
            false => a == e || (a.is_nan() && e.is_nan()),
        };
        assert!(near, "{what}[{index}]: {a:e} instead of {e:e}, of at most {largest:e}");
    }
}

/// Asserts that each value agrees with its own expectation to `tolerance` times that.
#[track_caller]
pub fn assert_relative(actual: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}: lengths");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert_close(&[*a], &[*e], tolerance, &format!("{what}[{index}]"));
    }
}

/// Asserts that each value is as near to what f64 has as `bound` says of it.
#[track_caller]
pub fn assert_within(actual: &[f32], exact: &[f64], bound: impl Fn(f64) -> f64, what: &str) {
    assert_eq!(actual.len(), exact.len(), "{what}: lengths");
    for (index, (a, e)) in actual.iter().zip(exact).enumerate() {
        let near = (f64::from(*a) - e).abs() <= bound(*e);
        assert!(near, "{what}[{index}]: {a:e} instead of {e:e}");
    }
}

/// The signal of a result against what it is off, in dB.
pub fn sqnr(exact: &[f64], actual: &[f64]) -> f64 {
    let signal: f64 = exact.iter().map(|x| x * x).sum();
    let noise: f64 = exact.iter().zip(actual).map(|(x, y)| (x - y) * (x - y)).sum();
    10.0 * (signal / noise).log10()
}

/// Asserts that what is said has all these parts.
#[track_caller]
pub fn says<const N: usize>(said: impl Display, parts: [&str; N]) {
    let said = said.to_string();
    for part in parts {
        assert!(said.contains(part), "not {part:?}: {said}");
    }
}

/// Asserts that a result is an error that has all these parts.
#[track_caller]
pub fn refused<T, E: Display, const N: usize>(result: Result<T, E>, parts: [&str; N]) {
    match result {
        Ok(_) => panic!("not refused: {parts:?}"),
        Err(error) => says(error, parts),
    }
}

/// Asserts that a panic must happen that has all these parts.
#[track_caller]
pub fn panics<R, const N: usize>(f: impl FnOnce() -> R, parts: [&str; N]) {
    says(panic_of(f), parts);
}

/// The message of a panic that must happen.
#[track_caller]
pub fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(f)) else { panic!("it did not panic") };
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast::<&str>().expect("a message").to_string(),
    }
}
