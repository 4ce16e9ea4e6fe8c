//! The observatory: how well FP8 fits each product, step by step.

mod learner;
mod numbers;
mod steps;
