//! What other libraries compute, on every backend that there is: the golden files of Flax and JAX (current scaling), torchao (MXFP8), TransformerEngine and
//! DeepSeek (blocks of 128), through operations, layers and the served device; delayed scaling.

use std::path::PathBuf;

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use burn_fp8_next::burn_fp8_checkpoint::Checkpoint;
use burn_fp8_next::nn::{Fp8Linear, FrozenLinear};
use burn_fp8_next::report::OperandReport;
use burn_fp8_next::{
    DelayedState, Filter, Fp8Config, GemmRole, Granularity, Recipe, Report, ScaleRounding, ops,
    trace,
};
use safetensors::SafeTensors;

use crate::common::*;

/// Relative to the largest magnitude of a result: f32 sums in another order.
const TOLERANCE: f32 = 1e-5;

/// Where products run, by name.
struct Place {
    name: &'static str,
    device: Device,
    /// Whether its server makes products FP8 by itself.
    served: bool,
}

impl Place {
    fn traced<R>(&self, config: &Fp8Config, run: impl FnOnce() -> R) -> (R, Report) {
        #[cfg(feature = "device")]
        if self.served {
            use burn_fp8_next::device;
            return device::scope(&self.device, config, || device::trace(&self.device, run));
        }
        assert!(!self.served);
        config.scope(|| trace(run))
    }
}

fn places() -> Vec<Place> {
    let here = |name, device| Place { name, device, served: false };
    vec![
        here("Flex", Device::flex()),
        #[cfg(feature = "wgpu")]
        here("wgpu", Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "device")]
        here("a remote Flex", remote()),
        #[cfg(feature = "device")]
        Place { name: "a served device", device: burn_fp8_next::device::flex(), served: true },
    ]
}

/// Burn's own server of Flex, which knows nothing of FP8.
#[cfg(feature = "device")]
fn remote() -> Device {
    use burn::remote::RemoteHost;
    use burn::server::{RemoteServer, WebSocketTransport};
    use std::net::TcpListener;

    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let server = RemoteServer::new([Device::flex()]);
    std::thread::spawn(move || server.serve(WebSocketTransport::from_listener(listener)));
    let host = RemoteHost::websocket(&format!("ws://{address}"));
    Device::remote_options(&host).init().expect("it listens")
}

struct Golden {
    tensors: Vec<u8>,
    sidecar: serde_json::Value,
}

impl Golden {
    fn open(owner: &str, name: &str) -> Self {
        let file = crates().join(owner).join("tests/golden").join(name);
        let read = |extension| std::fs::read(file.with_extension(extension)).expect(name);
        let sidecar = serde_json::from_slice(&read("json")).expect("the sidecar is JSON");
        Self { tensors: read("safetensors"), sidecar }
    }

    fn cases(&self, list: &str) -> Vec<(&str, &serde_json::Value)> {
        let cases = self.sidecar[list].as_array().expect("a list");
        cases.iter().map(|case| (case["name"].as_str().expect("a name"), case)).collect()
    }

    /// The numbers of a tensor, f64, f32 or bf16, and its shape.
    fn read(&self, name: &str) -> (Vec<f32>, Vec<usize>) {
        let file = SafeTensors::deserialize(&self.tensors).expect("the golden file is valid");
        let view = file.tensor(name).expect(name);
        let words = |bytes: usize| view.data().chunks_exact(bytes);
        let numbers = match view.dtype() {
            safetensors::Dtype::F64 => words(8)
                .map(|bytes| f64::from_le_bytes(bytes.try_into().expect("eight bytes")) as f32)
                .collect(),
            safetensors::Dtype::F32 => words(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
                .collect(),
            safetensors::Dtype::BF16 => {
                words(2).map(|bytes| f32::from_le_bytes([0, 0, bytes[0], bytes[1]])).collect()
            }
            other => panic!("golden {name} is {other:?}"),
        };
        (numbers, view.shape().to_vec())
    }
}

/// The manifest for Burn 0.23 lies in a folder below.
pub fn crates() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().find(|folder| folder.ends_with("crates")).expect("crates/").into()
}

/// `x` times `w`, and the gradients of both for the output gradient `g`.
fn step<const D: usize>(
    place: &Place,
    config: &Fp8Config,
    multiply: impl FnOnce(Tensor<D>, Tensor<D>) -> Tensor<D>,
    [x, w, g]: [&(Vec<f32>, Vec<usize>); 3],
) -> ([Vec<f32>; 3], Report) {
    let device = place.device.clone().autodiff();
    let tensor = |(values, shape): &(Vec<f32>, Vec<usize>)| {
        // A weight of two dimensions multiplies a batch.
        let mut dims = [1; D];
        dims[D - shape.len()..].copy_from_slice(shape);
        Tensor::<D>::from_data(TensorData::new(values.clone(), dims), &device)
    };
    let (x, w) = (tensor(x).require_grad(), tensor(w).require_grad());
    let g = tensor(g);
    place.traced(config, || {
        let y = multiply(x.clone(), w.clone());
        let gradients = ops::backward((y.clone() * g).sum());
        let gradient = |of: &Tensor<D>| values(of.grad(&gradients).expect("tracked"));
        [values(y), gradient(&x), gradient(&w)]
    })
}

fn every_product() -> Fp8Config {
    Fp8Config::default().with_filter(Filter::every_matmul())
}

#[test]
fn current_scaling_is_that_of_flax() {
    let golden = Golden::open("burn-fp8", "current_scaling");
    for place in places() {
        let cases = golden.cases("cases");
        assert_eq!(cases.len(), 7);
        for (case, _) in cases {
            let part = |name: &str| golden.read(&format!("{case}/{name}"));
            let operands = ["x", "w", "dy"].map(part);
            let operands = operands.each_ref();
            let batched = operands.iter().any(|(_, shape)| shape.len() > 2);
            let (results, report) = match batched {
                true => step::<3>(&place, &every_product(), ops::matmul, operands),
                false => step::<2>(&place, &every_product(), ops::matmul, operands),
            };
            let what = |part: &str| format!("{}: {case}/{part}", place.name);
            for (result, name) in results.iter().zip(["y", "dx", "dw"]) {
                assert_close(result, &part(name).0, TOLERANCE, &what(name));
            }
            let [x, w, dy] = ["x_scale", "w_scale", "dy_scale"].map(|name| part(name).0[0]);
            let expected = [
                (GemmRole::Output, [x, w]),
                (GemmRole::GradInput, [dy, w]),
                (GemmRole::GradWeight, [x, dy]),
            ];
            assert_eq!(report.fp8().count(), 3, "{}: {report}", what("trace"));
            for (role, scales) in expected {
                let product = report.fp8().find(|product| product.role == role).expect("traced");
                let of = |operand: Option<OperandReport>| operand.map(|operand| operand.scale);
                let actual = [product.lhs, product.rhs].map(of);
                assert_eq!(actual, scales.map(Some), "{} {role}", what("scales"));
            }
        }
    }
}

#[test]
fn layers_in_blocks_are_those_of_torchao_transformer_engine_and_deepseek() {
    let files =
        [("burn-fp8-core", "mx", "linear_cases"), ("burn-fp8", "blockwise_linear", "cases")];
    for place in places() {
        let mut compared = 0;
        for (owner, file, list) in files {
            let golden = Golden::open(owner, file);
            for (name, _) in golden.cases(list) {
                let (layer, rule) = name.rsplit_once('.').expect("layer and rule");
                let mx = |rounding| Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
                let recipe = match rule {
                    "rceil" => mx(ScaleRounding::Rceil),
                    "floor" => mx(ScaleRounding::Floor),
                    "divide" => Recipe::blockwise().with_power_of_two(false),
                    "pow2" => Recipe::blockwise(),
                    // It multiplies by a rounded reciprocal of the scale; we divide.
                    rule => {
                        assert_eq!(rule, "reciprocal");
                        continue;
                    }
                };
                let operands = ["x", "w", "g"].map(|part| golden.read(&format!("{layer}/{part}")));
                let multiply = |x: Tensor<2>, w: Tensor<2>| match place.served {
                    // The server sees a plain product, and the layers of these libraries take [N, K].
                    true => x.matmul(w.transpose()),
                    false => ops::linear(x, w.transpose(), None),
                };
                let config = every_product().with_recipe(recipe);
                let (results, report) = step::<2>(&place, &config, multiply, operands.each_ref());
                assert_eq!(report.fp8().count(), 3, "{}: {report}", place.name);
                for (result, part) in results.iter().zip(["output", "grad_input", "grad_weight"]) {
                    let expected = golden.read(&format!("{name}/{part}")).0;
                    let what = format!("{}: {name}/{part}", place.name);
                    assert_close(result, &expected, TOLERANCE, &what);
                    compared += 1;
                }
            }
        }
        assert_eq!(compared, 3 * (8 + 6), "{}", place.name);
    }
}

/// wgpu has no u8, and Burn's remote backend casts no integers. What they compute on Flex is in `tests/both/frozen.rs`.
#[test]
fn published_layers_are_refused_where_their_codes_cannot_be() {
    let folder = crates().join("burn-fp8-checkpoint/tests/golden/ct_tensor_static");
    let checkpoint = Checkpoint::open(folder).expect("golden");
    let name = &checkpoint.layers()[0].name;
    for place in places().iter().filter(|place| place.name != "Flex") {
        let make = || FrozenLinear::from_checkpoint(&checkpoint, name, &place.device).is_ok();
        says(panic_of(make), ["use Device::flex()"]);
    }
}

/// A layer under delayed scaling leaves the histories that it leaves on Flex.
#[test]
fn histories_are_those_on_flex() {
    let on = |device: &Device| {
        let device = device.clone().autodiff();
        let tensor = |factor: usize, shape: [usize; 2]| {
            let value = |i: usize| (i * factor % 101) as f32 / 50.0 - 1.0;
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(value).collect();
            crate::common::tensor(&values, shape, &device)
        };
        let mut layer = Fp8Linear { weight: Param::from_tensor(tensor(37, [32, 48])), bias: None };
        let state = DelayedState::new();
        let config = Fp8Config::default().with_recipe(Recipe::delayed());
        for factor in [29, 31, 43] {
            let x = tensor(factor, [16, 32]);
            let gradients =
                config.scope(|| state.step(|| layer.forward(x).powi_scalar(2).mean().backward()));
            let gradient = layer.weight.grad(&gradients).expect("it has one");
            let descend = |weight: Tensor<2>| {
                Tensor::from_inner(weight.inner() - gradient * 0.5).require_grad()
            };
            layer.weight = layer.weight.map(descend);
        }
        let sites = state.export().sites;
        let histories =
            sites.iter().flat_map(|site| [&site.input, &site.weight, &site.output_grad]);
        let amaxes: Vec<_> = histories.flat_map(|history| history.entries().to_vec()).collect();
        (amaxes, values(layer.weight.val()))
    };
    let expected = on(&Device::flex());
    assert_eq!(expected.0.iter().filter(|amax| **amax > 0.0).count(), 3 * 3);
    for place in places().iter().filter(|place| !place.served) {
        let (amaxes, weight) = on(&place.device);
        assert_close(&amaxes, &expected.0, TOLERANCE, place.name);
        assert_close(&weight, &expected.1, TOLERANCE, place.name);
    }
}

/// Burn 0.23's own quantization to FP8 has the codes and scales of this project.
#[cfg(feature = "burn-0-23")]
#[test]
fn codes_and_scales_of_burn_are_ours() {
    use burn::tensor::quantization::{QuantScheme, QuantValue};
    use burn_fp8_next::burn_fp8_core::{Fp8Format, Overflow, scale};

    // Magnitudes over forty powers of two, ties among them, both signs.
    let x: Vec<f32> = (0..4096)
        .map(|i| {
            let magnitude = (1.0 + (i % 128) as f32 / 128.0) * 2f32.powi(i % 41 - 30);
            if i % 3 == 0 { -magnitude } else { magnitude }
        })
        .collect();
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    for (value, format) in
        [(QuantValue::E4M3, Fp8Format::E4M3), (QuantValue::E5M2, Fp8Format::E5M2)]
    {
        let scheme = QuantScheme::default().with_value(value);
        let data = tensor(&x, [64, 64], &Device::flex()).quantize_dynamic(&scheme).into_data();
        let (codes, of_scale) = data.as_bytes().split_at(x.len());
        let expected = scale::from_amax(amax, format, Recipe::current());
        assert_eq!(of_scale, expected.to_le_bytes(), "{format}");
        let ours = |x: &f32| format.encode(x / expected, Overflow::Saturate);
        assert_eq!(codes, x.iter().map(ours).collect::<Vec<_>>(), "{format}");
    }
}
