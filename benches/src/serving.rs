//! Inference with a weight in FP8, against Burn's layer in f32 and against reading the weight.

use std::hint::black_box;

use burn::backend::Flex;
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::quantization::{QuantScheme, QuantValue};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::{Fp8Backend, Fp8Format, Fp8Tensor, trace};
use burn_fp8_cpu::slice;

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "serving";

/// Inputs, outputs, and how many layers run one after the other: together more than any cache holds.
const MODELS: [([usize; 2], usize); 2] = [([4096, 4096], 8), ([1024, 4096], 16)];

const BATCHES: [usize; 4] = [1, 8, 64, 256];

/// From this batch on the layers are no longer limited by memory, and one of them is enough.
const COMPUTE_BOUND: usize = 64;

struct Layers {
    shape: [usize; 2],
    frozen: Vec<FrozenLinear<Flex>>,
    /// Burn's layers, their weights quantized to E4M3.
    quantized: Vec<Linear<Fp8Backend<Flex>>>,
    /// The same on Flex alone, to integers.
    integers: Vec<Linear<Flex>>,
    high: Vec<Linear<Flex>>,
    /// As many bytes as the f32 layers have.
    memory: Vec<f32>,
}

impl Layers {
    fn new(shape @ [k, n]: [usize; 2], count: usize) -> Self {
        let device = Default::default();
        let normal = Distribution::Normal(0.0, 0.02);
        let weight = Tensor::<Flex, 2>::random(shape, normal, &device);
        let bias = Tensor::<Flex, 1>::random([n], normal, &device);
        let activation = ActivationScale::Current;
        let first = FrozenLinear::from_weight(weight.clone(), Some(bias.clone()), activation)
            .expect("a good weight");
        // Each layer in memory of its own.
        let frozen = (0..count).map(|_| {
            let (codes, scale) = (first.tensor().to_bytes(), first.tensor().read_scale());
            let weight = Fp8Tensor::from_bytes(codes, shape, Fp8Format::E4M3, scale, &device);
            let weight = weight.expect("they fill the shape");
            FrozenLinear::from_tensor(weight, Some(bias.clone()), activation)
                .expect("the parts fit")
        });
        let high = (0..count).map(|_| Linear {
            weight: Param::from_data(weight.to_data(), &device),
            bias: Some(Param::from_tensor(bias.clone())),
        });
        let scheme = QuantScheme::default().with_value(QuantValue::E4M3);
        let quantized = (0..count).map(|_| {
            let weight = Tensor::<Fp8Backend<Flex>, 2>::from_data(weight.to_data(), &device);
            let bias = Tensor::from_data(bias.to_data(), &device);
            let weight = Param::from_tensor(weight.quantize_dynamic(&scheme));
            Linear { weight, bias: Some(Param::from_tensor(bias)) }
        });
        let integers = (0..count).map(|_| {
            let scheme = scheme.with_value(QuantValue::Q8S);
            let weight = Param::from_tensor(weight.clone().quantize_dynamic(&scheme));
            Linear { weight, bias: Some(Param::from_tensor(bias.clone())) }
        });
        let (frozen, high) = (frozen.collect(), high.collect());
        let (quantized, integers) = (quantized.collect(), integers.collect());
        Self { shape, frozen, quantized, integers, high, memory: vec![1.0; count * k * n] }
    }

    fn measure(&self, threads: usize, options: &Options) -> Vec<Row> {
        let [k, n] = self.shape;
        let mut rows = Vec::new();
        for batch in BATCHES {
            let layers = if batch < COMPUTE_BOUND { self.frozen.len() } else { 1 };
            let normal = Distribution::Normal(0.0, 1.0);
            let x = Tensor::<Flex, 2>::random([batch, k], normal, &Default::default());
            let scale = ActivationScale::from_samples([x.clone()]).expect("normal numbers");
            let (name, high_name) = self.names(batch, layers);
            let mut high = || {
                for layer in &self.high[..layers] {
                    black_box(layer.forward(x.clone()));
                }
            };
            for (kind, activation) in [("static", scale), ("current", ActivationScale::Current)] {
                let frozen: Vec<_> = self.frozen[..layers]
                    .iter()
                    .map(|layer| layer.clone().with_activation(activation).expect("good"))
                    .collect();
                let mut run = || {
                    for layer in &frozen {
                        black_box(layer.forward(x.clone()));
                    }
                };
                let name = format!("{name}, {kind}");
                let subject = Side::new(&name, &mut run);
                let reference = Side::new(&high_name, &mut high);
                rows.push(options.compare((GROUP, threads, None), subject, reference));
                if batch == 1 && activation == scale {
                    let subject = Side::new(&name, &mut run);
                    rows.push(self.against_memory(threads, subject, layers * k * n, options));
                }
            }
            rows.extend(self.quantized(threads, (&name, layers), &x, options));
            if batch == 1 {
                let subject = Side::new(&high_name, &mut high);
                rows.push(self.against_memory(threads, subject, 4 * layers * k * n, options));
            }
        }
        rows
    }

    /// Burn's layers with quantized weights, against frozen ones whose inputs are quantized or not as theirs are, and against Burn's own.
    fn quantized(
        &self,
        threads: usize,
        (name, layers): (&str, usize),
        x: &Tensor<Flex, 2>,
        options: &Options,
    ) -> Vec<Row> {
        let xs = Tensor::<Fp8Backend<Flex>, 2>::from_data(x.to_data(), &x.device());
        let (_, report) = trace(|| self.quantized[0].forward(xs.clone()));
        let activation = match report.fp8().count() {
            0 => ActivationScale::Unquantized,
            _ => ActivationScale::Current,
        };
        let frozen: Vec<_> = self.frozen[..layers].iter().collect();
        let with = |layer: &FrozenLinear<Flex>| {
            layer.clone().with_activation(activation).expect("it is one")
        };
        let layers_with_bias: Vec<_> = frozen.iter().map(|layer| with(layer)).collect();
        let products: Vec<_> = frozen
            .iter()
            .map(|layer| {
                let product = FrozenLinear::from_tensor(layer.tensor(), None, activation);
                product.expect("the parts fit")
            })
            .collect();
        let forward = |layers: &[FrozenLinear<Flex>]| {
            layers.iter().for_each(|layer| drop(black_box(layer.forward(x.clone()))));
        };
        let mut of_layers = || forward(&layers_with_bias);
        let mut of_products = || forward(&products);
        let mut of_burn = || {
            for layer in &self.integers[..layers] {
                black_box(layer.forward(x.clone()));
            }
        };
        let mut by_layer = || {
            for layer in &self.quantized[..layers] {
                black_box(layer.forward(xs.clone()));
            }
        };
        let mut by_product = || {
            for layer in &self.quantized[..layers] {
                black_box(xs.clone().matmul(layer.weight.val()));
            }
        };
        let mut rows = Vec::new();
        // A product has no bias, beside a frozen layer without.
        type Run<'a> = &'a mut dyn FnMut();
        let of_kinds: [(&str, [Run<'_>; 2]); 2] = [
            ("nn::Linear", [&mut by_layer, &mut of_layers]),
            ("matmul", [&mut by_product, &mut of_products]),
        ];
        for (kind, [run, of_frozen]) in of_kinds {
            let subject = format!("{name}, quantized {kind}");
            for (against, reference) in [
                (format!("FrozenLinear, {activation:?}"), of_frozen),
                ("Flex alone, Q8S".to_string(), &mut of_burn),
            ] {
                let (subject, reference) =
                    (Side::new(&subject, &mut *run), Side::new(&against, reference));
                rows.push(options.compare((GROUP, threads, None), subject, reference));
            }
        }
        rows
    }

    /// What the rows are called: with the megabytes that the layers hold.
    fn names(&self, batch: usize, layers: usize) -> (String, String) {
        let [k, n] = self.shape;
        let megabytes = |bytes: usize| format!("{:.1} MB", (layers * bytes) as f64 / 1e6);
        let layers = if layers == 1 { String::new() } else { format!("{layers} layers ") };
        let frozen = megabytes(self.frozen[0].bytes());
        let high = megabytes(4 * (k + 1) * n);
        (format!("{layers}{k}×{n}, batch {batch}, {frozen}"), format!("nn::Linear f32, {high}"))
    }

    /// The floor: as many bytes read as the weights have.
    fn against_memory(
        &self,
        threads: usize,
        subject: Side<'_>,
        bytes: usize,
        options: &Options,
    ) -> Row {
        let mut read = || {
            black_box(slice::amax(&self.memory[..bytes / 4]));
        };
        let reference = Side::new("reading the weights", &mut read).with_bytes(bytes);
        options.compare((GROUP, threads, None), subject.with_bytes(bytes), reference)
    }
}

/// Measures every shape and batch at each thread count.
pub fn run(options: &Options) -> Vec<Row> {
    let of_model = |(shape, count)| {
        let layers = Layers::new(shape, count);
        options.on_pools(|threads| layers.measure(threads, options))
    };
    MODELS.into_iter().flat_map(of_model).collect()
}
