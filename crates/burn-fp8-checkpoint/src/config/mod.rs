//! What `config.json` and `hf_quant_config.json` say about quantization, one file for each method.

mod compressed_tensors;
mod fp8;
mod modelopt;
mod node;
mod patterns;
mod rules;

use node::Node;
pub(crate) use rules::Rules;

use crate::error::CheckpointError;
use crate::files::Location;

/// What the configuration of a checkpoint says.
#[derive(Debug)]
pub(crate) struct Config {
    /// The text of `config.json`.
    pub(crate) json: String,
    /// None where it declares no quantization.
    pub(crate) rules: Option<Rules>,
}

const KNOWN: &str = "\"compressed-tensors\", \"fp8\" or \"modelopt\"";

/// Reads `config.json`, and `hf_quant_config.json` if there is one. Adds to `warnings`.
pub(crate) fn read(
    location: &Location,
    warnings: &mut Vec<String>,
) -> Result<Config, CheckpointError> {
    let (json, value) = node::read(&location.config)?;
    let root = Node::new(&location.config, &value);
    let beside = location.quant_config.as_deref().map(|path| Ok((path, node::read(path)?.1)));
    let beside = beside.transpose()?;
    let beside = beside.as_ref().map(|(path, value)| Node::new(path, value));
    let beside = beside.and_then(|root| root.get("quantization"));
    // Models with images keep it beside the settings of their language model; the last key is that of early versions of compressed-tensors.
    let config = root
        .get("quantization_config")
        .or_else(|| root.get("text_config")?.get("quantization_config"))
        .or_else(|| root.get("compression_config"));
    let rules = match config {
        None => {
            let read = |beside: &_| modelopt::read(None, Some(beside), warnings);
            beside.as_ref().map(read).transpose()?
        }
        Some(config) => {
            let config = config.object()?;
            let method = config.need("quant_method", KNOWN)?;
            Some(match method.text()? {
                "compressed-tensors" => compressed_tensors::read(&config, warnings)?,
                "fp8" => fp8::read(&config, warnings)?,
                "modelopt" => modelopt::read(Some(&config), beside.as_ref(), warnings)?,
                _ => {
                    let advice = "this crate reads FP8 checkpoints of these methods alone";
                    return Err(method.error_with(KNOWN, advice));
                }
            })
        }
    };
    Ok(Config { json, rules })
}
