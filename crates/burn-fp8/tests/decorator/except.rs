//! Layers left in high precision by name.

use burn::nn::{Embedding, EmbeddingConfig};
use burn_fp8::report::ProductReport;

use crate::common::*;

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
fn step_without<B: AutodiffBackend + Fp8Matmul>(
    names: &[&str],
) -> Vec<(GemmRole, [usize; 2], bool)> {
    let model = Model::<B>::new();
    let config = Fp8Config::default().except(&model, names).expect("names of the model");
    let x = random::<B, 2>(1, [16, 32]);
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
    // The head has its shape, and is told from it by its parameter.
    let other = step_without::<Outer<Flex>>(&["other"]);
    assert!(other.iter().all(|(_, _, in_fp8)| *in_fp8), "{other:?}");
}

#[test]
fn names_are_whole_words_of_the_path() {
    let model = Model::<Fp8Backend<Flex>>::new();
    for name in ["hea", "", "head.bias", "weight.head"] {
        let words = [
            &format!("no weight is called {name:?}")[..],
            "`hidden.weight`, `head.weight`, `other.weight`",
        ];
        refused(Fp8Config::default().except(&model, [name]), words);
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
    assert_eq!(reasons(&report)[0].to_string(), "excepted: K×N = 32×64, as `embedding.weight`");
}

#[test]
fn an_excepted_fp8_layer_is_told_from_another_of_its_shape() {
    #[derive(Module, Debug)]
    struct Layers<B: Backend> {
        first: Fp8Linear<B>,
        second: Fp8Linear<B>,
    }

    type B = Autodiff<Flex>;
    let layer = || Fp8LinearConfig::new(32, 32).init::<B>(&Default::default());
    let model = Layers { first: layer(), second: layer() };
    let x = random::<B, 2>(1, [16, 32]);
    let config = Fp8Config::default().except(&model, ["second"]).expect("a name of the model");
    let run = |layer: &Fp8Linear<B>| layer.forward(x.clone()).into_data();
    let plain = |layer: &Fp8Linear<B>| high_precision(|| run(layer));
    config.scope(|| {
        assert_ne!(run(&model.first), plain(&model.first));
        assert_eq!(run(&model.second), plain(&model.second));
    });
    assert_ne!(run(&model.second), plain(&model.second), "the scope has ended");
}

/// One forward pass of two layers of one shape, of which one is excepted.
fn excepted<B: Backend + Fp8Matmul>(config: &Fp8Config, model: &Model<B>) -> Vec<bool> {
    let x = random::<B, 2>(1, [16, 48]);
    let run = || (model.head.forward(x.clone()), model.other.forward(x));
    let (_, report) = config.scope(|| trace(run));
    report.products.iter().map(|product| product.lhs.is_some()).collect()
}

/// A decorator knows a parameter, and what an optimizer makes of it.
#[test]
fn a_layer_is_told_from_another_of_its_shape_by_its_parameter() {
    fn check<B: Backend + Fp8Matmul>() {
        let model = Model::<B>::new();
        let config = Fp8Config::default().except(&model, ["other"]).expect("a name of the model");
        assert_eq!(excepted(&config, &model), [true, false]);
    }
    check::<Fp8Backend<Flex>>();
    check::<Inner<Flex>>();

    let mut model = Model::<Outer<Flex>>::new();
    let config = Fp8Config::default().except(&model, ["other"]).expect("a name of the model");
    let mut optimizer = AdamConfig::new().init();
    for _ in 0..3 {
        assert_eq!(excepted(&config, &model), [true, false]);
        assert_eq!(excepted(&config, &model.valid()), [true, false]);
        let x = random::<Outer<Flex>, 2>(1, [16, 48]);
        let loss = (model.head.forward(x.clone()) + model.other.forward(x)).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, grads);
    }
}

/// A weight that is cast in the graph is no parameter any more: it goes by its shape.
#[test]
fn a_cast_weight_is_known_by_its_shape() {
    let model = Model::<Outer<Flex>>::new();
    let config = Fp8Config::default().except(&model, ["other"]).expect("a name of the model");
    let x = ones::<_, 2>([16, 48]).cast(FloatDType::F16);
    let weight = model.head.weight.val().cast(FloatDType::F16);
    let (_, report) = config.scope(|| trace(|| x.matmul(weight)));
    assert_eq!(reasons(&report)[0].to_string(), "excepted: K×N = 48×64, as `other.weight`");
}

/// Parameters that are parts of one memory, as of a fused weight that was split, are told apart.
#[test]
fn parts_of_one_memory_are_told_apart() {
    let mut model = Model::<Fp8Backend<Flex>>::new();
    let whole = random::<_, 2>(1, [96, 64]);
    model.head.weight = Param::from_tensor(whole.clone().slice([0..48, 0..64]));
    model.other.weight = Param::from_tensor(whole.slice([48..96, 0..64]));
    for (name, in_fp8) in [("head", [false, true]), ("other", [true, false])] {
        let config = Fp8Config::default().except(&model, [name]).expect("a name of the model");
        assert_eq!(excepted(&config, &model), in_fp8);
    }
}
