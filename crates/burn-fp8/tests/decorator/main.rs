//! The decorator: which products run in FP8, and what comes of them.

#[path = "../common/mod.rs"]
mod common;

mod assertions;
mod config;
mod linalg;
mod mends;
mod off_is_identity;
mod products;
mod routing;
mod scopes;
mod special_values;
mod sqnr;
mod units;
