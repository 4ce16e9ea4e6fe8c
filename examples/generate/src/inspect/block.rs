//! What is run: a layer, or the MLP of a block of a Llama.

use anyhow::{Result, bail};
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use burn::tensor::backend::Backend;
use burn_fp8::Fp8Matmul;
use burn_fp8::checkpoint::Checkpoint;
use burn_fp8::nn::FrozenLinear;
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Inspect;

/// The layers of a Llama's MLP: down(silu(gate(x)) · up(x)).
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];

/// Layers that run one after the other.
pub struct Block<B: Backend> {
    pub name: String,
    /// One, or gate, up and down.
    pub layers: Vec<FrozenLinear<B>>,
}

impl<B: Fp8Matmul> Block<B> {
    /// Reads the layer, or the MLP, of this name.
    pub fn load(checkpoint: &Checkpoint, args: &Inspect, device: &B::Device) -> Result<Self> {
        let names = names(checkpoint, args)?;
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}")?;
        // Hidden where stderr is no terminal.
        let progress = ProgressBar::new(names.len() as u64).with_style(style);
        let mut layers = vec![];
        for name in &names {
            progress.set_message(printable(name));
            layers.push(FrozenLinear::from_checkpoint(checkpoint, name, device)?);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let name = match &names[..] {
            [name] => name.clone(),
            _ => names[0].trim_end_matches(".gate_proj").to_owned(),
        };
        let name = printable(&name);
        if let [gate, up, down] = &layers[..]
            && (gate.dims() != up.dims() || gate.dims()[1] != down.dims()[0])
        {
            bail!(
                "{name}: gate {:?}, up {:?} and down {:?} [in, out] do not fit each other; run one of them with --part",
                gate.dims(),
                up.dims(),
                down.dims()
            );
        }
        Ok(Self { name, layers })
    }

    /// `[tokens, d_input]` to `[tokens, d_output]`.
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.with(x, |layer, x| self.layers[layer].forward(x))
    }

    /// The same with something else in the place of each layer.
    pub fn with(
        &self,
        x: Tensor<B, 2>,
        layer: impl Fn(usize, Tensor<B, 2>) -> Tensor<B, 2>,
    ) -> Tensor<B, 2> {
        match self.layers.len() {
            1 => layer(0, x),
            _ => layer(2, silu(layer(0, x.clone())) * layer(1, x)),
        }
    }

    /// The size of a token.
    pub fn d_input(&self) -> usize {
        self.layers[0].dims()[0]
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(FrozenLinear::bytes).sum()
    }
}

/// The names of the layers of a part.
fn names(checkpoint: &Checkpoint, args: &Inspect) -> Result<Vec<String>> {
    let is_there = |name: &str| checkpoint.layers().iter().any(|layer| layer.name == name);
    let mlp = |prefix: &str| {
        let names = MLP.map(|name| format!("{prefix}{name}"));
        names.iter().all(|name| is_there(name)).then(|| names.to_vec())
    };
    if let Some(part) = &args.part {
        let prefix = format!("{}.", part.trim_end_matches('.').trim_end_matches(".mlp"));
        return match (is_there(part), mlp(&prefix)) {
            (true, _) => Ok(vec![part.clone()]),
            (false, Some(names)) => Ok(names),
            (false, None) => bail!(
                "--part {part}: the model has neither a quantized layer of this name nor {prefix}mlp; --list prints what it has"
            ),
        };
    }
    let first =
        checkpoint.layers().iter().find_map(|layer| mlp(layer.name.strip_suffix(MLP[2])?));
    match (first, checkpoint.layers()) {
        (Some(names), _) => Ok(names),
        (None, [first, ..]) => Ok(vec![first.name.clone()]),
        (None, []) => bail!(
            "the model has no layer in FP8 to run: `generate quantize {} --out FOLDER` writes one that has",
            args.model.display()
        ),
    }
}

/// A name of the file as a terminal may see it.
pub(super) fn printable(name: &str) -> String {
    name.escape_debug().to_string()
}
