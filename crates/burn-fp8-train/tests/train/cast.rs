//! Casts of tensors, and of modules: gradients arrive at the parameters of the module, state stays.

use burn::module::{ModuleVisitor, ParamId, RunningState};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig,
};
use burn::tensor::bf16;
use burn_fp8_train::policy::{self, PolicyDType};

use crate::common::models::{dot, parameters, state};
use crate::common::*;

type Plain = Autodiff<Flex>;
type Fp8 = Outer<Flex>;

const HALVES: [FloatDType; 2] = [FloatDType::BF16, FloatDType::F16];

/// Parameters in f32, compute in `dtype`, output in f32.
fn mixed(dtype: FloatDType) -> Policy {
    Policy::new(FloatDType::F32, dtype, FloatDType::F32)
}

/// Ids and dtypes of every float parameter.
fn dtypes<B: Backend>(module: &impl Module<B>) -> Vec<(ParamId, DType)> {
    struct Collect(Vec<(ParamId, DType)>);
    impl<B: Backend> ModuleVisitor<B> for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0.push((param.id, param.val().dtype()));
        }
    }
    let mut collect = Collect(vec![]);
    module.visit(&mut collect);
    collect.0
}

/// Names and values of the gradients, which must be there, in f32.
fn gradients<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    loss: Tensor<B, 1>,
) -> Vec<Vec<f32>> {
    struct Collect(GradientsParams, Vec<Vec<f32>>);
    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let grad = self.0.get::<B::InnerBackend, D>(param.id).expect("a gradient");
            assert_eq!(grad.dtype(), DType::F32);
            self.1.push(values(grad));
        }
    }
    let mut collect = Collect(GradientsParams::from_grads(loss.backward(), model), vec![]);
    model.visit(&mut collect);
    collect.1
}

/// A layer of which bf16 and f16 round the weights to 1 and 2: 13.5 for the input (3, 5).
fn layer<B: Backend>() -> Linear<B> {
    let mut layer = LinearConfig::new(2, 1).init(&Default::default());
    let eps = 2f32.powi(-12);
    layer.weight = Param::from_tensor(tensor(&[1.0 + eps, 2.0 + 2.0 * eps], [2, 1]));
    layer.bias = Some(Param::from_tensor(tensor(&[0.5], [1])));
    layer
}

fn a_view_computes_in_half_and_its_gradients_are_the_modules<B: AutodiffBackend>() {
    for dtype in HALVES {
        let (policy, layer) = (mixed(dtype), layer::<B>());
        let view = policy.cast_module_to_compute(&layer);
        assert_eq!(view.weight.val().dtype(), dtype.into());
        assert_eq!(layer.weight.val().dtype(), DType::F32);
        let y = view.forward(policy.cast_to_compute(tensor(&[3.0, 5.0], [1, 2])));
        assert_eq!(y.dtype(), dtype.into());
        // By hand: y = 3·1 + 5·2 + 0.5; the gradient of y² is 2y = 27 at y, 27·(3, 5) at the weight, 27 at the bias. In f32 all are larger.
        let y = policy.cast_to_output(y);
        assert_eq!((y.dtype(), values(y.clone())), (DType::F32, vec![13.5]));
        assert_eq!(gradients(&layer, y.powi_scalar(2).sum()), [vec![81.0, 135.0], vec![27.0]]);
    }
}

tests_on!(plain: super::Plain, [
    a_view_computes_in_half_and_its_gradients_are_the_modules,
    usual_layers_work_in_half,
]);
tests_on!(decorated: super::Fp8, [
    a_view_computes_in_half_and_its_gradients_are_the_modules,
    usual_layers_work_in_half,
]);

#[test]
fn with_fp8_the_products_are_those_of_tensors_cast_by_hand() {
    for dtype in HALVES {
        let policy = Policy::parse(&format!("{},m=fp8", mixed(dtype))).unwrap();
        let layer = LinearConfig::new(32, 24).with_bias(false).init::<Fp8>(&Default::default());
        let x = tensor::<Fp8, 2>(&Random(5).spread(16 * 32), [16, 32]);
        let (of_view, report) = policy.scope(|| {
            trace(|| {
                let view = policy::cast_module_to_compute(&layer);
                let y = policy::cast_to_output(view.forward(policy::cast_to_compute(x.clone())));
                gradients(&layer, y.powi_scalar(2).sum())
            })
        });
        let roles: Vec<_> = report.fp8().map(|product| product.role).collect();
        assert_eq!(roles, [GemmRole::Output, GemmRole::GradWeight]);
        let weight = Tensor::<Fp8, 2>::from_inner(layer.weight.val().inner()).require_grad();
        let y = x.cast(dtype).matmul(weight.clone().cast(dtype)).cast(FloatDType::F32);
        let grads = y.powi_scalar(2).sum().backward();
        assert_eq!(bits(&of_view[0]), bits(&values(weight.grad(&grads).unwrap())));
    }
}

#[derive(Module, Debug)]
struct Model<B: Backend> {
    embedding: Embedding<B>,
    norm: LayerNorm<B>,
    linear: Linear<B>,
    table: Param<Tensor<B, 1, Int>>,
}

impl<B: Backend> Model<B> {
    fn new() -> Self {
        let device = Default::default();
        let table = Tensor::from_ints([7, 8, 9], &device);
        Self {
            embedding: EmbeddingConfig::new(11, 32).init(&device),
            norm: LayerNormConfig::new(32).init(&device),
            linear: LinearConfig::new(32, 16).init(&device),
            table: Param::initialized(ParamId::new(), table),
        }
    }

    fn loss(&self, policy: &Policy) -> Tensor<B, 1> {
        let view = policy.cast_module_to_compute(self);
        assert_eq!(view.table.val().into_data(), self.table.val().into_data());
        let tokens = Tensor::from_ints(
            [[1, 2, 3, 4, 5, 6, 7, 8], [2, 2, 9, 10, 0, 1, 0, 3]],
            &Default::default(),
        );
        let y = view.linear.forward(view.norm.forward(view.embedding.forward(tokens)));
        assert_eq!(y.dtype(), policy.compute.into());
        policy.cast_to_output(y).powi_scalar(2).mean()
    }
}

fn usual_layers_work_in_half<B: AutodiffBackend>() {
    Policy::parse("m=high").unwrap().scope(usual_layers::<B>);
}

fn usual_layers<B: AutodiffBackend>() {
    // Not used before: the parameters come into being with the first view, and once.
    let model = Model::<B>::new();
    let losses = HALVES.map(|dtype| model.loss(&mixed(dtype)));
    let exact = gradients(&model, model.loss(&Policy::uniform(FloatDType::F32)));
    assert!(exact.iter().all(|gradient| gradient.iter().any(|value| *value != 0.0)));
    for ((loss, tolerance), dtype) in losses.into_iter().zip([0.04, 0.005]).zip(HALVES) {
        assert_eq!(loss.dtype(), DType::F32);
        let rounded = gradients(&model, loss);
        assert_ne!(rounded, exact, "{dtype:?} rounds");
        for (rounded, exact) in rounded.iter().zip(&exact) {
            assert_close(rounded, exact, tolerance, &format!("{dtype:?}"));
        }
    }
}

#[test]
fn a_parameter_not_used_before_is_the_same_in_a_view() {
    // Burn draws it when it is first used, and a clone would draw another.
    let layer = LinearConfig::new(8, 8).init::<Plain>(&Default::default());
    let view = mixed(FloatDType::BF16).cast_module_to_compute(&layer);
    let weight = values(layer.weight.val());
    let expected: Vec<f32> = weight.iter().map(|w| bf16::from_f32(*w).to_f32()).collect();
    assert_ne!(expected, weight, "bf16 rounds");
    assert_eq!(values(view.weight.val()), expected);
}

#[test]
fn without_a_policy_a_view_is_a_clone_on_the_same_leaves() {
    let layer = LinearConfig::new(2, 1).init::<Plain>(&Default::default());
    let views = [policy::cast_module_to_compute(&layer), policy::cast_module_to_output(&layer)];
    for view in views {
        assert_eq!(parameters(&view), parameters(&layer));
        let y = view.forward(tensor(&[3.0, 5.0], [1, 2])).sum();
        assert_eq!(gradients(&layer, y), [vec![3.0, 5.0], vec![1.0]]);
    }
    let same = policy::cast_module_to_param(layer.clone());
    assert_eq!(parameters(&same), parameters(&layer));
}

#[test]
fn views_for_the_output_have_its_dtype() {
    let layer = layer::<Plain>();
    let policy = Policy::parse("p=f32,c=bf16,o=f16").unwrap();
    assert_eq!(policy.cast_module_to_output(&layer).weight.val().dtype(), DType::F16);
    let view = policy.scope(|| policy::cast_module_to_output(&layer));
    assert_eq!(view.weight.val().dtype(), DType::F16);
}

#[test]
fn stored_parameters_are_trained_in_their_dtype() {
    for dtype in HALVES {
        let mut layer = layer::<Plain>();
        let bias = layer.bias.take().expect("a bias").set_require_grad(false);
        layer.bias = Some(bias);
        let ids: Vec<_> = dtypes(&layer).into_iter().map(|(id, _)| id).collect();
        let policy = Policy::uniform(dtype);
        let stored = policy.scope(|| policy::cast_module_to_param(layer));
        let expected: Vec<_> = ids.into_iter().map(|id| (id, dtype.into())).collect();
        assert_eq!(dtypes(&stored), expected);
        assert!(stored.weight.is_require_grad());
        assert!(!stored.bias.as_ref().expect("a bias").is_require_grad(), "frozen it was");
        let x = policy.cast_to_param(tensor(&[3.0, 5.0], [1, 2]));
        let grads = GradientsParams::from_grads(stored.forward(x).sum().backward(), &stored);
        let trained = SgdConfig::new().init().step(0.25, stored, grads);
        assert_eq!(trained.weight.val().dtype(), dtype.into());
        assert_eq!(values(trained.weight.val()), [1.0 - 0.75, 2.0 - 1.25]);
    }
}

#[test]
fn the_state_of_fp8_layers_stays_in_f32() {
    type B = Fp8;
    let policy = mixed(FloatDType::BF16);
    let config = Fp8LinearConfig::new(6, 5).with_dot(dot());
    let layer = config.init::<B>(&Default::default());
    let state_dtypes = |layer: &Fp8Linear<B>| {
        let states = [&layer.dot.input, &layer.dot.kernel, &layer.dot.output_grad];
        states.map(|state| (state.scale.val().dtype(), state.amax_history.val().dtype()))
    };
    let view = policy.cast_module_to_compute(&layer);
    assert_eq!(view.weight.val().dtype(), DType::BF16);
    assert_eq!(state_dtypes(&view), [(DType::F32, DType::F32); 3]);
    let stored = Policy::uniform(FloatDType::BF16).cast_module_to_param(layer.clone());
    assert_eq!(stored.weight.val().dtype(), DType::BF16);
    assert_eq!(state_dtypes(&stored), [(DType::F32, DType::F32); 3]);
    // And its new values arrive at the layer: the largest magnitude of the input, and of the output's gradient.
    let x: Tensor<B, 2> = tensor(&[[-3.0, 0.5, 1.0, 2.0, 0.0, 1.5]; 2].concat(), [2, 6]);
    let y = policy.cast_to_output(view.forward(policy.cast_to_compute(x)));
    let grads = GradientsParams::from_grads((y * 7.0).sum().backward(), &layer);
    let layer = Fp8Optimizer::new(SgdConfig::new().init()).step(0.1, layer, grads);
    assert_eq!(state(&layer.dot.input).1, [3.0, 0.0, 0.0, 0.0]);
    assert_eq!(state(&layer.dot.output_grad).1, [7.0, 0.0, 0.0, 0.0]);
}

#[test]
fn batch_norms_stay_in_f32_with_their_statistics() {
    let norm: BatchNorm<Plain> = BatchNormConfig::new(2).init(&Default::default());
    let x = tensor::<Plain, 2>(&[1.1, 2.3, -0.7, 5.9], [2, 2]);
    norm.forward(x.clone());
    let before = bits(&values(norm.running_mean.value_sync()));
    let view = mixed(FloatDType::BF16).cast_module_to_compute(&norm);
    assert_eq!(bits(&values(norm.running_mean.value_sync())), before);
    assert!(dtypes(&view).into_iter().all(|(_, dtype)| dtype == DType::F32));
    view.forward(x);
    assert_ne!(bits(&values(norm.running_mean.value_sync())), before, "a view updates them");
}

#[derive(Module, Debug)]
struct Mean<B: Backend> {
    linear: Linear<B>,
    mean: RunningState<Tensor<B, 1>>,
}

#[test]
fn shared_state_of_other_modules_is_not_rounded_unseen() {
    let mean = RunningState::new(tensor::<Plain, 1>(&[1.1], [1]));
    let module = Mean { linear: layer(), mean };
    let cast = || mixed(FloatDType::BF16).cast_module_to_compute(&module);
    panics(cast, ["parameter 2 of 3", "RunningState"]);
    // A part without it is cast.
    mixed(FloatDType::BF16).cast_module_to_compute(&module.linear);
}

#[test]
fn dtypes_that_a_device_has_not_are_named_before_the_backend_panics() {
    let device = Default::default();
    for text in ["flex32", "p=f32,c=flex32,o=f32", "p=f32,c=f32,o=flex32"] {
        let policy = Policy::parse(text).expect("a policy");
        let words = "has no flex32; a policy for it can have f32, bf16, f16, f64";
        refused(policy.check::<Fp8>(&device), [words]);
    }
    mixed(FloatDType::BF16).check::<Fp8>(&device).expect("Flex has both");

    let policy = Policy::uniform(FloatDType::Flex32);
    let model = || LinearConfig::new(4, 4).init::<Fp8>(&device);
    let words = ["has no flex32; a policy for it can have"];
    panics(|| policy.cast_to_compute(tensor::<Fp8, 1>(&[1.0], [1])), words);
    panics(|| policy.cast_module_to_compute(&model()), words);
    panics(|| policy.cast_module_to_param(model()), words);
    refused(
        mixed(FloatDType::BF16).check::<burn::backend::NdArray>(&Default::default()),
        ["has no bf16; a policy for it can have f32, "],
    );
}

#[test]
fn casts_follow_the_policy_in_force() {
    type Cast = fn(Tensor<Plain, 1>) -> Tensor<Plain, 1>;
    let x = tensor::<Plain, 1>(&[1.0], [1]);
    let policy = Policy::parse("p=f64,c=bf16,o=f16").unwrap();
    assert_eq!(Policy::current(), None);
    for (cast, semantic, dtype) in [
        (policy::cast_to_param as Cast, PolicyDType::Param, DType::F64),
        (policy::cast_to_compute, PolicyDType::Compute, DType::BF16),
        (policy::cast_to_output, PolicyDType::Output, DType::F16),
    ] {
        policy.scope(|| {
            assert_eq!(cast(x.clone()).dtype(), dtype);
            assert_eq!(policy::cast(x.clone(), semantic).dtype(), dtype);
        });
        // Without a policy they do nothing.
        assert_eq!(cast(x.clone().cast(FloatDType::F16)).dtype(), DType::F16);
        assert_eq!(policy::cast(x.clone(), semantic).dtype(), DType::F32);
    }
    // A concrete type is what it is.
    let to_f64 = || policy::cast(x.clone(), FloatDType::F64).dtype();
    assert_eq!([to_f64(), policy.scope(to_f64)], [DType::F64; 2]);
}
