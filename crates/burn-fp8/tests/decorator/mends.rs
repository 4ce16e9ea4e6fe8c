//! Shapes that do not multiply, layers left in high precision by name, and reports as JSON.

use crate::common::{Inner, Outer, panic_of};
use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Distribution, FloatDType, Int, Tensor};
use burn_fp8::nn::{Fp8Linear, Fp8LinearConfig};
use burn_fp8::report::ProductReport;
use burn_fp8::{
    Activation, DelayedState, Fp8Backend, Fp8Config, Fp8Format, Fp8Tensor, GemmRole, Recipe,
    ScaledMatmulOptions, high_precision, scaled_matmul, trace,
};
use serde_json::{Value, json};

fn ones<B: Backend, const D: usize>(shape: [usize; D]) -> FloatTensor<B> {
    Tensor::<B, D>::ones(shape, &Default::default()).into_primitive().tensor()
}

/// What each product says of operands whose shapes do not fit.
fn misfits<B: Backend>() -> Vec<(String, &'static str)> {
    let linear = |x: [usize; 3], weight: [usize; 2]| {
        panic_of(|| B::linear(ones::<B, 3>(x), ones::<B, 2>(weight), None))
    };
    let x_backward = |weight: [usize; 2], output_grad: [usize; 3]| {
        panic_of(|| B::linear_x_backward(ones::<B, 2>(weight), ones::<B, 3>(output_grad)))
    };
    let weight_backward = |x: [usize; 3], output_grad: [usize; 3]| {
        panic_of(|| B::linear_weight_backward(ones::<B, 3>(x), ones::<B, 3>(output_grad)))
    };
    let matmul = |x: [usize; 3], y: [usize; 3]| {
        panic_of(|| B::float_matmul(ones::<B, 3>(x), ones::<B, 3>(y)))
    };
    vec![
        (matmul([2, 16, 16], [3, 16, 16]), "[2, 16, 16] and [3, 16, 16]"),
        (matmul([2, 16, 17], [2, 16, 16]), "[2, 16, 17] and [2, 16, 16]"),
        (linear([2, 16, 17], [16, 32]), "[2, 16, 17] and [16, 32]"),
        (x_backward([16, 32], [2, 16, 31]), "[2, 16, 31] and [16, 32]"),
        (weight_backward([2, 16, 16], [3, 16, 32]), "[2, 16, 16] and [3, 16, 32]"),
        (weight_backward([2, 16, 16], [2, 17, 32]), "[2, 16, 16] and [2, 17, 32]"),
    ]
}

#[test]
fn shapes_that_do_not_multiply_panic_with_fp8_off_too() {
    for config in [Fp8Config::default(), Fp8Config::off()] {
        for messages in [
            config.scope(misfits::<Fp8Backend<Flex>>),
            config.scope(misfits::<Fp8Backend<Autodiff<Flex>>>),
        ] {
            for (message, shapes) in messages {
                let expected = format!("of the shapes {shapes} do not multiply; these do: [");
                assert!(message.contains(&expected), "{message}");
            }
        }
    }
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    hidden: Linear<B>,
    head: Linear<B>,
    other: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn new() -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&Default::default());
        Self { hidden: layer(32, 48), head: layer(48, 64), other: layer(48, 64) }
    }
}

/// What a training step of two layers ran, with the layers of these names excepted: role, K, N and whether in FP8.
fn step_without<B: AutodiffBackend>(names: &[&str]) -> Vec<(GemmRole, [usize; 2], bool)> {
    let model = Model::<B>::new();
    let config = Fp8Config::default().except(&model, names).expect("names of the model");
    let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &Default::default());
    let step = || model.head.forward(model.hidden.forward(x.require_grad())).sum().backward();
    let (_, report) = config.scope(|| trace(step));
    let layer = |product: &ProductReport| {
        let forward = product.gemm.for_role(product.role);
        (product.role, [forward.k, forward.n], product.lhs.is_some())
    };
    report.products.iter().map(layer).collect()
}

#[test]
fn an_excepted_layer_stays_in_high_precision_with_its_gradients() {
    use GemmRole::{GradInput, GradWeight, Output};
    let (hidden, head) = ([32, 48], [48, 64]);
    let outer = step_without::<Outer<Flex>>(&["head"]);
    // The gradients of a product that is not in FP8 are Autodiff's own.
    let gradients = [(GradInput, hidden, true), (GradWeight, hidden, true)];
    assert_eq!(outer[..2], [(Output, hidden, true), (Output, head, false)]);
    assert_eq!(outer[2..], gradients);
    let inner = step_without::<Inner<Flex>>(&["head"]);
    assert_eq!(
        inner[..4],
        [
            (Output, hidden, true),
            (Output, head, false),
            (GradInput, head, false),
            (GradWeight, head, false)
        ]
    );
    assert_eq!(inner[4..], gradients);
    let all = step_without::<Outer<Flex>>(&["hidden.weight", "head"]);
    assert_eq!(all, [(Output, hidden, false), (Output, head, false)]);
    // By shape: it cannot be told from the head.
    assert_eq!(step_without::<Outer<Flex>>(&["other"]), outer);
}

#[test]
fn names_are_whole_words_of_the_path() {
    type B = Fp8Backend<Flex>;
    let model = Model::<B>::new();
    for name in ["hea", "", "head.bias", "weight.head"] {
        let error = Fp8Config::default().except(&model, [name]).unwrap_err().to_string();
        assert!(error.contains(&format!("no weight is called {name:?}")), "{error}");
        assert!(error.contains("`hidden.weight`, `head.weight`, `other.weight`"), "{error}");
    }
    let config = Fp8Config::default().except(&model, ["weight"]).expect("all three");
    let paths: Vec<_> = config.filter.except.iter().map(|weight| &weight.path[..]).collect();
    assert_eq!(paths, ["hidden.weight", "head.weight", "other.weight"]);
    // A saved configuration still knows them, by shape and by the ids that a record of the model has.
    let json = config.to_json();
    assert!(json.contains(r#""path": "head.weight""#), "{json}");
    assert_eq!(Fp8Config::from_json(&json).expect("its own JSON"), config);
    assert!(!Fp8Config::default().to_json().contains("except"));
}

#[test]
fn a_head_that_shares_the_embedding_can_be_excepted() {
    #[derive(Module, Debug)]
    struct Tied<B: Backend> {
        embedding: Embedding<B>,
    }

    type B = Outer<Flex>;
    let device = Default::default();
    let model = Tied::<B> { embedding: EmbeddingConfig::new(64, 32).init(&device) };
    let head = || {
        let x = model.embedding.forward(Tensor::<B, 2, Int>::ones([1, 16], &device));
        x.reshape([16, 32]).matmul(model.embedding.weight.val().transpose())
    };
    let matmul = Fp8Config::default();
    assert_eq!(matmul.scope(|| trace(head)).1.fp8().count(), 1);
    let config = matmul.except(&model, ["embedding"]).expect("a name of the model");
    let (_, report) = config.scope(|| trace(head));
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason.to_string()).collect();
    assert_eq!(reasons, ["excepted: K×N = 32×64, as `embedding.weight`"]);
}

#[test]
fn an_excepted_fp8_layer_is_told_from_another_of_its_shape() {
    #[derive(Module, Debug)]
    struct Layers<B: Backend> {
        first: Fp8Linear<B>,
        second: Fp8Linear<B>,
    }

    type B = Autodiff<Flex>;
    let device = Default::default();
    let layer = || Fp8LinearConfig::new(32, 32).init::<B>(&device);
    let model = Layers { first: layer(), second: layer() };
    let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &device);
    let config = Fp8Config::default().except(&model, ["second"]).expect("a name of the model");
    let run = |layer: &Fp8Linear<B>| layer.forward(x.clone()).into_data();
    let plain = |layer: &Fp8Linear<B>| high_precision(|| run(layer));
    config.scope(|| {
        assert_ne!(run(&model.first), plain(&model.first));
        assert_eq!(run(&model.second), plain(&model.second));
    });
    assert_ne!(run(&model.second), plain(&model.second), "the scope has ended");
}

fn products(report: &burn_fp8::Report) -> Vec<Value> {
    let json: Value = serde_json::from_str(&report.to_json()).expect("JSON");
    json["products"].as_array().expect("a list").clone()
}

#[test]
fn a_training_step_reads_as_json() {
    type B = Outer<Flex>;
    let layer = LinearConfig::new(32, 48).init::<B>(&Default::default());
    let x = || Tensor::<B, 2>::ones([16, 32], &Default::default());
    // Powers of two are the same number whoever writes it.
    let recipe = Recipe::delayed().with_power_of_two(true);
    let config = Fp8Config::default().with_recipe(recipe);
    let step = || layer.forward(x().require_grad()).sum().backward();
    let (_, report) =
        config.scope(|| DelayedState::new().scope(|| trace(|| [step(), high_precision(step)])));
    let [output, grad_input, grad_weight, high] = &products(&report)[..] else {
        panic!("{report}");
    };
    let scale = report.products[0].rhs.expect("in FP8").scale;
    // The kernel is that of the machine.
    let ran = match crate::common::implementation::<Flex>() {
        burn_fp8::report::Implementation::MatrixUnit(name) => {
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
    type B = Flex;
    let device = Default::default();
    let matrix = |shape| Fp8Tensor::quantize(Tensor::<B, 2>::ones(shape, &device), Fp8Format::E4M3);
    let (a, b) = (matrix([16, 32]), matrix([48, 32]).transpose());
    let bias = Tensor::<B, 1>::ones([48], &device).cast(FloatDType::BF16);
    let options = [
        ScaledMatmulOptions::default(),
        ScaledMatmulOptions::float(FloatDType::BF16).with_bias(bias).with_fast_accumulation(),
        ScaledMatmulOptions::fp8(Fp8Format::E4M3, 0.5)
            .with_activation(Activation::Gelu)
            .with_amax(),
    ];
    let (_, report) = trace(|| {
        for options in &options {
            scaled_matmul(&a, &b, options).expect("a product");
        }
    });
    let epilogues: Vec<_> =
        products(&report).iter().map(|product| product["epilogue"].clone()).collect();
    let epilogue = |bias, activation, output, amax, fast_accumulation| {
        json!({
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
            epilogue(false, "none", "f32", false, false),
            epilogue(true, "none", "bf16", false, true),
            epilogue(false, "gelu", "e4m3", true, false),
        ]
    );
}
