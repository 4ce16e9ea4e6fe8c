//! Numbers in and out of tensors, and messages of panics.
#![allow(dead_code, reason = "each program uses a part of it")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor, TensorData};

pub fn tensor<const D: usize>(values: &[f32], shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32")
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Within a part of the largest number expected.
#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32], part: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    assert!(largest.is_finite(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= part * largest;
        assert!(near, "{what}[{index}]: {found:e}, not {expected:e}");
    }
}

/// The message of a panic that must happen.
#[track_caller]
pub fn panic_of<R>(run: impl FnOnce() -> R) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else { panic!("it did not panic") };
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast::<&str>().expect("a message").to_string(),
    }
}

/// Asserts that a message has all of these words.
#[track_caller]
pub fn says<const N: usize>(message: impl ToString, words: [&str; N]) {
    let message = message.to_string();
    words.iter().for_each(|word| assert!(message.contains(word), "no {word:?}: {message}"));
}
