//! Attention and its gradients against torch in f64 (`attention.py` beside the golden file says how it was made).

use burn::tensor::{Bool, TensorData};
use burn_fp8::AttentionPrecision;
use burn_fp8::fused::ops::{AttentionOptions, attention};

use crate::common::*;

/// The root mean square of the errors relative to that of the exact numbers, and the largest error relative to the largest number.
fn errors(x: &[f64], exact: &[f64]) -> [f64; 2] {
    assert_eq!(x.len(), exact.len());
    let largest = |x: &mut dyn Iterator<Item = f64>| x.fold(0.0, |a: f64, b| a.max(b.abs()));
    let size: f64 = exact.iter().map(|x| x * x).sum();
    let difference = || x.iter().zip(exact).map(|(x, exact)| x - exact);
    let (sum, worst) = (difference().map(|x| x * x).sum::<f64>(), largest(&mut difference()));
    assert!(sum.is_finite());
    // The gradients of queries and keys are 0 where a query sees one key alone.
    if size == 0.0 {
        return [sum.sqrt(), worst];
    }
    [(sum / size).sqrt(), worst / largest(&mut exact.iter().copied())]
}

/// All results of a case, with their names and exact values.
fn results<A: AutodiffBackend + Fp8Matmul>(
    golden: &Golden,
    case: &serde_json::Value,
    precision: AttentionPrecision,
) -> Vec<(String, Vec<f64>, Vec<f64>)> {
    let device = Default::default();
    let name = |part: &str| format!("{}/{part}", case["name"].as_str().expect("a name"));
    let has = |part: &str| golden.has(&name(part));
    let tensor = |part: &str| Tensor::<A, 4>::from_data(golden.data(&name(part)), &device);
    let leaf = |part: &str| tensor(part).require_grad();
    let (q, k, v) = (leaf("q"), leaf("k"), leaf("v"));
    let bias = has("bias").then(|| leaf("bias"));
    let hidden = |part: &str| {
        let data = golden.data(&name(part));
        let hidden = golden.u8s(&name(part)).into_iter().map(|x| x != 0).collect::<Vec<_>>();
        TensorData::new(hidden, data.shape)
    };
    let options = AttentionOptions {
        causal: case["causal"].as_bool().expect("true or false"),
        scale: case["scale"].as_f64(),
        softcap: case["softcap"].as_f64(),
        bias: bias.clone(),
        mask_pad: has("mask_pad")
            .then(|| Tensor::<A, 2, Bool>::from_data(hidden("mask_pad"), &device)),
        mask: has("mask").then(|| Tensor::<A, 4, Bool>::from_data(hidden("mask"), &device)),
        dropout: None,
        precision,
    };
    let output = attention(q.clone(), k.clone(), v.clone(), options);
    let grads = (output.clone() * tensor("grad")).sum().backward();
    let numbers = |data: TensorData| data.convert::<f64>().to_vec::<f64>().expect("f64");
    let mut results = vec![("output", output.into_data())];
    for (part, leaf) in [("grad_q", &q), ("grad_k", &k), ("grad_v", &v)] {
        results.push((part, leaf.grad(&grads).expect("it was used").into_data()));
    }
    if let Some(bias) = bias {
        results.push(("grad_bias", bias.grad(&grads).expect("it was used").into_data()));
    }
    let whole = |(part, data): (&str, TensorData)| {
        (name(part), numbers(data), numbers(golden.data(&name(part))))
    };
    results.into_iter().map(whole).collect()
}

#[track_caller]
fn assert_golden<A: AutodiffBackend + Fp8Matmul>(precisions: &[AttentionPrecision]) {
    let golden = golden("attention");
    assert_eq!(golden.cases("cases").len(), 16);
    for &precision in precisions {
        let [of_all, of_one] = match precision {
            AttentionPrecision::High => [2e-6, 2e-6],
            AttentionPrecision::Bf16 => [0.01, 0.03],
            AttentionPrecision::Fp8 => [0.2, 0.3],
        };
        for case in golden.cases("cases") {
            // The rounding of a score grows with it, and is a relative error of a probability.
            let harder = (case["largest_score"].as_f64().expect("a number") / 5.0).max(1.0);
            for (name, result, exact) in results::<A>(&golden, case, precision) {
                let [all, one] = errors(&result, &exact);
                println!("{precision} {name} {all:.2e} {one:.2e}");
                assert!(
                    all <= harder * of_all && one <= harder * of_one,
                    "{precision} {name}: {all} {one}"
                );
            }
        }
    }
}

#[test]
fn attention_and_its_gradients_are_those_of_torch_in_f64() {
    assert_golden::<Autodiff<Flex>>(&AttentionPrecision::ALL);
}

#[cfg(feature = "ndarray")]
#[test]
fn in_tensor_operations_too() {
    use burn::backend::NdArray;
    assert_golden::<Autodiff<NdArray>>(&[AttentionPrecision::High, AttentionPrecision::Fp8]);
}
