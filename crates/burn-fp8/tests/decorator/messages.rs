//! What code hears that puts decorators into an order that does not work, or asks for what is not there.

use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::tensor::module::{
    adaptive_avg_pool1d, adaptive_avg_pool2d, attention, avg_pool1d, avg_pool2d, embedding,
    interpolate, max_pool1d, max_pool2d,
};
use burn::tensor::ops::{InterpolateMode, InterpolateOptions};
use burn_fp8::AttentionPrecision;

use crate::common::*;

/// What a library does that adds `Autodiff` itself, to a backend that has it inside.
#[test]
fn a_second_autodiff_hears_which_order_it_wants() {
    type B = Autodiff<Outer<Flex>>;
    let signal = || ones::<B, 3>([1, 2, 6]).require_grad();
    let image = || ones::<B, 4>([1, 2, 6, 6]).require_grad();
    let layer = || LinearConfig::new(32, 32).init::<B>(&Default::default());
    let linear = |inputs: bool, layer: Linear<B>| {
        let x = ones::<B, 2>([16, 32]);
        drop(layer.forward(if inputs { x.require_grad() } else { x }).sum().backward());
    };
    let of_bias = || {
        let Linear { weight, bias } = layer();
        linear(false, Linear { weight: weight.no_grad(), bias });
    };
    let of_signal = |y: Tensor<B, 3>| drop(y.sum().backward());
    let of_image = |y: Tensor<B, 4>| drop(y.sum().backward());
    let nearest = || InterpolateOptions::new(InterpolateMode::Nearest);
    let indices = || Tensor::<B, 2, Int>::zeros([1, 3], &Default::default());
    let table = || ones::<B, 2>([4, 8]).require_grad();
    let (two, none, one) = ([2; 2], [0; 2], [1; 2]);
    let operations: [(&str, &dyn Fn()); 12] = [
        ("linear_x", &|| linear(true, layer())),
        ("linear_weight", &|| linear(false, layer())),
        ("linear_bias", &of_bias),
        ("embedding", &|| of_signal(embedding(table(), indices()))),
        ("avg_pool1d", &|| of_signal(avg_pool1d(signal(), 2, 2, 0, true, false))),
        ("avg_pool2d", &|| of_image(avg_pool2d(image(), two, two, none, true, false))),
        ("adaptive_avg_pool1d", &|| of_signal(adaptive_avg_pool1d(signal(), 3))),
        ("adaptive_avg_pool2d", &|| of_image(adaptive_avg_pool2d(image(), [3; 2]))),
        ("max_pool1d_with_indices", &|| of_signal(max_pool1d(signal(), 2, 2, 0, 1, false))),
        ("max_pool2d_with_indices", &|| {
            of_image(max_pool2d(image(), two, two, none, one, false));
        }),
        ("interpolate", &|| of_image(interpolate(image(), [3; 2], nearest()))),
        ("linear_x", &|| high_precision(|| linear(true, layer()))),
    ];
    for (operation, run) in operations {
        let named =
            format!("`{operation}_backward` was asked of the backend `fp8<autodiff<flex>>`");
        panics(
            run,
            [named.as_str(), "give it `Fp8Backend<B>` in the place of `Fp8Backend<Autodiff<B>>`"],
        );
    }
}

#[test]
fn the_order_that_is_wanted_trains() {
    let layer = LinearConfig::new(32, 32).init::<Inner<Flex>>(&Default::default());
    let x = ones::<_, 2>([16, 32]);
    let (gradients, report) = trace(|| layer.forward(x).sum().backward());
    assert!(layer.weight.grad(&gradients).is_some());
    assert_eq!(report.fp8().count(), 2, "{report}");
}

const NO_ATTENTION: [&str; 3] =
    ["no attention was found", "`matmul`", "Call `burn::tensor::module::attention`"];

/// What a trace says of a layer of attention that multiplies matrices.
fn by_matmul(config: Fp8Config) -> Report {
    type B = Fp8Backend<Flex>;
    let layer = MultiHeadAttentionConfig::new(32, 2).init::<B>(&Default::default());
    let x = ones::<B, 3>([2, 16, 32]);
    config.scope(|| trace(|| layer.forward(MhaInput::self_attn(x)))).1
}

#[test]
fn attention_that_was_asked_for_and_not_found_is_noted() {
    let asked = Fp8Config::default().with_attention(Some(AttentionPrecision::High));
    let report = by_matmul(asked);
    says(&report, NO_ATTENTION);
    assert_eq!(report.notes.len(), 1);
    says(report.to_json(), ["\"notes\": [\n    \"note: no attention was found"]);
    // Nobody asked.
    assert!(by_matmul(Fp8Config::default()).notes.is_empty());

    type B = Fp8Backend<Flex>;
    let one_operation = || {
        let heads = || ones::<B, 4>([2, 2, 16, 16]);
        attention(heads(), heads(), heads(), None, None, Default::default())
    };
    let (_, found) = asked.scope(|| trace(one_operation));
    assert!(found.products.iter().any(|product| product.kind == ProductKind::Attention));
    assert!(found.notes.is_empty(), "{found}");
    // What an inner trace misses an outer one may have found.
    let (inner, outer) = trace(|| (by_matmul(asked), asked.scope(one_operation)).0);
    assert_eq!((inner.notes.len(), outer.notes.len()), (1, 0));
    let (_, outer) = trace(|| by_matmul(asked));
    says(&outer, NO_ATTENTION);
}
