//! The golden file `flax_sequences`: twelve steps with zeros, an infinity and a NaN on the way, to the bit.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::Fp8Matmul;
use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};
use common::golden::{Golden, assert_same, exact, format};
use common::{Inner, Outer};
use serde_json::Value;

const STEPS: usize = 12;

fn run<B: AutodiffBackend + Fp8Matmul>(takes: impl Fn(&Value) -> bool) -> usize {
    let golden = Golden::open("flax_sequences");
    let cases: Vec<_> = golden.cases().into_iter().filter(takes).collect();
    for case in &cases {
        let name = case["name"].as_str().expect("a name");
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
            assert_same(y, &load("y"), &format!("{what} y"));
            assert_same(x.grad(&grads).expect("tracked"), &load("dx"), &format!("{what} dx"));
            let new = |state: &Tensor<B, 1>| state.grad(&grads).expect("a new value");
            let (new_scale, new_history) = (new(&scale), new(&history));
            assert_same(new_scale.clone(), &next("scale"), &format!("{what} scale"));
            assert_same(new_history.clone(), &next("amax_history"), &format!("{what} history"));
            (scale, history) = (Tensor::from_inner(new_scale), Tensor::from_inner(new_history));
        }
    }
    cases.len()
}

#[test]
fn autodiff_is_equal_to_the_bit() {
    assert_eq!(run::<Autodiff<Flex>>(|_| true), 32);
}

#[test]
fn decorated_autodiff_is_equal_to_the_bit() {
    assert_eq!(run::<Outer<Flex>>(|_| true), 32);
}

#[test]
fn autodiff_of_a_decorated_backend_is_equal_to_the_bit() {
    assert_eq!(run::<Inner<Flex>>(|_| true), 32);
}

#[cfg(feature = "ndarray")]
#[test]
fn ndarray_is_equal_to_the_bit_in_f32() {
    assert_eq!(run::<Autodiff<burn::backend::NdArray>>(|case| case["dtype"] == "f32"), 16);
}
