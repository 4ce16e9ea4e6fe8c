//! The golden file `flax_ops`: every function of `fp8_ops`, case by case, to the bit.

use burn_fp8::ops::{self, QdqOptions};
use serde_json::Value;

use crate::common::golden::{assert_tensor, dtype, exact, format};
use crate::common::*;

/// Runs every case that `takes` takes, and returns how many of each kind there were.
fn run<B: Fp8Matmul>(takes: impl Fn(&Value) -> bool) -> [usize; 5]
where
    Autodiff<B>: Fp8Matmul,
{
    let golden = golden("flax_ops");
    let mut counts = [0; 5];
    for case in golden.cases("cases").iter().filter(|case| takes(case)) {
        let name = case["name"].as_str().expect("a name");
        let checks = [
            ("quantize", quantize::<B> as fn(&Golden, &Value, &str)),
            ("dequantize", dequantize::<B>),
            ("compute_scale", compute_scale::<B>),
            ("edge", edge::<B>),
            ("compute_amax_history", compute_amax_history::<B>),
        ];
        let is_it = |(kind, _): &_| name.split('/').next() == Some(*kind);
        let kind = checks.iter().position(is_it).unwrap_or_else(|| panic!("no test for {name}"));
        checks[kind].1(&golden, case, name);
        counts[kind] += 1;
    }
    counts
}

fn compute_amax_history<B: Fp8Matmul>(golden: &Golden, _: &Value, name: &str) {
    let x = exact::<B, 2>(golden.data(&format!("{name}/x")));
    let history = exact::<B, 1>(golden.data(&format!("{name}/hist")));
    let history = ops::compute_amax_history(x, history);
    assert_tensor(history, &golden.data(&format!("{name}/out")), name);
}

fn quantize<B: Fp8Matmul>(golden: &Golden, case: &Value, name: &str) {
    let x = exact::<B, 1>(golden.data(&format!("{name}/x")));
    let scale = exact::<B, 1>(golden.data(&format!("{name}/scale")));
    let (format, compute) = (format(&case["q"]), dtype(&case["compute"]));
    let codes = ops::quantize(x.clone(), format, scale.clone(), compute);
    same_codes(&codes.to_bytes(), &golden.data(&format!("{name}/codes")), format, name);
    let qdq = golden.data(&format!("{name}/qdq"));
    let y = ops::quantize_dequantize(x.clone(), format, scale.clone(), compute);
    assert_tensor(y, &qdq, name);
    assert_tensor(ops::dequantize(&codes, scale, x.dtype().into()), &qdq, name);
}

/// Codes are equal; any NaN code equals any NaN code.
fn same_codes(actual: &[u8], expected: &TensorData, format: Fp8Format, name: &str) {
    let expected = expected.as_bytes();
    assert_eq!(actual.len(), expected.len(), "{name}");
    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
        let same = a == e || (format.is_nan(*a) && format.is_nan(*e));
        assert!(same, "{name} code {index}: {a:#x} instead of {e:#x}");
    }
}

fn dequantize<B: Fp8Matmul>(golden: &Golden, case: &Value, name: &str) {
    let bytes = golden.data(&format!("{name}/codes"));
    let format = format(&case["q"]);
    let codes = bytes.as_bytes().to_vec();
    let codes = Fp8Tensor::<B, 1>::from_bytes(codes, [256], format, 1.0, &Default::default())
        .expect("as many as the shape has");
    same_codes(&codes.to_bytes(), &bytes, format, name);
    let scale = exact(golden.data(&format!("{name}/scale")));
    let out = ops::dequantize(&codes, scale, dtype(&case["out"]));
    assert_tensor(out, &golden.data(&format!("{name}/out")), name);
}

fn compute_scale<B: Fp8Matmul>(golden: &Golden, case: &Value, name: &str) {
    let load = |what: &str| exact::<B, 1>(golden.data(&format!("{name}/{what}")));
    let margin = case["margin"].as_i64().expect("an integer") as i32;
    let out = ops::compute_scale(load("amax"), load("scale"), format(&case["q"]), margin);
    // Rows that depend on XLA's flushing of subnormals are the only ones that are not compared.
    let flushed = golden.data(&format!("{name}/ftz_dependent"));
    let rows = flushed.as_bytes().iter().enumerate().filter(|(_, flag)| **flag == 0);
    let rows: Vec<_> = rows.map(|(row, _)| row as i32).collect();
    assert!(rows.len() >= 150, "{name}: {} rows", rows.len());
    let pick = |tensor: Tensor<B, 1>| {
        let rows = Tensor::from_data(TensorData::new(rows.clone(), [rows.len()]), &tensor.device());
        tensor.select(0, rows)
    };
    assert_tensor(pick(out), &pick(load("out")).into_data(), name);
}

/// A whole update, through `in_qdq`: the new state arrives as gradients.
fn edge<B: Fp8Matmul>(golden: &Golden, case: &Value, name: &str)
where
    Autodiff<B>: Fp8Matmul,
{
    let load = |what: &str| exact::<Autodiff<B>, 1>(golden.data(&format!("{name}/{what}")));
    let (scale, history) = (load("scale").require_grad(), load("hist").require_grad());
    let options = QdqOptions::new(format(&case["q"]));
    let y = ops::in_qdq(load("x"), scale.clone(), history.clone(), options);
    let grads = y.clone().backward();
    assert_tensor(y.inner(), &golden.data(&format!("{name}/qdq")), name);
    let scale = scale.grad(&grads).expect("a new scale");
    assert_tensor(scale, &golden.data(&format!("{name}/new_scale")), name);
    let history = history.grad(&grads).expect("a new history");
    assert_tensor(history, &golden.data(&format!("{name}/new_hist")), name);
}

/// As many cases as the golden file has, none left out.
#[test]
fn flex_is_equal_to_the_bit() {
    assert_eq!(run::<Flex>(|_| true), [20, 6, 4, 12, 60]);
}

#[cfg(feature = "ndarray")]
#[test]
fn ndarray_is_equal_to_the_bit_in_f32() {
    let f32_only = |case: &Value| {
        ["x", "compute", "out"]
            .into_iter()
            .all(|key| case.get(key).is_none_or(|dtype| dtype == "f32"))
    };
    assert_eq!(run::<burn::backend::NdArray>(f32_only), [4, 2, 4, 12, 20]);
}
