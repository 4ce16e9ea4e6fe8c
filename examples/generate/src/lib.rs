//! Text from published FP8 models: a folder of Hugging Face's hub becomes a decoder of Burn modules, and a decoder writes what comes next.

pub mod chat;
pub mod config;
pub mod generate;
pub mod model;
pub mod sample;
pub mod tokens;
pub mod train;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
