//! What a checkpoint and its layers are: whose form they have, and how weights and activations are scaled.

use std::fmt;

use crate::safetensors::Dtype;
use crate::text;

/// Which library's form a checkpoint has: `quant_method` of its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// No quantization is declared, and no tensor is FP8.
    None,
    /// `compressed-tensors`, which vLLM's llm-compressor writes.
    CompressedTensors,
    /// `fp8`: DeepSeek-V3, Qwen3 and others, with `weight_scale_inv`; also AutoFP8's, with `weight_scale`.
    Fp8,
    /// `modelopt`: NVIDIA's Model Optimizer.
    ModelOpt,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "not quantized",
            Self::CompressedTensors => "compressed-tensors",
            Self::Fp8 => "fp8",
            Self::ModelOpt => "modelopt",
        })
    }
}

/// What one scale of a weight `[out, in]` is for. Weights are E4M3: `x ≈ code × scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum WeightScaling {
    /// The whole weight.
    PerTensor,
    /// A row, one output.
    PerChannel,
    /// A block of these rows and columns; the last ones may be smaller.
    Blocks([usize; 2]),
    /// 32 elements along a row, with an E8M0 scale: MXFP8.
    Mx,
}

impl WeightScaling {
    /// Rows and columns of a block in a weight of this shape.
    pub fn block(self, shape: [usize; 2]) -> [usize; 2] {
        match self {
            Self::PerTensor => shape,
            Self::PerChannel => [1, shape[1]],
            Self::Blocks(block) => block,
            Self::Mx => [1, MX_BLOCK],
        }
    }

    /// Rows and columns of blocks in a weight of this shape.
    pub fn grid(self, shape: [usize; 2]) -> [usize; 2] {
        let block = self.block(shape);
        [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])]
    }
}

/// The elements of a block of MXFP8.
pub(crate) const MX_BLOCK: usize = 32;

impl fmt::Display for WeightScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerTensor => f.write_str("per tensor"),
            Self::PerChannel => f.write_str("per channel"),
            Self::Blocks([rows, columns]) => write!(f, "per {rows}×{columns} block"),
            Self::Mx => write!(f, "per 1×{MX_BLOCK} block (MXFP8)"),
        }
    }
}

/// How a checkpoint means a layer's activations to be quantized, to E4M3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ActivationScaling {
    /// Not at all: only weights are FP8.
    None,
    /// With one scale that the checkpoint holds.
    Static,
    /// With a scale for each row of activations, from its amax.
    PerToken,
    /// With one scale, from the amax of all of them.
    PerTensor,
    /// With a scale for each block along a row.
    Blocks {
        /// The elements of a block.
        size: usize,
        /// Whether scales are rounded up to powers of two: `scale_fmt: ue8m0` of DeepSeek-V3.1.
        power_of_two: bool,
    },
    /// As MXFP8: blocks of 32 along a row, with E8M0 scales.
    Mx,
}

impl fmt::Display for ActivationScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("not quantized"),
            Self::Static => f.write_str("static, per tensor"),
            Self::PerToken => f.write_str("dynamic, per token"),
            Self::PerTensor => f.write_str("dynamic, per tensor"),
            Self::Blocks { size, power_of_two: false } => {
                write!(f, "dynamic, per 1×{size} block")
            }
            Self::Blocks { size, power_of_two: true } => {
                write!(f, "dynamic, per 1×{size} block, scales powers of two")
            }
            Self::Mx => write!(f, "dynamic, per 1×{MX_BLOCK} block (MXFP8)"),
        }
    }
}

/// Both of them, as a configuration gives them to a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scheme {
    pub(crate) weight: WeightScaling,
    pub(crate) activations: ActivationScaling,
}

/// A quantized linear layer of a checkpoint: an E4M3 weight, its scales, and what else belongs to them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerInfo {
    /// The name without `.weight`: `model.layers.0.mlp.down_proj`.
    pub name: String,
    /// `[out, in]`, as stored.
    pub shape: [usize; 2],
    /// What one scale of the weight is for.
    pub weight: WeightScaling,
    /// The type in which scales are stored.
    pub scale_dtype: Dtype,
    /// How activations are meant to be quantized.
    pub activations: ActivationScaling,
    /// Whether it has a bias, `[out]`.
    pub bias: bool,
    /// The bytes of all its tensors in the file.
    pub bytes: u64,
}

impl fmt::Display for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, shape, weight, scale_dtype, activations, bias, bytes } = self;
        let bias = if *bias { ", bias" } else { "" };
        let name = text::name(name);
        write!(f, "{name}: E4M3 {shape:?}, {scale_dtype} scales {weight}{bias}; ")?;
        write!(f, "activations {activations}; {bytes} bytes")
    }
}

/// The format of a checkpoint: its method, and how many layers have which scales. Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Format {
    /// Whose form it has.
    pub method: Method,
    /// The kinds of layers, the most frequent first.
    pub kinds: Vec<LayerKind>,
}

/// Layers that are quantized alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerKind {
    /// What one scale of a weight is for.
    pub weight: WeightScaling,
    /// The type in which scales are stored.
    pub scale_dtype: Dtype,
    /// How activations are meant to be quantized.
    pub activations: ActivationScaling,
    /// How many layers there are of this kind.
    pub layers: usize,
}

impl Format {
    pub(crate) fn new(method: Method, layers: &[LayerInfo]) -> Self {
        let mut kinds: Vec<LayerKind> = vec![];
        for layer in layers {
            let LayerInfo { weight, scale_dtype, activations, .. } = *layer;
            let new = LayerKind { weight, scale_dtype, activations, layers: 1 };
            match kinds.iter_mut().find(|kind| LayerKind { layers: 1, ..**kind } == new) {
                Some(kind) => kind.layers += 1,
                None => kinds.push(new),
            }
        }
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.layers));
        Self { method, kinds }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.method)?;
        if self.kinds.is_empty() {
            return f.write_str(": no quantized layers");
        }
        for (place, kind) in self.kinds.iter().enumerate() {
            let LayerKind { weight, scale_dtype, activations, layers } = kind;
            f.write_str(if place == 0 { ": " } else { "; " })?;
            let noun = if *layers == 1 { "layer" } else { "layers" };
            write!(f, "{layers} {noun}, E4M3 weights with {scale_dtype} scales {weight}, ")?;
            write!(f, "activations {activations}")?;
        }
        Ok(())
    }
}
