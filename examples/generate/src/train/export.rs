//! A trained model as a folder of the hub.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::{Activations, Dtype, Export, QuantizedLinear};
use half::bf16;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::text::END;
use crate::model::{Projection, Weights, in_rows};
use crate::tokens::read_file;

/// A tensor in bf16.
struct Plain {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Plain {
    fn new<B: Fp8Matmul, const D: usize>(name: String, tensor: Tensor<B, D>) -> Result<Self> {
        let shape = tensor.dims().to_vec();
        let numbers = numbers(tensor).context(name.clone())?;
        let bytes = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        Ok(Self { name, shape, bytes })
    }
}

/// Whether a model can be written there: before it is trained, not after.
pub(super) fn check_free(folder: &Path) -> Result<()> {
    let filled = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    ensure!(!filled, "{} is there already, and not empty: choose another folder", folder.display());
    Ok(())
}

/// Writes matrices of layers in E4M3 with a scale for each output, the codes that a training with `Recipe::rowwise` multiplies, and embedding and norms in
/// bf16; inputs are declared to be quantized token by token.
pub(super) fn export<B: Fp8Matmul>(
    weights: &Weights<B>,
    config: &str,
    files: &[(&str, String)],
    folder: &Path,
) -> Result<()> {
    let mut layers: Vec<(String, QuantizedLinear)> = vec![];
    let norm =
        |name: &str, norm: &RmsNorm<B>| Plain::new(format!("{name}.weight"), norm.gamma.val());
    let embedding = "model.embed_tokens.weight".to_owned();
    let mut plain = vec![
        Plain::new(embedding, weights.embedding.weight())?,
        norm("model.norm", &weights.norm)?,
    ];
    for (index, layer) in weights.layers.iter().enumerate() {
        let named = |part: &str| format!("model.layers.{index}.{part}");
        for (part, matrix) in layer.matrices() {
            let Projection::Plain(matrix) = matrix else {
                bail!("{} is quantized already", named(part));
            };
            let (weight, bias) = (matrix.weight(), matrix.bias().map(numbers).transpose()?);
            let shape = weight.dims();
            let rows = std::iter::once(weight);
            let layer = in_rows(rows, shape, bias, Activations::PerToken);
            layers.push((named(part), layer.with_context(|| named(part))?));
        }
        for (part, of_layer) in layer.norms() {
            plain.push(norm(&named(part), of_layer)?);
        }
    }
    if let Some(Projection::Plain(head)) = &weights.head {
        plain.push(Plain::new("lm_head.weight".to_owned(), head.weight())?);
    }
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer)?;
    }
    for Plain { name, shape, bytes } in &plain {
        export.tensor(name, Dtype::BF16, shape, bytes)?;
    }
    for (name, text) in files {
        export.file(name, text.as_bytes())?;
    }
    Ok(export.write(folder, config)?)
}

fn numbers<B: Fp8Matmul, const D: usize>(tensor: Tensor<B, D>) -> Result<Vec<f32>> {
    tensor.into_data().to_vec().context("it is not f32")
}

/// What a new model has beside its weights.
pub(super) fn files(tokenizer: &Tokenizer) -> Result<Vec<(&'static str, String)>> {
    let tokens = tokenizer.to_string(false).map_err(|error| anyhow!("the tokenizer: {error}"))?;
    Ok(vec![
        ("tokenizer.json", tokens),
        ("tokenizer_config.json", format!("{:#}\n", tokenizer_config())),
        ("generation_config.json", format!("{:#}\n", generation_config())),
    ])
}

/// The same of a model that is there.
pub(super) fn files_of(model: &Path) -> Result<Vec<(&'static str, String)>> {
    let names = [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
    ];
    let read = |name| Ok(read_file(model, name)?.map(|text| (name, text)));
    names.into_iter().filter_map(|name| read(name).transpose()).collect()
}

fn tokenizer_config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "clean_up_tokenization_spaces": false,
    })
}

fn generation_config() -> Value {
    json!({
        "bos_token_id": 0,
        "eos_token_id": 0,
        "do_sample": true,
        "temperature": 0.7,
        "top_p": 0.95,
    })
}
