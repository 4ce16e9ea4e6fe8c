//! FP8 layers in models: records, precision, trace, optimizer.

mod common;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex};
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder, Recorder,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8::nn::{
    DotMode, Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig, Fp8State, Fp8StateRecord,
};
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{
    DelayedState, Filter, Fp8Config, Fp8Format, Fp8Matmul, GemmRole, Overflow, ProductKind, Recipe,
    Report, high_precision, trace,
};
use common::{Inner, Outer, Random, assert_close, bits, panic_of, tensor, values};

type B = Autodiff<Flex>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
}

#[derive(Module, Debug)]
struct Fp8Net<B: Backend> {
    first: Fp8Linear<B>,
    second: Fp8Linear<B>,
}

fn net<B: Backend>() -> Net<B> {
    let device = Default::default();
    initialized(Net {
        first: LinearConfig::new(6, 5).init(&device),
        second: LinearConfig::new(5, 3).with_bias(false).init(&device),
    })
}

/// Burn initializes a weight when it is first used, and clones made before that each for itself.
fn initialized<B: Backend, M: Module<B>>(module: M) -> M {
    let _ = parameters(&module);
    module
}

fn dot() -> Fp8DotGeneralConfig {
    Fp8DotGeneralConfig::new().with_amax_history_length(4)
}

fn fp8_net<B: Backend>() -> Fp8Net<B> {
    let device = Default::default();
    initialized(Fp8Net {
        first: Fp8LinearConfig::new(6, 5).with_dot(dot()).init(&device),
        second: Fp8LinearConfig::new(5, 3).with_bias(false).with_dot(dot()).init(&device),
    })
}

impl<B: Fp8Matmul> Fp8Net<B> {
    fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.second.forward(burn::tensor::activation::relu(self.first.forward(x)))
    }
}

fn batch<B: Backend>(seed: u64) -> Tensor<B, 2> {
    tensor(&Random(seed).spread(7 * 6), [7, 6])
}

fn step<B: AutodiffBackend + Fp8Matmul>(
    net: Fp8Net<B>,
    optimizer: &mut impl Optimizer<Fp8Net<B>, B>,
    seed: u64,
) -> Fp8Net<B> {
    let y = net.forward(batch(seed));
    let grads = (y.clone() * y).mean().backward();
    let grads = GradientsParams::from_grads(grads, &net);
    optimizer.step(0.05, net, grads)
}

/// Names and bits of every float parameter of a model.
fn parameters<B: Backend>(module: &impl Module<B>) -> Vec<(String, Vec<u32>)> {
    #[derive(Default)]
    struct Collect(Vec<String>, Vec<(String, Vec<u32>)>);
    impl<B: Backend> ModuleVisitor<B> for Collect {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.1.push((self.0.join("."), bits(&values(param.val()))));
        }
    }
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.1
}

fn state<B: Backend>(state: &Fp8State<B>) -> (f32, Vec<f32>) {
    (values(state.scale.val())[0], values(state.amax_history.val()))
}

#[test]
fn parameters_have_their_names_in_a_model() {
    let names: Vec<_> = parameters(&fp8_net::<Flex>()).into_iter().map(|(name, _)| name).collect();
    let second: Vec<_> = names.iter().filter(|name| name.starts_with("second")).collect();
    assert_eq!(
        second,
        [
            "second.weight",
            "second.dot.input.scale",
            "second.dot.input.amax_history",
            "second.dot.kernel.scale",
            "second.dot.kernel.amax_history",
            "second.dot.output_grad.scale",
            "second.dot.output_grad.amax_history",
        ]
    );
    // State is no parameter of the model: 6·5 + 5 + 5·3.
    assert_eq!(fp8_net::<Flex>().num_params(), 50);
    let layer: Fp8Linear<Flex> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    assert_eq!(layer.to_string(), "Fp8Linear {d_input: 6, d_output: 5, bias: true, params: 35}");
}

#[test]
fn records_of_plain_models_load_into_fp8_models_and_back() {
    let device = Default::default();
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let plain = net::<B>();
    let bytes = recorder.record(plain.clone().into_record(), ()).expect("it can be recorded");
    // State that has seen something stays as it is.
    let trained = step(fp8_net::<B>(), &mut Fp8Optimizer::new(SgdConfig::new().init()), 1);
    let before = state(&trained.first.dot.input);
    assert_ne!(before.1, [0.0; 4]);
    let loaded = trained.load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(state(&loaded.first.dot.input), before);
    let weights = |named: Vec<(String, Vec<u32>)>| {
        named.into_iter().filter(|(name, _)| !name.contains("dot")).collect::<Vec<_>>()
    };
    assert_eq!(weights(parameters(&loaded)), parameters(&plain));
    assert_eq!(loaded.first.weight.id, plain.first.weight.id);

    let trained = step(loaded, &mut Fp8Optimizer::new(SgdConfig::new().init()), 2);
    let bytes = recorder.record(trained.clone().into_record(), ()).expect("it can be recorded");
    let back = net::<B>().load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(parameters(&back), weights(parameters(&trained)));
    assert_ne!(parameters(&back), parameters(&plain));
}

/// The same in JSON, through serde's own handling of missing fields.
#[test]
fn json_records_of_plain_models_load_into_fp8_models() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model");
    let recorder = burn::record::PrettyJsonFileRecorder::<FullPrecisionSettings>::new();
    let plain = net::<Flex>();
    plain.clone().save_file(&path, &recorder).expect("it can be saved");
    let loaded =
        fp8_net::<Flex>().load_file(&path, &recorder, &Default::default()).expect("it loads");
    assert_eq!(values(loaded.second.weight.val()), values(plain.second.weight.val()));
    loaded.clone().save_file(&path, &recorder).expect("it can be saved");
    let back = net::<Flex>().load_file(&path, &recorder, &Default::default()).expect("it loads");
    assert_eq!(parameters(&back), parameters(&plain));
}

/// Formats without names: layer by layer.
#[test]
fn binary_records_of_plain_layers_load_into_fp8_layers() {
    let device = Default::default();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let plain: Linear<Flex> =
            initialized(LinearConfig::new(6, 5).with_layout(layout).init(&device));
        let bytes = recorder.record(plain.clone().into_record(), ()).expect("it can be recorded");
        let fresh =
            || Fp8LinearConfig::new(6, 5).with_layout(layout).with_dot(dot()).init::<Flex>(&device);
        let layer = fresh().load_linear_record(recorder.load(bytes, &device).expect("it loads"));
        assert_eq!(layer.weight.dims(), [6, 5]);
        assert_eq!(values(layer.weight.val()), values(plain.weight.val()));
        assert_eq!(layer.weight.id, plain.weight.id);

        // Its own record, with state, in the same layout.
        let bytes = recorder.record(layer.clone().into_record(), ()).expect("it can be recorded");
        let again = fresh().load_record(recorder.load(bytes, &device).expect("it loads"));
        assert_eq!(parameters(&again), parameters(&layer));
    }
}

#[test]
fn conversions_keep_parameters_ids_and_mappers() {
    let device = Default::default();
    let config = LinearConfig::new(6, 5).with_layout(LinearLayout::Col);
    let plain: Linear<Flex> = initialized(config.init(&device));
    let layer = Fp8Linear::from(plain.clone());
    assert_eq!(layer.dot.input.amax_history.dims(), [1, 1024]);
    let back = Linear::from(layer.clone());
    for weight in [&layer.weight, &back.weight] {
        assert_eq!(weight.id, plain.weight.id);
        assert_eq!(values(weight.val()), values(plain.weight.val()));
        // What a record holds of a column-major weight is [d_output, d_input].
        assert_eq!(weight.transform_for_save().dims(), [5, 6]);
    }
    assert_eq!(back.bias.unwrap().id, plain.bias.unwrap().id);
}

/// A scale far below what f16 holds, an amax far above.
#[test]
fn recorders_of_half_precision_keep_the_state() {
    let device = Default::default();
    let record = Fp8StateRecord {
        scale: 1.2345678e-20,
        amax_history: vec![3.3e38, f32::INFINITY, f32::NAN, 1.0e-30],
    };
    let mut net = fp8_net::<B>();
    net.first.dot.kernel = net.first.dot.kernel.load_record(Some(record.clone()));
    let check = |net: Fp8Net<B>| {
        let (scale, history) = state(&net.first.dot.kernel);
        assert_eq!(scale.to_bits(), record.scale.to_bits());
        assert_eq!(bits(&history), bits(&record.amax_history));
        assert!(net.first.dot.kernel.scale.is_require_grad());
    };
    let recorder = BinBytesRecorder::<HalfPrecisionSettings>::new();
    let bytes = recorder.record(net.clone().into_record(), ()).expect("it can be recorded");
    check(fp8_net().load_record(recorder.load(bytes, &device).expect("it loads")));
    let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::new();
    let bytes = recorder.record(net.into_record(), ()).expect("it can be recorded");
    check(fp8_net().load_record(recorder.load(bytes, &device).expect("it loads")));
}

#[test]
fn records_that_are_no_state_are_refused() {
    let state = Fp8State::<Flex>::new(2, &Default::default());
    let load = |scale, amax_history: &[f32]| {
        let record = Fp8StateRecord { scale, amax_history: amax_history.to_vec() };
        panic_of(|| state.clone().load_record(Some(record)))
    };
    assert!(load(1.0, &[0.0; 3]).contains("has 3 entries and the layer's has 2"));
    assert!(load(f32::NAN, &[0.0; 2]).contains("its scale is NaN"));
    assert!(load(-1.0, &[0.0; 2]).contains("its scale is -1"));
    assert!(load(1.0, &[0.0, -2.0]).contains("entry 1 of its amax history is -2"));
}

#[test]
fn layers_are_plain_in_high_precision() {
    let net = fp8_net::<B>();
    let x = batch::<B>(3);
    let plain = Linear { weight: net.first.weight.clone(), bias: net.first.bias.clone() };
    let fp8 = values(net.first.forward(x.clone()));
    let (y, report) = trace(|| high_precision(|| net.first.forward(x.clone())));
    assert_eq!(bits(&values(y.clone())), bits(&values(plain.forward(x.clone()))));
    assert_ne!(values(y.clone()), fp8, "FP8 rounds");
    assert_eq!(report.fp8().count(), 0);
    let grads = GradientsParams::from_grads(y.sum().backward(), &net.first);
    assert_eq!(grads.len(), 2, "weight and bias only");
    let before = state(&net.first.dot.input);
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
    let layer = optimizer.step(0.1, net.first, grads);
    assert_eq!(state(&layer.dot.input), before);
}

/// Forward and both gradient products, each once, whatever filter and recipe say.
fn traced<A: AutodiffBackend + Fp8Matmul>() {
    let layer: Fp8Linear<A> =
        Fp8LinearConfig::new(32, 48).with_dot(dot()).init(&Default::default());
    let x: Tensor<A, 3> = tensor(&Random(5).spread(2 * 16 * 32), [2, 16, 32]);
    let run = || -> Report {
        let config = Fp8Config::default()
            .with_filter(Filter::default())
            .with_recipe(Recipe::current().with_margin(3));
        let x = x.clone().require_grad();
        trace(|| config.scope(|| layer.forward(x).sum().backward())).1
    };
    let report = run();
    let seen: Vec<_> = report.products.iter().map(|product| (product.kind, product.role)).collect();
    let expected = [GemmRole::Output, GemmRole::GradInput, GemmRole::GradWeight];
    assert_eq!(seen, expected.map(|role| (ProductKind::Linear, role)), "{report}");
    for product in &report.products {
        let (lhs, rhs) = (product.lhs.expect("in FP8"), product.rhs.expect("in FP8"));
        // Fresh state: scale 1, nothing saturates.
        assert_eq!([lhs.scale, rhs.scale], [1.0; 2]);
        assert_eq!([lhs.saturated, rhs.saturated], [0; 2]);
        let (e4m3, e5m2) = (Fp8Format::E4M3, Fp8Format::E5M2);
        let (formats, shape) = match product.role {
            GemmRole::Output => ([e4m3, e4m3], [32, 48, 32]),
            GemmRole::GradInput => ([e5m2, e4m3], [32, 32, 48]),
            GemmRole::GradWeight => ([e4m3, e5m2], [32, 48, 32]),
        };
        assert_eq!([lhs.format, rhs.format], formats);
        let gemm = product.gemm;
        assert_eq!([gemm.m, gemm.n, gemm.k], shape, "{}", product.role);
    }
}

#[test]
fn the_trace_has_every_product_once() {
    traced::<B>();
    traced::<Outer<Flex>>();
    traced::<Inner<Flex>>();
}

/// One product of one number each: no order of summation, so equal to the bit, and the modes round differently.
#[test]
fn the_modes_round_where_they_say() {
    let (x, w, amax) = (1.7f32, 0.37f32, 1.9f32);
    // From a history of one amax, by Flax's formula.
    let scale = 1.0 / (448.0 / amax);
    let code = |value: f32| {
        let format = Fp8Format::E4M3;
        format.decode(format.encode(value / scale, Overflow::Saturate))
    };
    let direct = (code(x) * code(w)) * (scale * scale);
    let dequantized = (code(x) * scale) * (code(w) * scale);
    assert_ne!(direct, dequantized, "the example tells them apart");
    for (mode, expected) in [(DotMode::Direct, direct), (DotMode::QuantizeDequantize, dequantized)]
    {
        let config = Fp8DotGeneralConfig::new().with_amax_history_length(1).with_mode(mode);
        let mut dot = config.init::<Flex>(&Default::default());
        let record = || Some(Fp8StateRecord { scale: 1.0, amax_history: vec![amax] });
        dot.input = dot.input.load_record(record());
        dot.kernel = dot.kernel.load_record(record());
        let y = dot.forward(tensor::<Flex, 2>(&[x], [1, 1]), tensor(&[w], [1, 1]));
        assert_eq!(values(y), [expected], "{mode:?}");
    }
}

#[test]
fn any_rank_gives_the_same_rows() {
    let net = fp8_net::<Flex>();
    let x: Tensor<Flex, 4> = tensor(&Random(9).spread(24 * 6), [2, 3, 4, 6]);
    let y = net.forward(x.clone());
    assert_eq!(y.dims(), [2, 3, 4, 3]);
    let rows = net.forward(x.clone().reshape([24, 6]));
    assert_eq!(values(y), values(rows.clone()));
    let row: Tensor<Flex, 1> = x.reshape([24, 6]).slice([5..6, 0..6]).reshape([6]);
    assert_eq!(values(net.forward(row)), values(rows.slice([5..6, 0..3])));
    let empty = net.forward(Tensor::<Flex, 2>::zeros([0, 6], &Default::default()));
    assert_eq!(empty.dims(), [0, 3]);
}

fn cast<A: Backend, M: Module<A>>(module: M, dtype: DType) -> M {
    struct Cast(DType);
    impl<A: Backend> ModuleMapper<A> for Cast {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
            param.map(|tensor| {
                let tracked = tensor.is_require_grad();
                tensor.detach().set_require_grad(false).cast(self.0).set_require_grad(tracked)
            })
        }
    }
    module.map(&mut Cast(dtype))
}

/// A model cast to bf16 computes in bf16, near the f32 one; its state stays f32 and is updated.
#[test]
fn a_bf16_model_keeps_its_state_in_f32() {
    for mode in [DotMode::Direct, DotMode::QuantizeDequantize] {
        let dot = dot().with_mode(mode);
        let layer: Fp8Linear<B> =
            Fp8LinearConfig::new(6, 5).with_dot(dot).init(&Default::default());
        let layer = cast::<B, _>(layer, DType::BF16);
        let same_in_f32 = cast::<B, _>(layer.clone(), DType::F32);
        let x = batch::<B>(4).cast(DType::BF16);
        let y = layer.forward(x.clone());
        assert_eq!(y.dtype(), DType::BF16);
        let expected = same_in_f32.forward(x.cast(DType::F32));
        assert_close(&values(y.clone()), &values(expected), 2f32.powi(-7), "bf16");
        let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
        assert_eq!(grads.get::<Flex, 2>(layer.weight.id).unwrap().dtype(), DType::BF16);
        let layer = Fp8Optimizer::new(SgdConfig::new().init()).step(0.1, layer, grads);
        assert_eq!(layer.weight.val().dtype(), DType::BF16);
        assert_eq!(layer.dot.input.scale.val().dtype(), DType::F32);
        let amax = values(batch::<B>(4).cast(DType::BF16)).into_iter().map(f32::abs);
        assert_eq!(state(&layer.dot.input).1[0], amax.fold(0.0, f32::max));
    }
}

/// The input is cast to the type of the kernel.
#[test]
fn an_input_of_another_type_is_cast() {
    let layer: Fp8Linear<Flex> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    let x = batch::<Flex>(6).cast(DType::BF16);
    let y = layer.forward(x.clone());
    assert_eq!(y.dtype(), DType::F32);
    assert_eq!(values(y), values(layer.forward(x.cast(DType::F32))));
}

#[test]
fn the_wrapped_optimizer_keeps_nothing_for_state() {
    let net = fp8_net::<B>();
    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init());
    let net = step(net, &mut optimizer, 1);
    let record = optimizer.to_record();
    let mut ids: Vec<_> = record.optimizer.keys().copied().collect();
    ids.sort();
    let mut expected =
        vec![net.first.weight.id, net.first.bias.as_ref().unwrap().id, net.second.weight.id];
    expected.sort();
    assert_eq!(ids, expected);
    assert!(record.delayed.is_none());
}

/// Clipping sees gradients of weights only: it would cut a new history of large amaxes.
#[test]
fn clipping_leaves_state_alone() {
    let net = fp8_net::<B>();
    let clipping = GradientClippingConfig::Norm(1e-3);
    let inner = SgdConfig::new().with_gradient_clipping(Some(clipping)).init();
    let before = values(net.first.weight.val());
    let net = step(net, &mut Fp8Optimizer::new(inner), 1);
    let amax = values(batch::<B>(1)).into_iter().map(f32::abs).fold(0.0, f32::max);
    assert!(amax > 1e-1);
    assert_eq!(state(&net.first.dot.input), (1.0, vec![amax, 0.0, 0.0, 0.0]));
    let moved: f32 =
        values(net.first.weight.val()).iter().zip(before).map(|(a, b)| (a - b).powi(2)).sum();
    assert!(moved > 0.0 && moved.sqrt() < 0.05 * 1.01e-3, "{}", moved.sqrt());
}

#[test]
fn a_stopped_run_resumes_to_equal_bits() {
    let device = Default::default();
    let start = fp8_net::<Outer<Flex>>();
    let train = |mut net, optimizer: &mut _, steps: core::ops::Range<u64>| {
        for seed in steps {
            net = step(net, optimizer, seed);
        }
        net
    };
    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init());
    let straight = train(start.clone(), &mut optimizer, 0..7);

    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init());
    let half = train(start.clone(), &mut optimizer, 0..3);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let model = recorder.record(half.into_record(), ()).expect("it can be recorded");
    let record = Optimizer::<Fp8Net<Outer<Flex>>, _>::to_record(&optimizer);
    let record = Recorder::<Outer<Flex>>::record(&recorder, record, ()).expect("recorded");

    let mut optimizer = Optimizer::<Fp8Net<Outer<Flex>>, _>::load_record(
        Fp8Optimizer::new(AdamConfig::new().init()),
        Recorder::<Outer<Flex>>::load(&recorder, record, &device).expect("it loads"),
    );
    let net = fp8_net().load_record(recorder.load(model, &device).expect("it loads"));
    let resumed = train(net, &mut optimizer, 3..7);
    assert_eq!(parameters(&resumed), parameters(&straight));
    assert_ne!(parameters(&resumed), parameters(&start));
}

/// The record carries the decorator's delayed scaling, where the optimizer is told to.
#[test]
fn the_record_carries_delayed_scaling() {
    type A = Outer<Flex>;
    let device = Default::default();
    let trained = DelayedState::new();
    let x: Tensor<A, 2> = tensor(&Random(2).spread(16 * 16), [16, 16]);
    let w = x.clone().require_grad();
    Fp8Config::default().with_recipe(Recipe::delayed()).scope(|| {
        trained.scope(|| x.clone().matmul(w.clone()).sum().backward());
    });
    assert_eq!(trained.export().sites.len(), 1);

    let sgd = || SgdConfig::new().init::<A, Fp8Net<A>>();
    let optimizer = Fp8Optimizer::new(sgd()).with_delayed_state(trained.clone());
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let record = Optimizer::<Fp8Net<A>, A>::to_record(&optimizer);
    let bytes = Recorder::<A>::record(&recorder, record, ()).expect("recorded");
    let load = || Recorder::<A>::load(&recorder, bytes.clone(), &device).expect("it loads");

    let restored = DelayedState::new();
    let fresh = Fp8Optimizer::new(sgd()).with_delayed_state(restored.clone());
    let _ = Optimizer::<Fp8Net<A>, A>::load_record(fresh, load());
    assert_eq!(restored.export(), trained.export());
    // An optimizer that carries none drops it.
    let plain = Optimizer::<Fp8Net<A>, A>::load_record(Fp8Optimizer::new(sgd()), load());
    assert!(plain.delayed_state().is_none());
}

/// Validation computes with the scale that the state gives, and leaves it as it is.
#[test]
fn validation_leaves_the_state_alone() {
    let net = step(fp8_net::<B>(), &mut Fp8Optimizer::new(SgdConfig::new().init()), 1);
    let before = parameters(&net);
    let valid = net.valid();
    let y = valid.forward(batch(2));
    assert_eq!(values(y), values(net.forward(batch(2))));
    assert_ne!(values(net.forward(batch(2))), values(fp8_net::<B>().forward(batch(2))));
    assert_eq!(parameters(&valid), before);
    let train = valid.train::<B>();
    assert!(train.first.dot.input.scale.is_require_grad());
    let train = step(train, &mut Fp8Optimizer::new(SgdConfig::new().init()), 3);
    assert_ne!(parameters(&train), before);
}

/// A recomputed forward pass does not advance the state twice.
#[test]
fn checkpointing_advances_the_state_once() {
    type C = Autodiff<Flex, BalancedCheckpointing>;
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let start = fp8_net::<B>();
    let bytes = recorder.record(start.clone().into_record(), ()).expect("it can be recorded");
    let mut plain = start;
    let mut checkpointed =
        fp8_net::<C>().load_record(recorder.load(bytes, &Default::default()).expect("it loads"));
    for seed in 0..3 {
        plain = step(plain, &mut Fp8Optimizer::new(SgdConfig::new().init()), seed);
        checkpointed = step(checkpointed, &mut Fp8Optimizer::new(SgdConfig::new().init()), seed);
    }
    assert_eq!(parameters(&checkpointed), parameters(&plain));
    assert_eq!(state(&plain.first.dot.input).1.iter().filter(|amax| **amax > 0.0).count(), 3);
}

#[test]
fn state_computed_from_other_state_is_refused() {
    let mut layer: Fp8Linear<B> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    layer.dot.input.scale = layer.dot.input.scale.map(|scale| scale * 1.0);
    let message = panic_of(|| layer.forward(batch(1)));
    assert!(message.contains("must be a leaf of the graph"), "{message}");
    assert!(message.contains("Module::fork"), "{message}");
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let layer: Fp8Linear<Flex> = Fp8LinearConfig::new(6, 5).init(&Default::default());
    let x = Tensor::<Flex, 2>::from_data(TensorData::zeros::<f32, _>([2, 7]), &Default::default());
    let message = panic_of(|| layer.forward(x));
    assert!(message.contains("[2, 7]") && message.contains("[6, 5]"), "{message}");
}
