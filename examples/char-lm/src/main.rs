//! Trains a transformer language model on characters in f32 and in FP8, and compares them.

fn main() {}
