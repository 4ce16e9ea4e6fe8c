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
    /// A `config.json`. The tokenizer has fewer tokens than the larger models.
    pub fn config(self) -> Value {
        let [class, family] = match self {
            Self::Qwen3 => ["Qwen3ForCausalLM", "qwen3"],
            Self::Small | Self::Llama => ["LlamaForCausalLM", "llama"],
        };
        // Width, that of the mlp, layers, heads, those of keys, their width, positions, vocabulary.
        let sizes = match self {
            Self::Small => [192, 448, 4, 6, 2, 32, 512, 1024],
            Self::Qwen3 => [1024, 3072, 28, 16, 8, 128, 40_960, 151_936],
            Self::Llama => [2048, 8192, 16, 32, 8, 64, 131_072, 128_256],
        };
        let (epsilon, theta) = match self {
            Self::Small => (1e-5, 10_000.0),
            Self::Qwen3 => (1e-6, 1_000_000.0),
            Self::Llama => (1e-5, 500_000.0),
        };
        let mut config = json!({
            "architectures": [class],
            "model_type": family,
            "hidden_size": sizes[0],
            "intermediate_size": sizes[1],
            "num_hidden_layers": sizes[2],
            "num_attention_heads": sizes[3],
            "num_key_value_heads": sizes[4],
            "head_dim": sizes[5],
            "hidden_act": "silu",
            "rms_norm_eps": epsilon,
            "rope_theta": theta,
            "max_position_embeddings": sizes[6],
            "vocab_size": sizes[7],
            "tie_word_embeddings": true,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "bfloat16",
        });
        if self == Self::Llama {
            config["rope_scaling"] = json!({
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            });
        }
        config
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
