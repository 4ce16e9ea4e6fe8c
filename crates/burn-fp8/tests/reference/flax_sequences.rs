//! The golden file `flax_sequences`: twelve steps with zeros, an infinity and a NaN on the way, to the bit; by operations, and by a layer with its optimizer. The
//! state freezes at an infinity and a NaN and recovers when they have left the history.

use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};
use serde_json::Value;

use crate::common::golden::{assert_tensor, exact, format};
use crate::common::*;

const STEPS: usize = 12;

/// The cases that it `takes`, each with its name.
fn cases(golden: &Golden, takes: impl Fn(&Value) -> bool) -> Vec<(String, Value)> {
    let cases = golden.cases("cases").iter().filter(|case| takes(case)).cloned();
    cases.map(|case| (case["name"].as_str().expect("a name").to_owned(), case)).collect()
}

fn run<B: AutodiffBackend + Fp8Matmul>(takes: impl Fn(&Value) -> bool) -> usize {
    let golden = golden("flax_sequences");
    let cases = cases(&golden, takes);
    for (name, case) in &cases {
        let mut scale = exact::<B, 1>(golden.entry(&format!("{name}/scale"), 0));
        let mut history = exact::<B, 1>(golden.entry(&format!("{name}/amax_history"), 0));
        for step in 0..STEPS {
            let what = format!("{name} step {step}");
            let load = |what: &str| golden.entry(&format!("{name}/{what}"), step);
            let next = |what: &str| golden.entry(&format!("{name}/{what}"), step + 1);
            let x = exact::<B, 2>(load("x")).require_grad();
            (scale, history) = (scale.require_grad(), history.require_grad());
            let options = QdqOptions::new(format(&case["q"]));
            let op = match case["op"].as_str() {
                Some("in_qdq") => in_qdq::<B, 2>,
                Some("out_qdq") => out_qdq::<B, 2>,
                other => panic!("no operation {other:?}"),
            };
            let y = op(x.clone(), scale.clone(), history.clone(), options);
            // The gradient of sum(y · g) with respect to y is g, exactly.
            let grads = (y.clone() * exact::<B, 2>(load("g"))).sum().backward();
            assert_tensor(y, &load("y"), &format!("{what} y"));
            assert_tensor(x.grad(&grads).expect("tracked"), &load("dx"), &format!("{what} dx"));
            let new = |state: &Tensor<B, 1>| state.grad(&grads).expect("a new value");
            let (new_scale, new_history) = (new(&scale), new(&history));
            assert_tensor(new_scale.clone(), &next("scale"), &format!("{what} scale"));
            assert_tensor(new_history.clone(), &next("amax_history"), &format!("{what} history"));
            (scale, history) = (Tensor::from_inner(new_scale), Tensor::from_inner(new_history));
        }
    }
    cases.len()
}

#[test]
fn operations_are_equal_to_the_bit_in_every_order() {
    assert_eq!(run::<Autodiff<Flex>>(|_| true), 32);
    assert_eq!(run::<Outer<Flex>>(|_| true), 32);
    assert_eq!(run::<Inner<Flex>>(|_| true), 32);
}

#[cfg(feature = "ndarray")]
#[test]
fn ndarray_is_equal_to_the_bit_in_f32() {
    assert_eq!(run::<Autodiff<burn::backend::NdArray>>(|case| case["dtype"] == "f32"), 16);
}

/// Through a layer: the tensors of a sequence become its input in E4M3, or its output gradient in E5M2.
fn run_layer<B: AutodiffBackend + Fp8Matmul>(prefix: &str, mode: DotMode) {
    let golden = golden("flax_sequences");
    let cases = cases(&golden, |case| {
        case["dtype"] == "f32" && case["name"].as_str().is_some_and(|name| name.starts_with(prefix))
    });
    assert_eq!(cases.len(), 4, "histories of 1, 4, 16 and 1024 steps");
    for (name, case) in cases {
        let steps = case["H"].as_u64().expect("a number") as usize;
        let dot = Fp8DotGeneralConfig::new().with_amax_history_length(steps).with_mode(mode);
        let config = Fp8LinearConfig::new(5, 5).with_dot(dot);
        let mut layer = config.init::<B>(&Default::default());
        let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
        for step in 0..STEPS {
            let given = |what: &str| exact::<B, 2>(golden.entry(&format!("{name}/{what}"), step));
            let ones = Tensor::<B, 2>::ones([3, 5], &Default::default());
            let (x, g) = match prefix {
                INPUT => (given("x"), ones),
                _ => (ones, given("g")),
            };
            let grads = (layer.forward(x) * g).sum().backward();
            let grads = GradientsParams::from_grads(grads, &layer);
            layer = optimizer.step(0.0, layer, grads);
            let state = if prefix == INPUT { &layer.dot.input } else { &layer.dot.output_grad };
            for (what, param) in [("scale", &state.scale), ("amax_history", &state.amax_history)] {
                let expected = golden.entry(&format!("{name}/{what}"), step + 1);
                assert_tensor(param.val(), &expected, &format!("{name} {mode:?} {step} {what}"));
            }
        }
    }
}

const INPUT: &str = "in_qdq.e4m3fn.";
const OUTPUT_GRAD: &str = "out_qdq.e5m2.";

#[test]
fn the_state_of_a_layer_freezes_and_recovers_as_in_flax() {
    for part in [INPUT, OUTPUT_GRAD] {
        for mode in [DotMode::Direct, DotMode::QuantizeDequantize] {
            run_layer::<Autodiff<Flex>>(part, mode);
            run_layer::<Outer<Flex>>(part, mode);
            #[cfg(feature = "ndarray")]
            run_layer::<Autodiff<burn::backend::NdArray>>(part, mode);
        }
    }
}
