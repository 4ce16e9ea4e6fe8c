//! A trained model as a folder of the hub.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::nn::RmsNorm;
use burn::tensor::Tensor;
use burn_fp8::{Fp8Format, Fp8Matmul, Fp8Tensor, Recipe};
use burn_fp8_checkpoint::{
    Activations, Dtype, Export, LayerInfo, QuantizedLinear, Scales, TensorInfo,
};
use half::bf16;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::folder::check_out;
use super::text::END;
use crate::config::{folder_of, open};
use crate::model::{Projection, Weights, in_rows};

/// A tensor in bf16.
struct InBf16 {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl InBf16 {
    fn new<B: Fp8Matmul, const D: usize>(name: String, tensor: Tensor<B, D>) -> Result<Self> {
        let shape = tensor.dims().to_vec();
        let numbers = numbers(tensor).context(name.clone())?;
        let bytes = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        Ok(Self { name, shape, bytes })
    }
}

/// What shares a scale, of the matrices of layers and of their inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
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
    const ALL: [Self; 4] = [Self::Channel, Self::Tensor, Self::Block, Self::Mxfp8];

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
        let ratio = |(name, matrix): (String, &Projection<B>)| {
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
        let ratios = weights.matrices().map(ratio).collect::<Result<Vec<f64>>>()?;
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        Ok((*scheme, -10.0 * mean.log10()))
    };
    let mut ranked = Scheme::ALL.iter().map(mean).collect::<Result<Vec<_>>>()?;
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    Ok(ranked)
}

/// Writes matrices of layers in E4M3, and embedding, norms, and a head of its own in bf16.
pub(super) fn export<B: Fp8Matmul>(
    weights: &Weights<B>,
    config: &str,
    files: &[(&str, Vec<u8>)],
    scheme: Scheme,
    folder: &Path,
) -> Result<()> {
    let mut layers: Vec<(String, QuantizedLinear)> = vec![];
    let norm =
        |name: &str, norm: &RmsNorm<B>| InBf16::new(format!("{name}.weight"), norm.gamma.val());
    let embedding = "model.embed_tokens.weight".to_owned();
    let mut plain = vec![
        InBf16::new(embedding, weights.embedding.weight())?,
        norm("model.norm", &weights.norm)?,
    ];
    for (name, matrix) in weights.matrices() {
        let Projection::Plain(matrix) = matrix else { bail!("{name} is quantized already") };
        let (weight, bias) = (matrix.weight(), matrix.bias().map(numbers).transpose()?);
        let layer = scheme.quantize(weight, bias).with_context(|| name.clone())?;
        layers.push((name, layer));
    }
    for (name, of_layer) in weights.norms() {
        plain.push(norm(&name, of_layer)?);
    }
    let mut config = config.to_owned();
    if let Some(Projection::Plain(head)) = &weights.head {
        plain.push(InBf16::new("lm_head.weight".to_owned(), head.weight())?);
        config = untied(&config)?;
    }
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer)?;
    }
    for InBf16 { name, shape, bytes } in &plain {
        export.tensor(name, Dtype::BF16, shape, bytes)?;
    }
    for (name, bytes) in files {
        export.file(name, bytes)?;
    }
    Ok(export.write(folder, &config)?)
}

/// Writes a quantized model as compressed-tensors does: the codes as they are, with scales in f32, or in E8M0 for MXFP8; other tensors and the
/// tokenizer as they are. Returns how many layers it has. `warn` is told what is odd about the model.
///
/// All of it is in memory at once.
///
/// # Errors
/// Where a folder cannot be read or written, or has a layer that compressed-tensors has no word for.
pub fn republish(model: &Path, out: &Path, warn: impl FnMut(&str)) -> Result<usize> {
    check_out(out)?;
    let checkpoint = open(model)?;
    checkpoint.warnings().iter().map(|warning| &warning[..]).for_each(warn);
    let load = |layer: &LayerInfo| Ok((layer.name.clone(), checkpoint.linear(&layer.name)?));
    let layers = checkpoint.layers().iter().map(load).collect::<Result<Vec<_>>>()?;
    ensure!(
        !layers.is_empty(),
        "{} has no layer in FP8 to export: `generate quantize {0} --out FOLDER` writes a model that has",
        model.display()
    );
    let load = |tensor: &TensorInfo| checkpoint.tensor(&tensor.name);
    let others = checkpoint.tensors().iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let files = files_of(model)?;
    let mut export = Export::new();
    for (name, layer) in &layers {
        export.linear(name, layer).with_context(|| format!("{name} cannot be exported"))?;
    }
    for tensor in &others {
        let info = tensor.info();
        export.tensor(&info.name, info.dtype, &info.shape, tensor.bytes())?;
    }
    for (name, bytes) in &files {
        export.file(name, bytes)?;
    }
    export.write(out, checkpoint.config())?;
    Ok(layers.len())
}

/// The configuration of a model whose head is its own, whatever that of the model before said.
fn untied(config: &str) -> Result<String> {
    let mut config: Value = serde_json::from_str(config).context("config.json is no JSON")?;
    config["tie_word_embeddings"] = json!(false);
    Ok(config.to_string())
}

fn numbers<B: Fp8Matmul, const D: usize>(tensor: Tensor<B, D>) -> Result<Vec<f32>> {
    tensor.into_data().to_vec().context("it is not f32")
}

/// What a new model has beside its weights.
pub(super) fn files(tokenizer: &Tokenizer) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let tokens = tokenizer.to_string(false).map_err(|error| anyhow!("the tokenizer: {error}"))?;
    let json = |value: Value| format!("{value:#}\n").into_bytes();
    Ok(vec![
        ("tokenizer.json", tokens.into_bytes()),
        ("tokenizer_config.json", json(tokenizer_config())),
        ("generation_config.json", json(generation_config())),
    ])
}

/// The same of a model that is there: its tokenizer in whatever form, and what says how it talks.
const FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Those of [`FILES`] that a model has.
pub(super) fn files_of(model: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let of_model = FILES.map(|name| (name, folder_of(model).join(name)));
    let read = |(name, path): (&'static str, PathBuf)| {
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((name, bytes))
    };
    of_model.into_iter().filter(|(_, path)| path.is_file()).map(read).collect()
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
