//! The golden files `dense_*`: eight steps of SGD on Flax's `Dense` with FP8, free-running.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig, Fp8State};
use burn_fp8::optim::Fp8Optimizer;
use common::golden::{Golden, exact};
use common::{Inner, Outer, assert_close, values};

const STEPS: usize = 8;
const TOLERANCE: f32 = 1e-5;

fn floats(data: TensorData) -> Vec<f32> {
    data.to_vec().expect("golden data of f32")
}

/// Equal to one unit in the last place.
fn assert_state(actual: Vec<f32>, expected: TensorData, what: &str) {
    let expected = floats(expected);
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (index, (a, e)) in actual.iter().zip(&expected).enumerate() {
        let apart = a.to_bits().abs_diff(e.to_bits());
        assert!(apart <= 1, "{what}[{index}]: {a:e} and {e:e} are {apart} ulp apart");
    }
}

fn run<B: AutodiffBackend + Fp8Matmul, const D: usize>(op: &str, mode: DotMode, name: &str) {
    let golden = Golden::open(&format!("dense_{op}"));
    let entry = |what: &str, step| golden.entry(&format!("{name}/{what}"), step);
    let kernel = entry("param/kernel", 0);
    let [d_input, d_output] = kernel.shape.dims();
    let steps = entry("fp8/input_amax_history", 0).num_elements();
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(steps).with_mode(mode);
    let mut layer: Fp8Linear<B> =
        Fp8LinearConfig::new(d_input, d_output).with_dot(dot).init(&Default::default());
    layer.weight = layer.weight.map(|_| exact(kernel).require_grad());
    layer.bias = layer.bias.map(|bias| bias.map(|_| exact(entry("param/bias", 0)).require_grad()));
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());

    for step in 0..STEPS {
        let what = format!("{op} {name} step {step}");
        let close = |actual: Vec<f32>, expected: TensorData, part: &str| {
            assert_close(&actual, &floats(expected), TOLERANCE, &format!("{what} {part}"));
        };
        let x = exact::<B, D>(entry("x", step)).require_grad();
        let y = layer.forward(x.clone());
        close(values(y.clone()), entry("y", step), "y");
        let error = y - exact::<B, D>(entry("target", step));
        let loss = (error.clone() * error).mean();
        close(values(loss.clone()), entry("loss", step), "loss");
        let grads = loss.backward();
        close(values(x.grad(&grads).expect("tracked")), entry("grad/x", step), "grad x");
        let grads = GradientsParams::from_grads(grads, &layer);
        let weight_grad = grads.get::<B::InnerBackend, 2>(layer.weight.id).expect("tracked");
        close(values(weight_grad), entry("grad/kernel", step), "grad kernel");
        let bias = layer.bias.as_ref().expect("a bias").id;
        let bias_grad = grads.get::<B::InnerBackend, 1>(bias).expect("tracked");
        close(values(bias_grad), entry("grad/bias", step), "grad bias");

        layer = optimizer.step(0.05, layer, grads);
        close(values(layer.weight.val()), entry("param/kernel", step + 1), "kernel");
        let bias: Tensor<B, 1> = layer.bias.as_ref().expect("a bias").val();
        close(values(bias), entry("param/bias", step + 1), "bias");
        let states: [(&str, &Fp8State<B>); 3] = [
            ("input", &layer.dot.input),
            ("kernel", &layer.dot.kernel),
            ("output_grad", &layer.dot.output_grad),
        ];
        for (operand, state) in states {
            let scale = format!("fp8/{operand}_scale");
            assert_state(values(state.scale.val()), entry(&scale, step + 1), &what);
            let history = format!("fp8/{operand}_amax_history");
            assert_state(values(state.amax_history.val()), entry(&history, step + 1), &what);
        }
    }
}

fn run_all<B: AutodiffBackend + Fp8Matmul>() {
    let modes = [
        ("Fp8DotGeneralOp", DotMode::QuantizeDequantize),
        ("Fp8DirectDotGeneralOp", DotMode::Direct),
    ];
    for (op, mode) in modes {
        let cases = Golden::open(&format!("dense_{op}")).cases();
        let names: Vec<_> =
            cases.iter().map(|case| case["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["h1024", "h4"], "every case runs");
        run::<B, 2>(op, mode, "h1024");
        run::<B, 3>(op, mode, "h4");
    }
}

#[test]
fn autodiff_trains_as_flax() {
    run_all::<Autodiff<Flex>>();
}

#[test]
fn decorated_autodiff_trains_as_flax() {
    run_all::<Outer<Flex>>();
}

#[test]
fn autodiff_of_a_decorated_backend_trains_as_flax() {
    run_all::<Inner<Flex>>();
}

#[cfg(feature = "ndarray")]
#[test]
fn ndarray_trains_as_flax() {
    run_all::<Autodiff<burn::backend::NdArray>>();
}
