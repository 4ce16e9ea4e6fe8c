//! With FP8 off, `Fp8Backend<B>` is `B`, bit for bit: a sample of operations over every backend trait, forward and backward.

use burn::nn;
use burn::tensor::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn::tensor::{Bool, Distribution, IndexingUpdateOp, Transaction, activation, module, ops};

use crate::common::*;

/// Results by name.
type Results = Vec<(&'static str, TensorData)>;

fn float_ops<B: AutodiffBackend>(out: &mut Results) {
    let x = random::<B, 3>(1, [3, 4, 5]);
    let y = random::<B, 3>(2, [3, 1, 5]);
    let square = random::<B, 2>(3, [32, 32]);
    let mask: Tensor<B, 3, Bool> = x.clone().greater_elem(0.1);
    let index = Tensor::<B, 1, Int>::from_ints([2, 0, 1], &Default::default());
    let mut push = |name, tensor: Tensor<B, 3>| out.push((name, tensor.into_data()));
    push("add", x.clone() + y.clone());
    push("div", x.clone() / y.clone());
    push("remainder", x.clone() % y.clone().expand([3, 4, 5]));
    push("powf", x.clone().abs().powf(y.clone().expand([3, 4, 5])));
    push("exp", x.clone().exp());
    push("tanh", x.clone().tanh());
    push("erf", x.clone().erf());
    push("atan2", x.clone().atan2(y.clone().expand([3, 4, 5])));
    push("round", (x.clone() * 7.0).round());
    push("clamp", x.clone().clamp(-0.2, 0.3));
    push("mask_where", x.clone().mask_where(mask.clone(), x.clone().neg()));
    push("mask_fill", x.clone().mask_fill(mask, -1.0));
    push("select", x.clone().select(0, index.clone()));
    push("select_assign", x.clone().select_assign(0, index, x.clone(), IndexingUpdateOp::Add));
    push("sum_dim", x.clone().sum_dim(1));
    push("mean_dim", x.clone().mean_dim(2));
    push("cumsum", x.clone().cumsum(1));
    push("max_dim", x.clone().max_dim(1));
    push("sort", x.clone().sort(2));
    push("flip", x.clone().flip([0, 2]));
    push("permute", x.clone().permute([2, 0, 1]));
    push("cat", Tensor::cat(vec![x.clone(), x.clone()], 1));
    push("repeat", x.clone().repeat_dim(0, 2));
    push("slice", x.clone().slice([0..2, 1..3, 2..5]));
    push(
        "slice_assign",
        x.clone().slice_assign([0..1, 0..4, 0..5], y.clone().narrow(0, 0, 1).expand([1, 4, 5])),
    );
    push("unfold", x.clone().expand([3, 4, 5]).unfold::<4, _>(2, 2, 1).sum_dim(3).squeeze_dim(3));
    out.push(("matmul", square.clone().matmul(square.clone().transpose()).into_data()));
    out.push(("argmax", x.clone().argmax(2).into_data()));
    out.push(("is_nan", x.clone().is_nan().into_data()));
    out.push(("all_close", x.clone().equal(x).all().into_data()));
}

fn other_kinds<B: AutodiffBackend>(out: &mut Results) {
    let device = Default::default();
    let ints = Tensor::<B, 2, Int>::from_ints([[3, -1, 4], [1, -5, 9]], &device);
    let mut push = |name, tensor: Tensor<B, 2, Int>| out.push((name, tensor.into_data()));
    push("int_mul", ints.clone() * 3 - 2);
    push("int_div", ints.clone() / 2);
    push("int_bitwise", ints.clone().bitwise_xor(ints.clone() + 6));
    push("int_sort", ints.clone().sort(1));
    push("int_matmul", ints.clone().matmul(ints.clone().transpose()));
    push("int_clamp", ints.clone().clamp(-1, 3));
    out.push(("arange", Tensor::<B, 1, Int>::arange_step(0..17, 3, &device).into_data()));
    out.push(("int_float", ints.clone().float().into_data()));
    let bools = ints.clone().greater_elem(0);
    out.push(("bool_not", bools.clone().bool_not().into_data()));
    out.push(("bool_or", bools.clone().bool_or(bools.clone().flip([1])).into_data()));
    out.push(("bool_any", bools.clone().any_dim(1).into_data()));
    out.push(("argwhere", bools.argwhere().into_data()));

    let x = random::<B, 2>(4, [16, 32]);
    B::seed(&device, 42);
    out.push(("random", Tensor::<B, 1>::random([9], Distribution::Default, &device).into_data()));
    let [a, b] = Transaction::default()
        .register(x.clone())
        .register(ints)
        .execute()
        .try_into()
        .expect("two tensors were registered");
    out.extend([("transaction float", a), ("transaction int", b)]);
}

/// On the inner backend: Burn's Autodiff does not quantize.
fn quantized<B: Backend>(out: &mut Results) {
    let x = random::<B, 2>(4, [16, 32]);
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_level(QuantLevel::Tensor)
        .with_store(QuantStore::Native);
    let quantized = x.clone().quantize_dynamic(&scheme);
    out.push(("quantized", quantized.clone().into_data()));
    out.push(("dequantize", quantized.clone().dequantize().into_data()));
    let product = quantized.clone().matmul(quantized.clone().transpose());
    out.push(("q_matmul", product.dequantize().into_data()));
    out.push(("q_add", (quantized.clone() + quantized).dequantize().into_data()));
}

fn activations<B: AutodiffBackend>(out: &mut Results) {
    let x = random::<B, 2>(5, [6, 7]);
    let mut push = |name, tensor: Tensor<B, 2>| out.push((name, tensor.into_data()));
    push("relu", activation::relu(x.clone()));
    push("gelu", activation::gelu(x.clone()));
    push("sigmoid", activation::sigmoid(x.clone()));
    push("log_sigmoid", activation::log_sigmoid(x.clone()));
    push("hard_sigmoid", activation::hard_sigmoid(x.clone(), 0.2, 0.5));
    push("leaky_relu", activation::leaky_relu(x.clone(), 0.1));
    push("softmax", activation::softmax(x.clone(), 1));
    push("softplus", activation::softplus(x, 1.0));
}

fn modules<B: AutodiffBackend>(out: &mut Results) {
    let image = random::<B, 4>(6, [2, 3, 8, 8]);
    let signal = random::<B, 3>(7, [2, 3, 12]);
    let kernel = random::<B, 4>(8, [4, 3, 3, 3]);
    let options = ops::ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    out.push(("conv2d", module::conv2d(image.clone(), kernel, None, options).into_data()));
    let options = ops::ConvOptions::new([2], [1], [1], 1);
    let kernel = random::<B, 3>(9, [4, 3, 3]);
    out.push(("conv1d", module::conv1d(signal.clone(), kernel, None, options).into_data()));
    let options = ops::ConvTransposeOptions::new([2, 2], [0, 0], [0, 0], [1, 1], 1);
    let kernel = random::<B, 4>(10, [3, 4, 2, 2]);
    let transposed = module::conv_transpose2d(image.clone(), kernel, None, options);
    out.push(("conv_transpose2d", transposed.into_data()));
    let (pooled, indices) =
        module::max_pool2d_with_indices(image.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
    out.extend([("max_pool2d", pooled.into_data()), ("max_pool2d indices", indices.into_data())]);
    let pooled = module::max_pool1d(signal.clone(), 2, 2, 0, 1, false);
    out.push(("max_pool1d", pooled.into_data()));
    let averaged = module::avg_pool2d(image.clone(), [2, 2], [1, 1], [1, 1], true, false);
    out.push(("avg_pool2d", averaged.into_data()));
    out.push(("adaptive_avg_pool1d", module::adaptive_avg_pool1d(signal, 4).into_data()));
    let options = ops::InterpolateOptions::new(ops::InterpolateMode::Bilinear);
    out.push(("interpolate", module::interpolate(image, [5, 11], options).into_data()));
    let indices = Tensor::<B, 2, Int>::from_ints([[1, 3], [0, 1]], &Default::default());
    out.push(("embedding", module::embedding(random(11, [5, 6]), indices).into_data()));
    let x = random::<B, 4>(12, [2, 2, 16, 16]);
    let attended = module::attention(x.clone(), x.clone(), x, None, None, Default::default());
    out.push(("attention", attended.into_data()));
    let norm = nn::LayerNormConfig::new(7).init::<B>(&Default::default());
    out.push(("layer_norm", norm.forward(random::<B, 2>(13, [5, 7])).into_data()));
}

/// A small network through which gradients of most kinds flow.
fn gradients<B: AutodiffBackend>(out: &mut Results) {
    let device = Default::default();
    B::seed(&device, 7);
    let conv = nn::conv::Conv2dConfig::new([1, 16], [3, 3]).init::<B>(&device);
    let norm = nn::LayerNormConfig::new(36).init::<B>(&device);
    let linear = nn::LinearConfig::new(36, 32).init::<B>(&device);
    let attention = nn::attention::MultiHeadAttentionConfig::new(32, 2).with_dropout(0.0);
    let attention = attention.init::<B>(&device);
    let x = random::<B, 4>(13, [3, 1, 8, 8]).require_grad();
    let weight = random::<B, 2>(14, [32, 20]).require_grad();
    let hidden = activation::gelu(conv.forward(x.clone()));
    let hidden = norm.forward(hidden.reshape([3, 16, 36]));
    let hidden = linear.forward(hidden);
    let attended = attention.forward(nn::attention::MhaInput::self_attn(hidden.clone())).context;
    let hidden = (hidden + attended).reshape([48, 32]).matmul(weight.clone());
    let loss = activation::log_softmax(hidden, 1).powi_scalar(2).mean();
    out.push(("loss", loss.clone().into_data()));
    let grads = loss.backward();
    let mut push = |name, data| out.push((name, data));
    let bias = linear.bias.as_ref().expect("there");
    push("x grad", x.grad(&grads).unwrap().into_data());
    push("matmul grad", weight.grad(&grads).unwrap().into_data());
    push("linear grad", linear.weight.grad(&grads).unwrap().into_data());
    push("linear bias grad", bias.grad(&grads).unwrap().into_data());
    push("conv grad", conv.weight.grad(&grads).unwrap().into_data());
    push("attention grad", attention.query.weight.grad(&grads).unwrap().into_data());
}

/// Gradients whose backend methods return structs of several tensors.
fn pooling_gradients<B: AutodiffBackend>(out: &mut Results) {
    let image = random::<B, 4>(15, [2, 3, 8, 8]).require_grad();
    let signal = random::<B, 3>(16, [2, 3, 12]).require_grad();
    let offset = random::<B, 4>(17, [2, 18, 8, 8]).require_grad();
    let kernel = random::<B, 4>(18, [4, 3, 3, 3]).require_grad();
    let options = ops::DeformConvOptions::new([1, 1], [1, 1], [1, 1], 1, 1);
    let deformed =
        module::deform_conv2d(image.clone(), offset.clone(), kernel.clone(), None, None, options);
    let pooled = module::max_pool2d(image.clone(), [2, 2], [2, 2], [0, 0], [1, 1], false);
    let pooled_signal = module::max_pool1d(signal.clone(), 3, 2, 1, 1, false);
    let averaged = module::avg_pool2d(image.clone(), [3, 3], [1, 1], [1, 1], true, false);
    let adapted = module::adaptive_avg_pool2d(image.clone(), [3, 5]);
    let loss = deformed.powi_scalar(2).sum()
        + pooled.powi_scalar(2).sum()
        + pooled_signal.powi_scalar(2).sum()
        + averaged.powi_scalar(3).sum()
        + adapted.powi_scalar(3).sum();
    let grads = loss.backward();
    out.push(("pooled image grad", image.grad(&grads).unwrap().into_data()));
    out.push(("pooled signal grad", signal.grad(&grads).unwrap().into_data()));
    out.push(("offset grad", offset.grad(&grads).unwrap().into_data()));
    out.push(("deformed kernel grad", kernel.grad(&grads).unwrap().into_data()));
}

fn sample<B: AutodiffBackend>() -> Results {
    let mut out = vec![];
    float_ops::<B>(&mut out);
    other_kinds::<B>(&mut out);
    quantized::<B::InnerBackend>(&mut out);
    activations::<B>(&mut out);
    modules::<B>(&mut out);
    gradients::<B>(&mut out);
    pooling_gradients::<B>(&mut out);
    out
}

/// `tolerance` is that of the gradients of the small network.
fn check<B: Fp8Matmul>(tolerance: f32)
where
    Autodiff<B>: Fp8Matmul,
{
    let plain = sample::<Autodiff<B>>();
    assert!(plain.len() > 70);
    for (order, (sampled, report)) in [
        ("outer", Fp8Config::off().scope(|| trace(sample::<Outer<B>>))),
        ("inner", Fp8Config::off().scope(|| trace(sample::<Inner<B>>))),
    ] {
        assert_eq!(sampled.len(), plain.len());
        assert_eq!(report.fp8().count(), 0);
        assert!(report.products.len() >= 7, "the products were seen: {report}");
        for ((name, expected), (_, actual)) in plain.iter().zip(&sampled) {
            let what = format!("{name}, {order} order");
            if name.ends_with(" grad") && tolerance > 0.0 {
                let [actual, expected] =
                    [actual, expected].map(|data| data.to_vec().expect("gradients are f32"));
                assert_close(&actual, &expected, tolerance, &what);
            } else {
                assert_eq!(actual, expected, "{what}");
            }
        }
    }
}

#[test]
fn on_flex() {
    alone(|| check::<Flex>(0.0));
}

/// NdArray without any decorator gives other last bits of gradients from one run to the next.
#[cfg(feature = "ndarray")]
#[test]
fn on_ndarray() {
    alone(|| check::<burn::backend::NdArray>(1e-4));
}

/// The sample is sensitive: with FP8 on, products differ.
#[test]
fn fp8_on_is_not_identity() {
    alone(|| {
        let differing: Vec<_> = (sample::<Autodiff<Flex>>().into_iter())
            .zip(sample::<Outer<Flex>>())
            .filter(|((_, plain), (_, fp8))| plain != fp8)
            .map(|((name, _), _)| name)
            .collect();
        for name in ["matmul", "loss", "x grad", "linear grad", "attention grad"] {
            assert!(differing.contains(&name), "{differing:?}");
        }
        // Integer-quantized products are left to the backend.
        assert!(!differing.contains(&"q_matmul"), "{differing:?}");
    });
}
