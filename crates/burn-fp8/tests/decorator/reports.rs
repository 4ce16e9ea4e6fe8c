//! Reports as JSON.

use serde_json::{Value, json};

use crate::common::*;

fn products(report: &Report) -> Vec<Value> {
    let json: Value = serde_json::from_str(&report.to_json()).expect("JSON");
    json["products"].as_array().expect("a list").clone()
}

#[test]
fn a_training_step_reads_as_json() {
    type B = Outer<Flex>;
    let layer = LinearConfig::new(32, 48).init::<B>(&Default::default());
    // Powers of two are the same number whoever writes it.
    let config = Fp8Config::default().with_recipe(Recipe::delayed().with_power_of_two(true));
    let step = || layer.forward(ones::<B, 2>([16, 32]).require_grad()).sum().backward();
    let (_, report) =
        config.scope(|| DelayedState::new().scope(|| trace(|| [step(), high_precision(step)])));
    let [output, grad_input, grad_weight, high] = &products(&report)[..] else {
        panic!("{report}");
    };
    let scale = report.products[0].rhs.expect("in FP8").scale;
    // The kernel is that of the machine.
    let ran = match implementation::<Flex>() {
        Implementation::MatrixUnit(name) => {
            json!({ "by": "matrix_unit", "kernel": name, "reason": null })
        }
        _ => json!({ "by": "emulation", "kernel": null, "reason": null }),
    };
    let operand = |format, scale| json!({ "format": format, "granularity": "per_tensor", "scale": scale, "saturated": 0 });
    assert_eq!(
        *output,
        json!({
            "kind": "linear",
            "role": "output",
            "gemm": { "batch": 1, "m": 16, "n": 48, "k": 32, "plain_operand": true },
            "lhs": operand("e4m3", 1.0 / 256.0),
            "rhs": operand("e4m3", scale),
            "epilogue": null,
            "site": { "index": 0, "status": "new" },
            "ran": ran,
        })
    );
    assert_eq!([&grad_input["role"], &grad_weight["role"]], ["grad_input", "grad_weight"]);
    assert_eq!(grad_input["lhs"]["format"], "e5m2");
    assert_eq!([&high["lhs"], &high["site"]], [&Value::Null, &Value::Null]);
    let reason = json!({ "by": "high_precision", "kernel": null, "reason": "FP8 is off" });
    assert_eq!(high["ran"], reason);
}

#[test]
fn a_scaled_product_reads_as_json_with_its_epilogue() {
    let matrix = |shape| Fp8Tensor::quantize(ones::<Flex, 2>(shape), E4M3);
    let (a, b) = (matrix([16, 32]), matrix([48, 32]).transpose());
    let bias = ones::<Flex, 1>([48]).cast(FloatDType::BF16);
    let options = [
        ScaledMatmulOptions::default().with_c(ones([16, 48]), 2.0),
        ScaledMatmulOptions::float(FloatDType::BF16).with_bias(bias).with_fast_accumulation(),
        ScaledMatmulOptions::fp8(E4M3, 0.5).with_activation(Activation::Gelu).with_amax(),
    ];
    let (_, report) = trace(|| {
        for options in &options {
            scaled_matmul(&a, &b, options).expect("a product");
        }
    });
    let epilogues: Vec<_> =
        products(&report).iter().map(|product| product["epilogue"].clone()).collect();
    let epilogue = |c, bias, activation, output, amax, fast_accumulation| {
        json!({
            "c": c,
            "bias": bias,
            "activation": activation,
            "output": output,
            "amax": amax,
            "fast_accumulation": fast_accumulation,
        })
    };
    assert_eq!(
        epilogues,
        [
            epilogue(true, false, "none", "f32", false, false),
            epilogue(false, true, "none", "bf16", false, true),
            epilogue(false, false, "gelu", "e4m3", true, false),
        ]
    );
}
