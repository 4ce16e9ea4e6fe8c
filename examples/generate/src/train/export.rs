//! A trained model as a folder of the hub.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::{Activations, Dtype, Export, QuantizedLinear};
use half::bf16;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::text::END;
use crate::model::{Projection, Weights, in_rows};

/// A tensor in bf16.
struct Plain {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Plain {
    fn new<B: Fp8Matmul, const D: usize>(name: String, tensor: Tensor<B, D>) -> Result<Self> {
        let shape = tensor.dims().to_vec();
        let numbers = tensor.into_data().to_vec::<f32>();
        let numbers = numbers.with_context(|| format!("{name} is not f32"))?;
        let bytes = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        Ok(Self { name, shape, bytes })
    }
}

/// Writes matrices of layers in E4M3 with a scale for each output, the codes that a training with `Recipe::rowwise` multiplies, and embedding and norms in
/// bf16; inputs are declared to be quantized token by token.
pub(super) fn export<B: Fp8Matmul>(
    weights: &Weights<B>,
    config: &Value,
    tokenizer: &Tokenizer,
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
            let weight = matrix.weight();
            let shape = weight.dims();
            let rows = std::iter::once(weight);
            layers.push((named(part), in_rows(rows, shape, Activations::PerToken)?));
        }
        for (part, of_layer) in layer.norms() {
            plain.push(norm(&named(part), of_layer)?);
        }
    }
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer)?;
    }
    for Plain { name, shape, bytes } in &plain {
        export.tensor(name, Dtype::BF16, shape, bytes)?;
    }
    export.write(folder, &config.to_string())?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let tokens = tokenizer.to_string(false).map_err(|error| anyhow!("the tokenizer: {error}"))?;
    write("tokenizer.json", tokens)?;
    write("tokenizer_config.json", format!("{:#}\n", tokenizer_config()))?;
    write("generation_config.json", format!("{:#}\n", generation_config()))
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
