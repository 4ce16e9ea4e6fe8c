//! What `config.json` and `hf_quant_config.json` say about quantization, one file for each method.

mod compressed_tensors;
mod fp8;
mod method;
mod modelopt;
mod node;
mod patterns;
mod read;
mod rules;

pub use method::Method;
pub(crate) use read::{Config, read};
pub(crate) use rules::Rules;
