//! The model, written once for every backend.

mod block;
mod layers;
mod weights;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig,
};
use burn::tensor::backend::Backend;
use burn::tensor::{FloatDType, Int, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::Fp8DotGeneralConfig;
use burn_fp8::report::named;
use burn_fp8_train::policy;

use block::{Block, drop_out};
use layers::DEVIATION;
use layers::Dense;
pub use layers::{LayerKind, Layers};
pub use weights::{load, save, shapes};

use crate::size::Shape;

/// A GPT on characters: token and position embeddings, blocks, a last norm and a head of its own.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    dropout: Dropout,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    head: Dense<B>,
}

impl<B: Fp8Matmul> Gpt<B> {
    /// A model with weights drawn from the backend's random numbers; `characters` is the width of its head.
    pub fn new(shape: &Shape, characters: usize, device: &B::Device) -> Self {
        let embedding = |rows| {
            let initializer = Initializer::Normal { mean: 0.0, std: DEVIATION };
            EmbeddingConfig::new(rows, shape.width).with_initializer(initializer).init(device)
        };
        let model = Self {
            tokens: embedding(characters),
            positions: embedding(shape.context),
            dropout: DropoutConfig::new(shape.dropout).init(),
            blocks: (0..shape.layers).map(|_| Block::new(shape, device)).collect(),
            norm: LayerNormConfig::new(shape.width).init(device),
            head: Dense::new(shape.width, characters, DEVIATION, device),
        };
        // Burn draws weights when they are first used; drawn now, they depend on nothing but the seed.
        model.num_params();
        model
    }

    /// The model with FP8 layers in place of all its linear layers.
    pub fn with_fp8_layers(self, config: &Fp8DotGeneralConfig) -> Self {
        Self {
            blocks: self.blocks.into_iter().map(|block| block.with_fp8_layers(config)).collect(),
            head: self.head.with_fp8(config),
            ..self
        }
    }

    /// The model with these layers kept out of FP8.
    ///
    /// # Errors
    /// Where it has no such block.
    pub fn with_high_precision(self, layers: Layers) -> Result<Self> {
        if let Layers::Block(index) | Layers::One(index, _) = layers
            && index >= self.blocks.len()
        {
            bail!("block{index} does not exist: the model has {} blocks", self.blocks.len());
        }
        let blocks = self.blocks.into_iter().enumerate().map(|(index, block)| {
            block.map_layers(|kind, layer| {
                let chosen = [Layers::Kind(kind), Layers::Block(index), Layers::One(index, kind)];
                if chosen.contains(&layers) { layer.in_high_precision() } else { layer }
            })
        });
        Ok(Self {
            blocks: blocks.collect(),
            head: match layers {
                Layers::Kind(LayerKind::Head) => self.head.in_high_precision(),
                _ => self.head,
            },
            ..self
        })
    }

    /// Numbers of characters `[batch, n]`, n up to the context, to logits of the next one `[batch, n, characters]`.
    pub fn forward(&self, characters: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [_, context] = characters.dims();
        let device = characters.device();
        let positions = Tensor::<B, 1, Int>::arange(0..context as i64, &device).unsqueeze();
        let x = self.tokens.forward(characters) + self.positions.forward(positions);
        let future = future(context, &device);
        let x = drop_out(&self.dropout, x);
        let x = self.blocks.iter().enumerate().fold(x, |x, (index, block)| {
            named(&format!("block{index}"), || block.forward(x, &future))
        });
        let x = self.norm.forward(x);
        named(LayerKind::Head.as_str(), || self.head.forward(x))
    }

    /// The mean cross-entropy in nats a character of the batch, `[1]`.
    pub fn loss(&self, inputs: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        let logits = self.forward(inputs);
        let [batch, context, characters] = logits.dims();
        let device = logits.device();
        let logits = logits.reshape([batch * context, characters]);
        // The loss is one number a batch: it stays in f32 whatever the model gives out.
        let logits = policy::cast_to_output(logits).cast(FloatDType::F32);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, targets.reshape([batch * context]))
    }
}

/// -10,000 above the diagonal, where a position would see what it is to predict, else 0: `[context, context]`. It is finite, so that no row of
/// another precision can become NaN, and e^-10000 is 0 in all of them. No bools take part, as Burn 0.21 can fail where it fuses a product with an
/// operation on bools (`docs/limits.md`).
fn future<B: Backend>(context: usize, device: &B::Device) -> Tensor<B, 2> {
    let row = |row| (0..context).map(move |column| if column > row { -1e4f32 } else { 0.0 });
    let mask: Vec<_> = (0..context).flat_map(row).collect();
    Tensor::from_data(TensorData::new(mask, [context, context]), device)
}
