//! A published decoder that writes text: its configuration, tokens, chat template, sampling, caches, and one decoder for all families; and LoRA.
//!
//! - [`open`] and [`Config`]: a folder of Hugging Face's hub, and what the model in it is.
//! - [`Decoder`] and its [`Cache`]: tokens to logits, on any backend of Burn.
//! - [`Tokens`] and [`Writer`], [`Chat`]: texts and conversations to tokens, and back.
//! - [`generate`]: prompts in, tokens out, chosen as [`Sampling`] says.
//! - [`lora`]: adapters beside frozen layers, and PEFT's files of them.
//! - [`train`]: a decoder from nothing, adapters for a text, and models written in FP8.
//!
//! A model family is a row of a table in `src/config.rs`, which says in what it differs from the others.

mod chat;
mod config;
mod generate;
pub mod lora;
mod model;
mod sample;
mod tokens;
pub mod train;

pub use chat::{Chat, Message};
pub use config::{Config, open};
pub use generate::{Ended, Options, Outcome, generate};
pub use model::{Cache, CacheType, Decoder, Head, Inputs, LoadOptions};
pub use sample::{Defaults, Sampling};
pub use tokens::{Tokens, Writer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
