//! A published FP8 checkpoint: its layers are read with codes and scales as they lie in the file, and multiplied without ever becoming f32.

use std::error::Error;
use std::path::PathBuf;

use burn::backend::Flex;
use burn::tensor::activation::silu;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::nn::FrozenLinear;

/// The gated MLP of a decoder's block.
struct Mlp {
    gate: FrozenLinear<Flex>,
    up: FrozenLinear<Flex>,
    down: FrozenLinear<Flex>,
}

impl Mlp {
    fn load(checkpoint: &Checkpoint, block: usize) -> Result<Self, Box<dyn Error>> {
        let layer = |name: &str| {
            let name = format!("model.layers.{block}.mlp.{name}_proj");
            FrozenLinear::from_checkpoint(checkpoint, &name, &Default::default())
        };
        Ok(Self { gate: layer("gate")?, up: layer("up")?, down: layer("down")? })
    }

    fn forward(&self, x: Tensor<Flex, 2>) -> Tensor<Flex, 2> {
        self.down.forward(silu(self.gate.forward(x.clone())) * self.up.forward(x))
    }

    fn bytes(&self) -> usize {
        [&self.gate, &self.up, &self.down].map(FrozenLinear::bytes).iter().sum()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // A folder of Hugging Face's hub, such as Qwen3-0.6B-FP8; else the small model of this repository.
    let built_in = concat!(env!("CARGO_MANIFEST_DIR"), "/../generate/model");
    let folder = std::env::args_os().nth(1).map_or(built_in.into(), PathBuf::from);
    let checkpoint = Checkpoint::open(folder)?;
    println!("{} layers in FP8", checkpoint.layers().len());
    let mlp = Mlp::load(&checkpoint, 0)?;
    let [width, hidden] = mlp.up.dims();
    println!("block 0: {width} → {hidden} → {width} in {} bytes", mlp.bytes());
    let x = Tensor::random([4, width], Distribution::Normal(0.0, 1.0), &Default::default());
    let y = mlp.forward(x.clone());
    // The same with weights that are decoded to f32, and inputs that are not rounded.
    let [gate, up, down] = [&mlp.gate, &mlp.up, &mlp.down].map(FrozenLinear::weight);
    let exact = (silu(x.clone().matmul(gate)) * x.matmul(up)).matmul(down);
    let error = (y - exact.clone()).powi_scalar(2).sum() / exact.powi_scalar(2).sum();
    println!("rounding the inputs to FP8 costs {:.1}%", 100.0 * error.sqrt().into_scalar());
    Ok(())
}
