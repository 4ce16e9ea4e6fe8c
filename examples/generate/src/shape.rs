//! Shapes of models that can be made from nothing.

use clap::ValueEnum;
use serde_json::{Value, json};

/// A shape of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// A Llama of 1.6 million weights: its folder takes less than 2 MB
    #[default]
    Small,
    /// That of Qwen3-0.6B
    #[value(name = "qwen3-0.6b")]
    Qwen3,
    /// That of Llama-3.2-1B
    #[value(name = "llama-3.2-1b")]
    Llama,
}

impl Shape {
    /// The text of a `config.json`. The tokenizer has fewer tokens than the larger models.
    pub fn config(self) -> Value {
        match self {
            Self::Small => json!({
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 192,
                "intermediate_size": 448,
                "num_hidden_layers": 4,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "max_position_embeddings": 512,
                "vocab_size": 1024,
                "tie_word_embeddings": true,
                "bos_token_id": 0,
                "eos_token_id": 0,
                "torch_dtype": "bfloat16",
            }),
            Self::Qwen3 => json!({
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "hidden_size": 1024,
                "intermediate_size": 3072,
                "num_hidden_layers": 28,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "rope_theta": 1_000_000.0,
                "max_position_embeddings": 40_960,
                "vocab_size": 151_936,
                "tie_word_embeddings": true,
                "bos_token_id": 0,
                "eos_token_id": 0,
                "torch_dtype": "bfloat16",
            }),
            Self::Llama => json!({
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-5,
                "rope_theta": 500_000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
                "max_position_embeddings": 131_072,
                "vocab_size": 128_256,
                "tie_word_embeddings": true,
                "bos_token_id": 0,
                "eos_token_id": 0,
                "torch_dtype": "bfloat16",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_fp8_serve::Config;

    use super::*;

    /// The numbers of weights that the models' names say, embeddings included.
    #[test]
    fn shapes_are_those_of_their_models() {
        for (shape, expected) in
            [(Shape::Small, 0.00162e9), (Shape::Qwen3, 0.596e9), (Shape::Llama, 1.236e9)]
        {
            let config = Config::parse(&shape.config().to_string()).expect("a configuration");
            let Config { hidden, intermediate, heads, kv_heads, head_width, vocabulary, .. } =
                config;
            let attention = 2 * hidden * head_width * (heads + kv_heads);
            let layer = attention + 3 * hidden * intermediate;
            let weights = (vocabulary * hidden + config.layers() * layer) as f64;
            assert!((weights / expected - 1.0).abs() < 0.01, "{shape:?}: {weights}");
        }
    }
}
