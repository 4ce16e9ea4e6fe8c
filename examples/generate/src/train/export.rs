//! A trained model as a folder of the hub.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_fp8::checkpoint::{Activations, Dtype, Export, QuantizedLinear, Scales};
use burn_fp8::{Fp8Format, Fp8Matmul, Fp8Tensor, Recipe};
use clap::ValueEnum;
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

/// What shares a scale, of the matrices of layers and of their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    /// An output's weights, and a token's inputs
    #[default]
    Channel,
    /// A matrix, and a token's inputs
    Tensor,
    /// 128 × 128 weights, and 128 inputs
    Block,
    /// 32 weights, and 32 inputs, by powers of two: MXFP8
    Mxfp8,
}

impl Scheme {
    /// A matrix `[out, in]` in E4M3.
    fn quantize<B: Fp8Matmul>(
        self,
        weight: Tensor<B, 2>,
        bias: Option<Vec<f32>>,
    ) -> Result<QuantizedLinear> {
        let shape @ [out, input] = weight.dims();
        let (block, activations) = match self {
            // The codes that a training with `Recipe::rowwise` multiplies.
            Self::Channel => {
                return in_rows(std::iter::once(weight), shape, bias, Activations::PerToken);
            }
            Self::Tensor => ([out, input], Activations::PerToken),
            Self::Block => ([128; 2], Activations::Blocks { size: 128, power_of_two: false }),
            Self::Mxfp8 => ([1, 32], Activations::Mx),
        };
        let recipe = if self == Self::Mxfp8 { Recipe::mxfp8() } else { Recipe::current() };
        let matrix = Fp8Tensor::quantize_blocks(weight, Fp8Format::E4M3, block, recipe)?;
        let scales = Scales::new(shape, block, numbers(matrix.scales())?)?;
        Ok(QuantizedLinear::new(shape, matrix.to_bytes(), scales, bias, activations)?)
    }
}

/// The signal over the noise that each scheme leaves, in decibels, where noise is the mean over the matrices of layers, each relative to its signal; the best
/// scheme first.
pub(super) fn ranked<B: Fp8Matmul>(weights: &Weights<B>) -> Result<Vec<(Scheme, f64)>> {
    let mean = |scheme: &Scheme| {
        let matrices = weights.layers.iter().flat_map(|layer| layer.matrices());
        let ratio = |(name, matrix): (&str, &Projection<B>)| {
            let Projection::Plain(matrix) = matrix else { bail!("{name} is quantized already") };
            let (weight, mut signal, mut noise) = (numbers(matrix.weight())?, 0.0, 0.0);
            let quantized = scheme.quantize(matrix.weight(), None)?.dequantize();
            for (exact, rounded) in weight.iter().zip(&quantized) {
                let (exact, rounded) = (f64::from(*exact), f64::from(*rounded));
                signal += exact * exact;
                noise += (exact - rounded) * (exact - rounded);
            }
            // A matrix of zeros has neither.
            Ok(if noise == 0.0 { 0.0 } else { noise / signal })
        };
        let ratios = matrices.map(ratio).collect::<Result<Vec<f64>>>()?;
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        Ok((*scheme, -10.0 * mean.log10()))
    };
    let mut ranked = Scheme::value_variants().iter().map(mean).collect::<Result<Vec<_>>>()?;
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Ok(ranked)
}

/// Writes matrices of layers in E4M3, and embedding and norms in bf16.
pub(super) fn export<B: Fp8Matmul>(
    weights: &Weights<B>,
    config: &str,
    files: &[(&str, String)],
    scheme: Scheme,
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
            let layer = scheme.quantize(weight, bias);
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
