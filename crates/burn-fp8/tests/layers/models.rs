//! FP8 layers in models: precision, trace, optimizer.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::grad_clipping::GradientClippingConfig;

use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::nn::Fp8StateRecord;

use crate::common::models::{Fp8Net, batch, dot, fp8_net, initialized, parameters, state, step};
use crate::common::*;

type B = Autodiff<Flex>;

fn sgd<A: AutodiffBackend>() -> Fp8Optimizer<impl Optimizer<Fp8Net<A>, A>> {
    Fp8Optimizer::new(SgdConfig::new().init::<A, Fp8Net<A>>())
}

/// A layer of 6 inputs and 5 outputs.
fn layer<A: Backend>(mode: DotMode) -> Fp8Linear<A> {
    let dot = dot().with_mode(mode);
    initialized(Fp8LinearConfig::new(6, 5).with_dot(dot).init(&Default::default()))
}

#[test]
fn layers_are_plain_in_high_precision() {
    let layer = layer::<B>(DotMode::Direct);
    let x = batch::<B>(3);
    let plain = Linear::from(layer.clone()).forward(x.clone());
    let fp8 = values(layer.forward(x.clone()));
    let (y, report) = trace(|| high_precision(|| layer.forward(x.clone())));
    assert_eq!(bits(&values(y.clone())), bits(&values(plain)));
    assert_ne!(values(y.clone()), fp8, "FP8 rounds");
    assert_eq!(report.fp8().count(), 0);
    let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
    assert_eq!(grads.len(), 2, "weight and bias only");
    let before = state(&layer.dot.input);
    let layer = Fp8Optimizer::new(SgdConfig::new().init()).step(0.1, layer, grads);
    assert_eq!(state(&layer.dot.input), before);
}

/// Forward and both gradient products, each once, whatever filter and recipe say.
#[test]
fn the_trace_has_every_product_once() {
    fn check<A: AutodiffBackend + Fp8Matmul>() {
        let layer: Fp8Linear<A> =
            Fp8LinearConfig::new(32, 48).with_dot(dot()).init(&Default::default());
        let config = Fp8Config::default().with_recipe(Recipe::current().with_margin(3));
        let x = random::<A, 3>(5, [2, 16, 32]).require_grad();
        let (_, report) = trace(|| config.scope(|| layer.forward(x).sum().backward()));
        let seen = report.products.iter().map(|product| {
            let operands = [product.lhs, product.rhs].map(|operand| operand.expect("in FP8"));
            // Fresh state: scale 1, nothing saturates.
            assert_eq!(operands.map(|operand| (operand.scale, operand.saturated)), [(1.0, 0); 2]);
            assert_eq!(product.kind, ProductKind::Linear);
            let gemm = product.gemm;
            (product.role, operands.map(|operand| operand.format), [gemm.m, gemm.n, gemm.k])
        });
        let expected = [
            (GemmRole::Output, [E4M3, E4M3], [32, 48, 32]),
            (GemmRole::GradInput, [E5M2, E4M3], [32, 32, 48]),
            (GemmRole::GradWeight, [E4M3, E5M2], [32, 48, 32]),
        ];
        assert_eq!(seen.collect::<Vec<_>>(), expected, "{report}");
    }
    check::<B>();
    check::<Outer<Flex>>();
    check::<Inner<Flex>>();
}

/// One product of one number each: no order of summation, so equal to the bit, and the modes round differently.
#[test]
fn the_modes_round_where_they_say() {
    let (x, w, amax) = (1.7f32, 0.37f32, 1.9f32);
    // From a history of one amax, by Flax's formula.
    let scale = 1.0 / (448.0 / amax);
    let code = |value: f32| E4M3.decode(E4M3.encode(value / scale, Overflow::Saturate));
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
    // Of scales that the state has, not the rows.
    let net = step(fp8_net::<B>(), &mut sgd(), 1).valid();
    let x = random::<Flex, 4>(9, [2, 3, 4, 6]);
    let y = net.forward(x.clone());
    assert_eq!(y.dims(), [2, 3, 4, 3]);
    let rows = net.forward(x.clone().reshape([24, 6]));
    assert_eq!(values(y), values(rows.clone()));
    let row: Tensor<Flex, 1> = x.reshape([24, 6]).slice([5..6, 0..6]).reshape([6]);
    assert_eq!(values(net.forward(row)), values(rows.slice([5..6, 0..3])));
    let empty = net.forward(Tensor::<Flex, 2>::zeros([0, 6], &Default::default()));
    assert_eq!(empty.dims(), [0, 3]);
}

/// A layer in bf16 computes in bf16, near the f32 one; its state stays f32 and is updated.
#[test]
fn a_bf16_layer_keeps_its_state_in_f32() {
    for mode in [DotMode::Direct, DotMode::QuantizeDequantize] {
        fn to<const D: usize>(dtype: DType, of: &Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            Param::from_tensor(Tensor::from_inner(of.val().inner().cast(dtype)))
        }
        let mut layer = layer::<B>(mode);
        layer.weight = to(DType::BF16, &layer.weight);
        layer.bias = layer.bias.as_ref().map(|bias| to(DType::BF16, bias));
        let mut same_in_f32 = layer.clone();
        same_in_f32.weight = to(DType::F32, &layer.weight);
        same_in_f32.bias = layer.bias.as_ref().map(|bias| to(DType::F32, bias));
        let bias = values(same_in_f32.bias.as_ref().expect("with bias").val());
        let x = batch::<B>(4).cast(DType::BF16);
        let y = layer.forward(x.clone());
        assert_eq!(y.dtype(), DType::BF16);
        let expected = values(same_in_f32.forward(x.clone().cast(DType::F32)));
        for (index, (y, expected)) in values(y.clone()).iter().zip(&expected).enumerate() {
            // The product is rounded to bf16, and its sum with the bias is: by 2^-8 of each. The f32 sums differ by less than the
            // rest.
            let product = expected - bias[index % bias.len()];
            let bound = 1.01 * 2f32.powi(-8) * (product.abs() + expected.abs());
            assert!((y - expected).abs() <= bound, "[{index}]: {y} instead of {expected}");
        }
        let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
        assert_eq!(grads.get::<Flex, 2>(layer.weight.id).unwrap().dtype(), DType::BF16);
        let layer = Fp8Optimizer::new(SgdConfig::new().init()).step(0.1, layer, grads);
        assert_eq!(layer.weight.val().dtype(), DType::BF16);
        assert_eq!(layer.dot.input.scale.val().dtype(), DType::F32);
        assert_eq!(state(&layer.dot.input).1[0], fp8::amax(&values(x)));
    }
}

#[test]
fn an_input_of_another_type_is_cast_and_one_of_another_width_is_named() {
    let layer = layer::<Flex>(DotMode::Direct);
    let x = batch::<Flex>(6).cast(DType::BF16);
    let y = layer.forward(x.clone());
    assert_eq!(y.dtype(), DType::F32);
    assert_eq!(values(y), values(layer.forward(x.cast(DType::F32))));
    panics(|| layer.forward(ones::<_, 2>([2, 7])), ["[2, 7]", "[6, 5]"]);
}

#[test]
fn the_wrapped_optimizer_keeps_nothing_for_state() {
    let mut optimizer = Fp8Optimizer::new(AdamConfig::new().init());
    let Fp8Net { first, second } = step(fp8_net::<B>(), &mut optimizer, 1);
    let record = optimizer.to_record();
    let mut ids: Vec<_> = record.optimizer.keys().copied().collect();
    let mut expected = [first.weight.id, first.bias.expect("there").id, second.weight.id];
    ids.sort();
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
    let before = net.first.weight.val();
    let net = step(net, &mut Fp8Optimizer::new(inner), 1);
    let amax = fp8::amax(&values(batch::<B>(1)));
    assert!(amax > 1e-1);
    assert_eq!(state(&net.first.dot.input), (1.0, vec![amax, 0.0, 0.0, 0.0]));
    let moved = values((net.first.weight.val() - before).powi_scalar(2).sum().sqrt())[0];
    assert!(moved > 0.0 && moved < 0.05 * 1.01e-3, "{moved}");
}

/// Validation computes with the scale that the state gives, and leaves it as it is.
#[test]
fn validation_leaves_the_state_alone() {
    let net = step(fp8_net::<B>(), &mut sgd(), 1);
    let before = parameters(&net);
    let valid = net.valid();
    assert_eq!(values(valid.forward(batch(2))), values(net.forward(batch(2))));
    assert_eq!(parameters(&valid), before);
    let train = valid.train::<B>();
    assert!(train.first.dot.input.scale.is_require_grad());
    assert_ne!(parameters(&step(train, &mut sgd(), 3)), before);
}

/// A recomputed forward pass does not advance the state twice.
#[test]
fn checkpointing_advances_the_state_once() {
    type C = Autodiff<Flex, BalancedCheckpointing>;
    let mut plain = fp8_net::<B>();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let bytes = recorder.record(plain.clone().into_record(), ()).expect("it can be recorded");
    let record = recorder.load(bytes, &Default::default()).expect("it loads");
    let mut checkpointed = fp8_net::<C>().load_record(record);
    for seed in 0..3 {
        plain = step(plain, &mut sgd(), seed);
        checkpointed = step(checkpointed, &mut sgd(), seed);
    }
    assert_eq!(parameters(&checkpointed), parameters(&plain));
    assert_eq!(state(&plain.first.dot.input).1.iter().filter(|amax| **amax > 0.0).count(), 3);
}

#[test]
fn state_computed_from_other_state_is_refused() {
    let mut layer = layer::<B>(DotMode::Direct);
    layer.dot.input.scale = layer.dot.input.scale.map(|scale| scale * 1.0);
    panics(|| layer.forward(batch(1)), ["must be a leaf of the graph", "Module::fork"]);
}
