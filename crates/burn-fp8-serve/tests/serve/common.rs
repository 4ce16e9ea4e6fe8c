use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8_checkpoint::Checkpoint;
use burn_fp8_serve::{CacheType, Config, Decoder, Head, Inputs, LoadOptions};
use safetensors::SafeTensors;
use serde_json::Value;

pub const MODELS: [&str; 4] = ["llama_block", "mistral_tensor", "qwen2_mxfp8", "qwen3_channel"];
pub const PROMPTS: [&str; 3] = ["one", "short", "long"];

pub fn folder(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model)
}

pub fn load<B: Fp8Matmul>(model: &str, inputs: Inputs) -> Decoder<B> {
    load_from(&folder(model), inputs)
}

pub fn load_from<B: Fp8Matmul>(folder: &Path, inputs: Inputs) -> Decoder<B> {
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    let config = Config::parse(checkpoint.config()).expect("a configuration");
    let options = LoadOptions { inputs, head: Head::Own };
    Decoder::load(&checkpoint, config, options, &Default::default(), |_, _| ()).expect("a decoder")
}

/// Logits of rows of as many tokens each, in one call, with an exact cache.
pub fn logits<B: Fp8Matmul>(decoder: &Decoder<B>, rows: &[Vec<u32>]) -> Vec<f32> {
    let mut cache = decoder.cache(CacheType::F32, vec![0; rows.len()]);
    numbers(decoder.forward(rows, &mut cache, false).expect("tokens of the model"))
}

pub fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().to_vec().expect("f32")
}

/// What transformers computed.
pub struct Expected {
    tensors: Vec<u8>,
    pub json: Value,
}

impl Expected {
    pub fn read(model: &str) -> Self {
        let read = |file| fs::read(folder(model).join(file)).expect("a golden file");
        let json = serde_json::from_slice(&read("expected.json")).expect("JSON");
        Self { tensors: read("expected.safetensors"), json }
    }

    fn bytes<const N: usize, T>(&self, name: &str, number: fn([u8; N]) -> T) -> Vec<T> {
        let file = SafeTensors::deserialize(&self.tensors).expect("safetensors");
        let tensor = file.tensor(name).expect("a tensor");
        let (numbers, rest) = tensor.data().as_chunks::<N>();
        assert!(rest.is_empty() && !numbers.is_empty());
        numbers.iter().copied().map(number).collect()
    }

    pub fn tokens(&self, prompt: &str) -> Vec<u32> {
        let tokens = self.bytes(&format!("{prompt}/tokens"), i64::from_le_bytes);
        tokens.into_iter().map(|token| u32::try_from(token).expect("a token")).collect()
    }

    pub fn logits(&self, prompt: &str, kind: &str) -> Vec<f32> {
        self.bytes(&format!("{prompt}/logits{kind}"), f32::from_le_bytes)
    }
}

pub fn max(values: impl IntoIterator<Item = f32>) -> f32 {
    values.into_iter().map(f32::abs).fold(0.0, f32::max)
}

/// The largest difference over the largest magnitude expected.
#[track_caller]
pub fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()));
    max(found.iter().zip(expected).map(|(a, b)| a - b)) / max(expected.iter().copied())
}
