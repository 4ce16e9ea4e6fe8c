//! The sums of tensor cores, in all that multiplies.

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn_fp8::AttentionPrecision;
use burn_fp8::sums::Sums;

use crate::common::sums::*;
use crate::common::*;

tests_on_cpu!([
    layers_have_the_sums_of_cards_in_both_orders,
    batches_have_the_sums_of_cards,
    scales_of_every_granularity_are_multiplied_as_on_cards,
    scaled_products_are_split_as_they_are_told,
    a_matrix_is_added_in_one_rounding,
    sums_that_no_card_has_are_refused,
]);

/// Frozen layers, in one pass and through slices; and layers with a state of their own.
#[test]
fn layers_that_hold_codes_have_the_sums_of_cards() {
    let config = Fp8Config::default().with_sums(Sums::Ada);
    let device = Default::default();
    let linear = LinearConfig::new(300, 40).with_bias(false).init::<Fp8Backend<Flex>>(&device);
    let x = random::<Fp8Backend<Flex>, 2>(1, [24, 300]);
    let frozen = FrozenLinear::from_weight(linear.weight.val(), None, ActivationScale::Current)
        .expect("a good layer");
    let by_layer = config.scope(|| values(frozen.forward(x.clone())));
    assert!(config.scope(|| frozen.on_host()).is_none(), "slices sum in f32");
    let on_host = frozen.on_host().expect("Flex has slices");
    assert!(on_host.applies() && !config.scope(|| on_host.applies()));
    let by_product = config.scope(|| values(linear.forward(x.clone())));
    assert_eq!(bits(&by_layer), bits(&by_product));
    let in_f32 = values(linear.forward(x.clone()));
    assert_ne!(bits(&by_layer), bits(&in_f32), "f32 sums otherwise");

    let layer = Fp8LinearConfig::new(300, 40).with_bias(false).init::<Fp8Backend<Flex>>(&device);
    let [sums, f32s] = [config, Fp8Config::default()]
        .map(|config| config.scope(|| values(layer.forward(x.clone()))));
    assert_ne!(bits(&sums), bits(&f32s));
    assert_close(&sums, &f32s, 1e-2, "a layer");
}

/// How a GPU's kernels for it add is not known: it keeps f32 sums, and says so.
#[test]
fn attention_as_one_operation_says_that_it_sums_in_f32() {
    let config = Fp8Config::default().with_attention(Some(AttentionPrecision::Fp8));
    let attention = || {
        let part = |seed| random::<Fp8Backend<Flex>, 4>(seed, [1, 2, 24, 16]);
        let options = AttentionModuleOptions { scale: None, is_causal: false, softcap: None };
        values(attention(part(1), part(2), part(3), None, None, options))
    };
    let in_f32 = config.with_execution(Execution::FakeQuantized).scope(attention);
    let (y, report) = config.with_sums(Sums::Hopper).scope(|| trace(attention));
    assert_eq!(bits(&y), bits(&in_f32));
    let ran = report.products[0].ran.to_string();
    assert!(ran.contains("attention as one operation sums in f32"), "{ran}");
}

/// With FP8 off it is `B`, whatever sums are asked for.
#[test]
fn nothing_changes_where_fp8_is_off() {
    let off = Fp8Config { sums: Sums::Hopper, ..Fp8Config::off() };
    let x = random::<Fp8Backend<Flex>, 2>(1, [40, 40]);
    let y = off.scope(|| values(x.clone().matmul(x)));
    let x = random::<Flex, 2>(1, [40, 40]);
    assert_eq!(bits(&y), bits(&values(x.clone().matmul(x))));
}
