//! A training step of Burn's own `TransformerEncoder`, with nothing changed but the type of the backend: against f32, and beside layers that stand in for
//! its attention and dropout.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput, TransformerEncoderLayer,
};
use burn::nn::{LayerNorm, Linear};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::fused::nn::{AttentionInput, FusedAttention};
use burn_fp8::fused::ops::{dropout, gelu};
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul};

use crate::harness::{Options, Side};
use crate::partner::beside_torch;
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "encoder";

/// Batch, length, width, inner width, heads, layers: those of char-lm `medium`.
const SHAPE: [usize; 6] = [16, 128, 512, 2048, 8, 4];

const DROPOUT: f64 = 0.1;

type F32 = Autodiff<Flex>;
type Fp8 = Fp8Backend<F32>;

/// Something that maps `[batch, length, width]` to the same.
trait Model<B: Backend> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3>;
}

impl<B: Backend> Model<B> for TransformerEncoder<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.forward(TransformerEncoderInput::new(x))
    }
}

/// A layer of the encoder by what stands in for Burn's operations; `norm_first`.
#[derive(Module, Debug)]
struct StandIn<B: Backend> {
    attention: FusedAttention<B>,
    norms: [LayerNorm<B>; 2],
    inner: Linear<B>,
    outer: Linear<B>,
    dropout: f64,
}

impl<B: Backend> From<TransformerEncoderLayer<B>> for StandIn<B> {
    fn from(layer: TransformerEncoderLayer<B>) -> Self {
        Self {
            attention: layer.mha.into(),
            norms: [layer.norm_2, layer.norm_1],
            inner: layer.pwff.linear_inner,
            outer: layer.pwff.linear_outer,
            dropout: layer.dropout.prob,
        }
    }
}

/// All layers.
#[derive(Module, Debug)]
struct StandIns<B: Backend> {
    layers: Vec<StandIn<B>>,
}

impl<B: Fp8Matmul> Model<B> for StandIns<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.layers.iter().fold(x, |x, layer| {
            let [first, second] = &layer.norms;
            let attended =
                layer.attention.forward(AttentionInput::self_attn(first.forward(x.clone())));
            let x = x + dropout(attended, layer.dropout);
            let hidden =
                dropout(gelu(layer.inner.forward(second.forward(x.clone()))), layer.dropout);
            x + dropout(layer.outer.forward(hidden), layer.dropout)
        })
    }
}

fn encoder<B: Backend>(device: &B::Device) -> TransformerEncoder<B> {
    let [_, _, width, inner, heads, layers] = SHAPE;
    TransformerEncoderConfig::new(width, inner, heads, layers)
        .with_dropout(DROPOUT)
        .with_norm_first(true)
        .init(device)
}

fn stand_ins<B: Fp8Matmul>(device: &B::Device) -> StandIns<B> {
    StandIns { layers: encoder::<B>(device).layers.into_iter().map(StandIn::from).collect() }
}

/// Steps of plain SGD on the mean square of the output.
fn steps<B: AutodiffBackend, M: AutodiffModule<B> + Model<B> + 'static>(
    model: impl FnOnce(&B::Device) -> M,
) -> impl FnMut() {
    let device = Default::default();
    B::seed(&device, 0);
    let [batch, length, width, ..] = SHAPE;
    let x = Tensor::<B, 3>::random([batch, length, width], Distribution::Normal(0.0, 1.0), &device);
    let (mut model, mut optimizer) = (Some(model(&device)), SgdConfig::new().init::<B, M>());
    move || {
        let current = model.take().expect("put back after every step");
        let loss = current.forward(x.clone()).powi_scalar(2).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &current);
        model = Some(optimizer.step(1e-3, current, grads));
    }
}

/// Measures a step with the type swapped, and with the layers swapped, too, beside f32.
pub fn run(options: &Options) -> Vec<Row> {
    options.on_pools(|threads| measure(threads, options))
}

fn measure(threads: usize, options: &Options) -> Vec<Row> {
    let mut high = steps::<F32, _>(encoder);
    let apart = Fp8Config::default().with_fused(false);
    let mut unfused = steps::<Fp8, _>(encoder);
    let mut unfused = || apart.scope(&mut unfused);
    let (mut swapped, mut stand_ins) = (steps::<Fp8, _>(encoder), steps::<Fp8, _>(stand_ins));
    let rows: [(&str, &mut dyn FnMut()); 3] = [
        ("Burn's encoder, type swapped, nothing fused", &mut unfused),
        ("Burn's encoder, type swapped", &mut swapped),
        ("Burn's encoder, type and layers swapped", &mut stand_ins),
    ];
    let mut peer: Vec<_> = SHAPE.iter().map(usize::to_string).collect();
    peer.push(DROPOUT.to_string());
    rows.into_iter()
        .flat_map(|(name, run)| {
            let (subject, reference) = (Side::new(name, run), Side::new("f32", &mut high));
            let row = options.compare((GROUP, threads, None), subject, reference);
            let peers = beside_torch(options, (GROUP, threads), (name, run), ("encoder", &peer));
            [vec![row], peers].concat()
        })
        .collect()
}
