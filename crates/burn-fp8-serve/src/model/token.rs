//! One token of each row through the layers, on slices: what lies between products takes longer in operations of the framework than a product.

use std::sync::{Arc, Mutex, PoisonError};

use burn::nn::RmsNorm;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::frozen::HostLinear;
use burn_fp8_cpu::decoder::{self, Next, Room};

use super::cache::LayerCache;
use super::layer::{Layer, Step};
use super::projection::Projection;
use super::rope::Turns;

/// A layer on slices.
#[derive(Debug)]
struct HostLayer<B: Backend> {
    /// In the order of [`Layer::matrices`].
    matrices: [HostLinear<B>; 7],
    /// In the order of [`Layer::norms`].
    norms: Vec<Vec<f32>>,
    epsilon: f32,
    width: usize,
    window: Option<usize>,
}

impl<B: Fp8Matmul> HostLayer<B> {
    /// None where a matrix is not in FP8 or has an adapter.
    fn new(layer: &Layer<B>) -> Option<Self> {
        let matrix = |(_, matrix): (_, &Projection<B>)| match matrix {
            Projection::Frozen(layer) => layer.on_host(),
            Projection::Adapted(_) | Projection::Plain(_) => None,
        };
        let matrices: Vec<_> = layer.matrices().into_iter().map(matrix).collect::<Option<_>>()?;
        let norms = layer.norms();
        let gamma = |(_, norm): &(_, &RmsNorm<B>)| norm.gamma.val().into_data().into_vec();
        let (width, window) = layer.heads();
        Some(Self {
            matrices: matrices.try_into().ok()?,
            norms: norms.iter().map(gamma).collect::<Result<_, _>>().expect("norms are f32"),
            epsilon: norms[0].1.epsilon as f32,
            width,
            window,
        })
    }

    fn get(&self) -> decoder::Layer<'_> {
        let norm = |index: usize| self.norms.get(index).map(|norm| &norm[..]);
        let [query, key, value, output, gate, up, down] =
            self.matrices.each_ref().map(HostLinear::linear);
        decoder::Layer {
            norms: [0, 1].map(|index| norm(index).expect("each layer has two")),
            head_norms: [2, 3].map(norm),
            epsilon: self.epsilon,
            qkv: [query, key, value],
            output,
            gate_up: [gate, up],
            down,
            width: self.width,
        }
    }
}

/// The layers of a model on slices, once a token has gone through them.
#[derive(Debug)]
pub(super) struct OnHost<B: Backend>(Mutex<Option<Layers<B>>>);

/// Layers on slices.
type Layers<B> = Arc<Vec<HostLayer<B>>>;

impl<B: Backend> Default for OnHost<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Fp8Matmul> OnHost<B> {
    /// These layers; none where they do not run on slices, now or at all.
    fn get(&self, layers: &[Layer<B>]) -> Option<Layers<B>> {
        // Asked first, for each token: whether there is anything to make.
        let is_frozen = |(_, matrix): (_, &Projection<B>)| matches!(matrix, Projection::Frozen(_));
        if !layers.iter().flat_map(Layer::matrices).all(is_frozen) {
            return None;
        }
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let applies = |layers: &Layers<B>| {
            layers.iter().flat_map(|layer| &layer.matrices).all(HostLinear::applies)
        };
        if !held.as_ref().is_some_and(applies) {
            let layers: Option<_> = layers.iter().map(HostLayer::new).collect();
            *held = layers.map(Arc::new).filter(applies);
        }
        held.clone()
    }

    /// What layers make of `x` `[rows, 1, hidden]`; nothing where they do not run on slices.
    pub(super) fn forward(
        &self,
        layers: &[Layer<B>],
        x: &Tensor<B, 3>,
        step: &Step<B>,
        caches: &mut [LayerCache<B>],
    ) -> Option<Tensor<B, 3>> {
        let Turns::OnHost([cos, sin], _) = &step.turns else { return None };
        if x.dims()[1] > 1 {
            return None;
        }
        let layers = self.get(layers)?;
        let (shape, device) = (x.dims(), x.device());
        let mut x: Vec<f32> = x.to_data().into_vec().expect("what goes through layers is f32");
        let mut room = Room::default();
        for (layer, cache) in layers.iter().zip(caches) {
            let at = cache.length();
            let of_window = layer.window.map_or(0, |window| (at + 1).saturating_sub(window));
            let first: Vec<usize> = step.rows.iter().map(|row| of_window.max(*row)).collect();
            let host = layer.get();
            let heads = [shape[0], host.qkv[1].shape[0] / host.width, host.width];
            cache.next(heads, step.limit, &device, |held| {
                let next = Next { turns: [cos, sin], at, first: &first };
                host.forward(&mut x, next, held, &mut room);
            });
        }
        Some(Tensor::from_data(TensorData::new(x, shape), (&device, DType::F32)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::Result;
    use burn::backend::Flex;
    use burn_fp8::report::ProductReport;
    use burn_fp8::{ProductKind, high_precision, trace};
    use burn_fp8_checkpoint::Checkpoint;

    use crate::config::Config;
    use crate::model::{CacheType, Decoder, Inputs, LoadOptions};

    /// Nothing else shows it: results are the same.
    #[test]
    fn a_token_goes_through_the_layers_on_slices() {
        for model in ["llama_block", "mistral_tensor", "qwen2_mxfp8", "qwen3_channel"] {
            for inputs in [Inputs::High, Inputs::File] {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model);
                let checkpoint = Checkpoint::open(folder).unwrap();
                let config = Config::parse(checkpoint.config()).unwrap();
                let options = LoadOptions { inputs, ..LoadOptions::default() };
                goes_on_slices(Decoder::load(
                    &checkpoint,
                    config,
                    options,
                    &Default::default(),
                    |_, _| (),
                ));
            }
        }
    }

    fn goes_on_slices(decoder: Result<Decoder<Flex>>) {
        let decoder = decoder.unwrap();
        let run = |tokens: &[u32]| {
            let mut cache = decoder.cache(CacheType::F32, vec![0]);
            decoder.forward(&[tokens.to_vec()], &mut cache, true).unwrap();
        };
        let is_held = || decoder.on_host.0.lock().unwrap().is_some();
        run(&[1, 2]);
        assert!(!is_held(), "several tokens");
        run(&[1]);
        assert!(is_held());
        let ((), report) = trace(|| run(&[1]));
        assert!(!is_held(), "the trace is told of products");
        let linear = |product: &&ProductReport| product.kind == ProductKind::Linear;
        let products = report.products.iter().filter(linear).count();
        let matrices = 7 * decoder.weights.layers.len();
        assert!([matrices, matrices + 1].contains(&products), "each once: {products}");
        run(&[1]);
        high_precision(|| run(&[1]));
        assert!(!is_held(), "no product is in FP8");
        run(&[1]);
        assert!(is_held());
    }
}
