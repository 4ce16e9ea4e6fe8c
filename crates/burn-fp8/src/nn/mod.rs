//! FP8 layers.
