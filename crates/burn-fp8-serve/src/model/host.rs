//! Tokens through the layers where tensors lie in the host's memory and no gradient is wanted: on slices. What lies between products takes longer in
//! operations of the framework than a product of a single token.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::frozen::HostLinear;
use burn_fp8_cpu::decoder::{self, Matrix, Memory, Next, Products, Workspace};

use super::cache::LayerCache;
use super::layer::Layer;
use super::projection::Projection;

/// The matrices of a layer on slices, in the order of [`Matrix`]: none where one is not in FP8 or has an adapter.
type Slices<B> = [Option<HostLinear<B>>; 7];

/// What a model has on slices, once tokens have gone through it.
#[derive(Debug)]
pub(super) struct OnSlices<B: Backend> {
    matrices: Mutex<Option<Arc<Vec<Slices<B>>>>>,
    /// Of each layer, in the order of [`NORMS`](super::layer::NORMS).
    norms: OnceLock<Vec<Vec<Vec<f32>>>>,
}

impl<B: Backend> Default for OnSlices<B> {
    fn default() -> Self {
        Self { matrices: Mutex::default(), norms: OnceLock::new() }
    }
}

impl<B: Fp8Matmul> OnSlices<B> {
    /// The matrices of layers that run on slices now.
    fn matrices(&self, layers: &[Layer<B>]) -> Option<Arc<Vec<Slices<B>>>> {
        let mut held = self.matrices.lock().unwrap_or_else(PoisonError::into_inner);
        let applies = |layers: &Arc<Vec<Slices<B>>>| {
            let mut all = layers.iter().flatten().flatten().peekable();
            all.peek().is_some() && all.all(HostLinear::applies)
        };
        if !held.as_ref().is_some_and(applies) {
            let on_slices = |matrix: &Projection<B>| match matrix {
                Projection::Frozen(layer) => layer.on_host(),
                Projection::Adapted(_) | Projection::Plain(_) => None,
            };
            let layers =
                layers.iter().map(|layer| layer.matrices.each_ref().map(on_slices)).collect();
            *held = Some(Arc::new(layers)).filter(applies);
        }
        held.clone()
    }

    /// What layers make of `x` `[rows, tokens, hidden]`, in place: the next tokens, whose cosines and sines are `turns`. The cache has room for `limit` tokens
    /// at most.
    pub(super) fn forward(
        &self,
        layers: &[Layer<B>],
        x: &mut [f32],
        next: Next<'_>,
        caches: &mut [LayerCache<B>],
        limit: usize,
        device: &B::Device,
    ) {
        // The framework multiplies many rows faster where no matrix unit does.
        let on_slices = if next.tokens == 1 { self.matrices(layers) } else { None };
        let (mut room, rows) = (Workspace::default(), next.padding.len());
        let norms = self.norms.get_or_init(|| {
            let of_layer = |layer: &Layer<B>| {
                layer.norms.iter().map(|norm| numbers(norm.gamma.val())).collect()
            };
            layers.iter().map(of_layer).collect()
        });
        for (index, (layer, cache)) in layers.iter().zip(caches).enumerate() {
            let slices = on_slices.as_ref().map(|layers| &layers[index]);
            let norm = |part: usize| norms[index].get(part).map(|norm| &norm[..]);
            let Layer { kv_heads, head_width: width, window, .. } = *layer;
            let host = decoder::Layer {
                norms: [0, 1].map(|index| norm(index).expect("each layer has two")),
                head_norms: [2, 3].map(norm),
                epsilon: layer.norms[0].epsilon as f32,
                products: Matrices { layer, slices, device },
                width,
                window,
            };
            cache.write([rows, kv_heads, width], next.tokens, limit, device, |held| {
                host.forward(x, next, held, &mut room);
            });
        }
    }
}

/// The numbers of a tensor of f32.
pub(super) fn numbers<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f32> {
    tensor.into_data().into_vec().expect("what goes through layers is f32")
}

/// InTensor in the memory of a tensor, which is not copied.
struct InTensor(TensorData);

impl Default for InTensor {
    fn default() -> Self {
        Self(TensorData::new(Vec::<f32>::new(), [0]))
    }
}

impl Memory for InTensor {
    fn numbers(&self) -> &[f32] {
        self.0.as_slice().expect("what goes through layers is f32")
    }

    fn sized(&mut self, length: usize) -> &mut [f32] {
        if self.numbers().len() != length {
            self.0 = TensorData::new(vec![0f32; length], [length]);
        }
        self.0.as_mut_slice().expect("what goes through layers is f32")
    }
}

/// The matrices of a layer, on slices where all that are multiplied at once are.
struct Matrices<'a, B: Backend> {
    layer: &'a Layer<B>,
    slices: Option<&'a Slices<B>>,
    device: &'a B::Device,
}

impl<B: Fp8Matmul> Products for Matrices<'_, B> {
    type Memory = InTensor;

    fn multiply<const N: usize>(&self, x: &mut InTensor, outputs: [(Matrix, &mut InTensor); N]) {
        let slices = |matrix: Matrix| self.slices.and_then(|all| all[matrix as usize].as_ref());
        if outputs.iter().all(|(matrix, _)| slices(*matrix).is_some()) {
            let layers = outputs.map(|(matrix, y)| (slices(matrix).expect("seen").linear(), y));
            return decoder::multiply(x.numbers(), layers);
        }
        let matrix = |matrix: Matrix| &self.layer.matrices[matrix as usize];
        let (InTensor(mut data), inputs) = (std::mem::take(x), matrix(outputs[0].0).inputs());
        data.shape = [data.num_elements() / inputs, inputs].into();
        let tensor = Tensor::<B, 2>::from_data(data, (self.device, DType::F32));
        for (part, y) in outputs {
            y.0 = matrix(part).forward(tensor.clone()).into_data();
        }
        x.0 = tensor.into_data();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn::backend::Flex;
    use burn_fp8::report::ProductReport;
    use burn_fp8::{ProductKind, high_precision, trace};
    use burn_fp8_checkpoint::Checkpoint;

    use crate::{CacheType, Config, Decoder, Inputs, LoadOptions};

    /// Nothing else shows it: results are the same.
    #[test]
    fn the_matrices_of_a_token_are_multiplied_on_slices() {
        for model in ["llama_block", "mistral_tensor", "qwen2_mxfp8", "qwen3_channel"] {
            for inputs in [Inputs::High, Inputs::File] {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(model);
                let checkpoint = Checkpoint::open(folder).unwrap();
                let config = Config::parse(checkpoint.config()).unwrap();
                let (options, device) =
                    (LoadOptions { inputs, ..LoadOptions::default() }, Default::default());
                let decoder = Decoder::load(&checkpoint, config, options, &device, |_, _| ());
                are_on_slices(&decoder.unwrap());
            }
        }
    }

    fn are_on_slices(decoder: &Decoder<Flex>) {
        let run = |tokens: &[u32]| {
            let mut cache = decoder.cache(CacheType::F32, vec![0]);
            decoder.forward(&[tokens.to_vec()], &mut cache, true).unwrap();
        };
        let are_held = || decoder.on_slices.matrices.lock().unwrap().is_some();
        run(&[1, 2]);
        assert!(!are_held(), "several tokens");
        run(&[1]);
        assert!(are_held());
        let ((), report) = trace(|| run(&[1]));
        assert!(!are_held(), "the trace is told of products");
        let linear = |product: &&ProductReport| product.kind == ProductKind::Linear;
        let products = report.products.iter().filter(linear).count();
        let matrices = 7 * decoder.weights.layers.len();
        assert!([matrices, matrices + 1].contains(&products), "each once: {products}");
        run(&[1]);
        high_precision(|| run(&[1]));
        assert!(!are_held(), "no product is in FP8");
        run(&[1]);
        assert!(are_held());
    }
}
