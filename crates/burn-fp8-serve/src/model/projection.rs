//! Matrices of a model: in FP8, or as the file has them.

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Distribution, FloatDType, Int, Tensor, TensorData};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::ops::linear_mixed;
use burn_fp8::{Fp8Format, Fp8Matmul, Fp8Tensor};
use burn_fp8_checkpoint::{
    Activations, Checkpoint, Dtype, LayerInfo, QuantizedLinear, Scales, TensorInfo,
};
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};

use crate::lora::LoraLinear;

/// Standard deviation of random weights.
pub(super) const WIDTH: f64 = 0.02;

/// Elements of a matrix that are converted to f32 at a time.
const PIECE: usize = 1 << 20;

/// A linear layer.
#[derive(Module, Debug)]
pub(crate) enum Projection<B: Backend> {
    /// In FP8.
    Frozen(FrozenLinear<B>),
    /// In FP8, with an adapter beside it.
    Adapted(LoraLinear<B>),
    /// As the file has it.
    Plain(Plain<B>),
}

impl<B: Fp8Matmul> Projection<B> {
    /// `[…, in]` to `[…, out]`.
    pub(super) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        match self {
            Self::Frozen(layer) => layer.forward(x),
            Self::Adapted(layer) => layer.forward(x),
            Self::Plain(layer) => layer.forward(x),
        }
    }

    /// How many inputs it has.
    pub(super) fn inputs(&self) -> usize {
        match self {
            Self::Frozen(layer) => layer.dims()[0],
            Self::Adapted(layer) => layer.base.dims()[0],
            Self::Plain(layer) => layer.weight.dims()[1],
        }
    }

    /// The same in f32, with what an adapter adds: a layer that can be trained, and quantized anew.
    pub(super) fn dense(&self) -> Plain<B> {
        let (weight, bias) = match self {
            Self::Frozen(layer) => (layer.weight(), layer.bias()),
            Self::Adapted(layer) => (layer.merged(), layer.base.bias()),
            Self::Plain(layer) => return layer.dense(),
        };
        let bias = bias.cloned().map(|bias| Param::from_tensor(bias.detach()));
        Plain { weight: Param::from_tensor(weight.transpose().detach()), bias }
    }

    /// Whether it has the numbers of this matrix `[out, in]`.
    pub(super) fn is(&self, weight: &Tensor<B, 2>) -> bool {
        match self {
            Self::Plain(layer) => layer.is(weight),
            layer => layer.dense().is(weight),
        }
    }

    /// Bytes that it holds.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Frozen(layer) => layer.bytes(),
            Self::Adapted(layer) => {
                let numbers = layer.a.shape().num_elements() + layer.b.shape().num_elements();
                layer.base.bytes() + numbers * size_of::<f32>()
            }
            Self::Plain(layer) => layer.bytes(),
        }
    }
}

/// A matrix that is not quantized, in the type of its file where the backend has it.
#[derive(Module, Debug)]
pub(crate) struct Plain<B: Backend> {
    /// `[out, in]`.
    weight: Param<Tensor<B, 2>>,
    /// `[out]`, f32.
    bias: Option<Param<Tensor<B, 1>>>,
}

impl<B: Fp8Matmul> Plain<B> {
    /// Random numbers of this standard deviation, without a bias.
    pub(super) fn random(shape: [usize; 2], width: f64, device: &B::Device) -> Self {
        Self::new(Tensor::random(shape, Distribution::Normal(0.0, width), device))
    }

    /// Without a bias.
    pub(super) fn new(weight: Tensor<B, 2>) -> Self {
        Self { weight: Param::from_tensor(weight), bias: None }
    }

    /// Puts another matrix in its place.
    pub(super) fn replace(&mut self, weight: Tensor<B, 2>) {
        self.weight = Param::from_tensor(weight);
    }

    /// Makes it one that is trained, in f32.
    pub(crate) fn train(&mut self) {
        *self = self.dense();
        self.weight = self.weight.clone().set_require_grad(true);
    }

    /// Whether it has the numbers of this matrix, be they of another type.
    pub(super) fn is(&self, weight: &Tensor<B, 2>) -> bool {
        let [own, other] = [self.weight.val(), weight.clone()].map(Tensor::into_data);
        // A head that is the embedding mostly has its bytes: these are read once, and no number is made of them.
        own.dtype == other.dtype && own.as_bytes() == other.as_bytes()
            || own.iter::<f32>().eq(other.iter::<f32>())
    }

    /// `[out, in]`.
    pub(crate) fn weight(&self) -> Tensor<B, 2> {
        self.weight.val()
    }

    /// `[out]`, f32.
    pub(crate) fn bias(&self) -> Option<Tensor<B, 1>> {
        self.bias.as_ref().map(Param::val)
    }

    /// The same in f32.
    pub(super) fn dense(&self) -> Self {
        let weight = self.weight.val().cast(FloatDType::F32).detach();
        Self { weight: Param::from_tensor(weight), bias: self.bias.clone() }
    }

    /// `[…, in]` to `[…, out]`.
    pub(super) fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let weight = self.weight.val();
        let y = match weight.dtype() {
            // Weights that are trained: the backend multiplies, in FP8 where it does so.
            DType::F32 => {
                let ([out, input], mut shape) = (weight.dims(), x.dims());
                shape[D - 1] = out;
                let x: Tensor<B, 2> = x.reshape([-1, input as i64]);
                x.matmul(weight.transpose()).reshape(shape)
            }
            _ => linear_mixed(x, weight),
        };
        match &self.bias {
            Some(bias) => y + bias.val().unsqueeze(),
            None => y,
        }
    }

    /// The rows of tokens, in f32.
    pub(super) fn rows(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let [batch, length] = tokens.dims();
        let rows = self.weight.val().select(0, tokens.reshape([-1]));
        rows.cast(FloatDType::F32).reshape([batch as i64, length as i64, -1])
    }

    pub(super) fn bytes(&self) -> usize {
        let weight = self.weight.val();
        let bias = self.bias.as_ref().map_or(0, |bias| bias.dims()[0] * size_of::<f32>());
        weight.shape().num_elements() * weight.dtype().size() + bias
    }
}

/// Reads matrices of a checkpoint onto a device.
pub(super) struct Reader<'a, B: Backend> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) device: &'a B::Device,
    /// Whether inputs are left as they are, whatever the file declares.
    pub(super) high: bool,
    /// What was read, by name.
    pub(super) read: RefCell<BTreeSet<String>>,
}

/// What files have beside weights: tables that are computed anew.
const TABLES: &str = ".rotary_emb.inv_freq";

/// How the names of scales end that are meant for a cache in FP8, and for attention to it. Of vLLM and compressed-tensors, of ModelOpt (`k_proj.k_scale`), of AMD's
/// first models (`kv_scale`), and of earlier compressed-tensors and Quark (`output_scale`).
const CACHE_SCALES: [&str; 8] = [
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
    ".k_proj.output_scale",
    ".v_proj.output_scale",
    ".q_proj.output_scale",
    ".self_attn.prob_output_scale",
];

impl<B: Fp8Matmul> Reader<'_, B> {
    fn quantized(&self, name: &str) -> Option<&LayerInfo> {
        self.checkpoint.layers().iter().find(|layer| layer.name == name)
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.checkpoint.tensors().iter().find(|tensor| tensor.name == name)
    }

    /// Refuses a file with weights that were not read: it is another model than its configuration says. Gives what is left of scales of a cache, in words.
    pub(super) fn check_all_read(&self) -> Result<Option<String>> {
        let (read, layers) = (self.read.borrow(), self.checkpoint.layers());
        let names = layers.iter().map(|layer| &layer.name);
        let names = names.chain(self.checkpoint.tensors().iter().map(|tensor| &tensor.name));
        let left = names.filter(|name| !read.contains(&name[..]) && !name.ends_with(TABLES));
        let is_scale = |name: &&String| CACHE_SCALES.iter().any(|end| name.ends_with(end));
        let (scales, left): (Vec<_>, Vec<_>) = left.partition(is_scale);
        if let [name, ref others @ ..] = left[..] {
            bail!(
                "the file has {name:?} and {} other tensors that a model of config.json does not have: they do not belong together",
                others.len()
            );
        }
        let told = |name: &&String| {
            format!(
                "{} scales for keys and values in FP8, such as {name:?}, are not used: each head of a token has a scale of its own in --cache fp8, and no other cache has any",
                scales.len()
            )
        };
        Ok(scales.first().map(told))
    }

    /// Whether the file has a matrix of this name, in whatever numbers.
    pub(super) fn has(&self, name: &str) -> bool {
        self.quantized(name).is_some() || self.tensor(&format!("{name}.weight")).is_some()
    }

    /// A linear layer of this name, `[out, in]`.
    pub(super) fn projection(
        &self,
        name: &str,
        shape: [usize; 2],
        bias: bool,
    ) -> Result<Projection<B>> {
        let Some(info) = self.quantized(name) else {
            return Ok(Projection::Plain(self.plain(name, shape, bias)?));
        };
        ensure!(
            info.shape == shape,
            "{name} is {:?} [out, in]; config.json means {shape:?}",
            info.shape
        );
        check_bias(name, info.bias, bias)?;
        self.read.borrow_mut().insert(name.to_owned());
        let layer = FrozenLinear::from_checkpoint(self.checkpoint, name, self.device)?;
        Ok(Projection::Frozen(match self.high {
            true => layer.with_activation(ActivationScale::Unquantized)?,
            false => layer,
        }))
    }

    /// A matrix that is not quantized, `[out, in]`.
    pub(super) fn plain(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Plain<B>> {
        let weight = self.matrix(&format!("{name}.weight"), shape)?;
        let of_bias = format!("{name}.bias");
        check_bias(name, self.tensor(&of_bias).is_some(), bias)?;
        let bias = bias.then(|| self.vector(&of_bias, shape[0])).transpose()?;
        Ok(Plain { weight: Param::from_tensor(weight), bias })
    }

    /// A vector in f32.
    pub(super) fn vector(&self, name: &str, length: usize) -> Result<Param<Tensor<B, 1>>> {
        self.check(name, &[length])?;
        let data = TensorData::new(self.numbers(name)?, [length]);
        Ok(Param::from_tensor(Tensor::from_data(data, (self.device, DType::F32))))
    }

    /// A matrix of this name in its own type, or in f32 where the backend has no such type.
    pub(super) fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Tensor<B, 2>> {
        let own = match self.check(name, &shape)? {
            Some(Dtype::BF16) => DType::BF16,
            Some(Dtype::F16) => DType::F16,
            _ => DType::F32,
        };
        let dtype = if B::supports_dtype(self.device, own) { own } else { DType::F32 };
        let data = match dtype {
            DType::F32 => TensorData::new(self.numbers(name)?, shape),
            dtype => {
                let bits = self.checkpoint.halves(name)?;
                // Numbers whose exponent has all of its bits are not finite.
                let exponent = if dtype == DType::BF16 { 0x7F80 } else { 0x7C00 };
                check_finite(name, &bits, |bits| bits & exponent != exponent)?;
                match dtype {
                    DType::BF16 => TensorData::new::<bf16, _>(bits.reinterpret_into(), shape),
                    _ => TensorData::new::<f16, _>(bits.reinterpret_into(), shape),
                }
            }
        };
        Ok(Tensor::from_data(data, (self.device, dtype)))
    }

    /// The numbers of a tensor that was checked, in f32.
    fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        let numbers = self.checkpoint.tensor(name)?.to_f32()?;
        check_finite(name, &numbers, |number| number.is_finite())?;
        Ok(numbers)
    }

    /// Checks the shape of a tensor, and gives its type; none where no such tensor lies outside of quantized layers, which whoever reads it as numbers is told.
    fn check(&self, name: &str, shape: &[usize]) -> Result<Option<Dtype>> {
        self.read.borrow_mut().insert(name.to_owned());
        let Some(TensorInfo { dtype, shape: found, .. }) = self.tensor(name) else {
            return Ok(None);
        };
        ensure!(found == shape, "{name} is {found:?}; config.json means {shape:?}");
        Ok(Some(*dtype))
    }
}

/// Elements that are looked at together, for which there are vectors.
const TOGETHER: usize = 4096;

fn check_finite<T: Copy>(name: &str, x: &[T], is_finite: impl Fn(T) -> bool) -> Result<()> {
    let are_finite = |x: &[T]| x.iter().fold(true, |are, x| are & is_finite(*x));
    let Some(chunk) = x.chunks(TOGETHER).position(|x| !are_finite(x)) else { return Ok(()) };
    let first = chunk * TOGETHER;
    let place = first + x[first..].iter().take_while(|x| is_finite(**x)).count();
    bail!("{name} has a number that is not finite, at {place}: the file is damaged; fetch it again")
}

/// A matrix `[out, in]` with its rows in FP8, a scale each. Inputs are not quantized.
pub(super) fn in_fp8<B: Fp8Matmul>(
    weight: Tensor<B, 2>,
    device: &B::Device,
) -> Result<Projection<B>> {
    let [out, input] = weight.dims();
    let rows = (PIECE / input).max(1);
    let piece = |first: usize| weight.clone().narrow(0, first, rows.min(out - first));
    let layer =
        in_rows::<B>((0..out).step_by(rows).map(piece), [out, input], None, Activations::None)?;
    Ok(Projection::Frozen(FrozenLinear::from_published(layer, device)))
}

fn check_bias(name: &str, found: bool, expected: bool) -> Result<()> {
    match (found, expected) {
        (false, true) => bail!("{name} has no bias; config.json means that it has one"),
        (true, false) => bail!("{name} has a bias; config.json means that it has none"),
        _ => Ok(()),
    }
}

/// A matrix `[out, in]`, given in pieces of rows, in FP8 with a scale for each row; and its bias `[out]`.
pub(crate) fn in_rows<B: Fp8Matmul>(
    pieces: impl Iterator<Item = Tensor<B, 2>>,
    [out, input]: [usize; 2],
    bias: Option<Vec<f32>>,
    activations: Activations,
) -> Result<QuantizedLinear> {
    let (mut codes, mut scales) = (Vec::with_capacity(out * input), Vec::with_capacity(out));
    for rows in pieces {
        let rows = Fp8Tensor::quantize_rows(rows, Fp8Format::E4M3)?;
        codes.extend(rows.to_bytes());
        let numbers = rows.scales().into_data().to_vec::<f32>();
        scales.extend(numbers.context("the backend gave scales of another type than f32")?);
    }
    let scales = Scales::new([out, input], [1, input], scales)?;
    Ok(QuantizedLinear::new([out, input], codes, scales, bias, activations)?)
}
