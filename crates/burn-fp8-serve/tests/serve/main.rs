//! Four tiny decoders against what transformers computes from the same files; adapters against f64, and their files.
//!
//! The goldens were made by `gen_decoders.py` with transformers 5.23.0 and torch 2.15.0: `expected.safetensors` has tokens and logits of three prompts, in f32 on
//! dequantized weights and (`_w8a8`) with inputs quantized as each file declares; `expected.json` greedy tokens, chats and texts.

mod common;
mod heads;
mod logits;
mod lora;
mod text;
