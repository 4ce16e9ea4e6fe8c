//! Loss scaling as arithmetic and data: JMP's golden runs, validation, the shared handle.

use burn_fp8_train::policy::{
    DynamicLossScale, LossScale, LossScaleRule, LossScaleState, all_finite,
};
use proptest::prelude::*;
use serde_json::Value;

use crate::common::*;

type B = Autodiff<Flex>;

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn dynamic_scales_are_jmps() {
    let golden: Value = serde_json::from_str(include_str!("../golden/jmp.json")).expect("JSON");
    let runs = golden["dynamic_loss_scale"].as_array().expect("a list");
    assert_eq!(runs.len(), 4);
    for run in runs {
        let rule = DynamicLossScale::default()
            .with_loss_scale(number(&run["init"]) as f32)
            .with_period(number(&run["period"]) as u32)
            .with_factor(number(&run["factor"]) as f32)
            .with_min_loss_scale(number(&run["min_loss_scale"]) as f32);
        let loss_scale = LossScale::new(LossScaleRule::Dynamic(rule)).unwrap();
        let steps = run["steps"].as_array().expect("a list");
        assert_eq!(steps.len(), 40);
        let mut skipped = 0;
        for (index, step) in steps.iter().enumerate() {
            let finite = step["finite"].as_bool().expect("a boolean");
            skipped += u64::from(!finite);
            loss_scale.adjust(finite);
            let LossScaleRule::Dynamic(now) = loss_scale.rule() else { panic!("it is dynamic") };
            let expected = (number(&step["loss_scale"]), number(&step["counter"]));
            assert_eq!((f64::from(now.loss_scale), f64::from(now.counter)), expected, "{index}");
            assert_eq!(loss_scale.skipped(), skipped);
        }
    }
}

#[test]
fn the_default_is_jmps() {
    let LossScaleRule::Dynamic(rule) = LossScale::dynamic().rule() else { panic!("it is dynamic") };
    let DynamicLossScale { loss_scale, counter, period, factor, min_loss_scale } = rule;
    assert_eq!((loss_scale, factor, min_loss_scale), (32768.0, 2.0, 1.0));
    assert_eq!((counter, period), (0, 2000));
}

/// As JMP 0.0.4 does: `DynamicLossScale(jnp.float32(2.0 ** 126), period=1)` goes to 2^127 and stays there, with a counter of 0.
#[test]
fn growth_stops_where_f32_ends() {
    let rule = DynamicLossScale::default().with_loss_scale(2f32.powi(126)).with_period(1);
    let grown = rule.adjust(true);
    assert_eq!(grown.loss_scale, 2f32.powi(127));
    assert_eq!(grown.adjust(true), grown);
}

#[test]
fn constant_rules_only_count() {
    for loss_scale in [LossScale::none(), LossScale::fixed(3.0).unwrap()] {
        let rule = loss_scale.rule();
        for finite in [true, false, false] {
            loss_scale.adjust(finite);
        }
        assert_eq!((loss_scale.rule(), loss_scale.skipped()), (rule, 2));
    }
}

#[test]
fn numbers_out_of_range_are_refused_with_name_value_and_remedy() {
    let refused = |rule: LossScaleRule, part: &str| {
        let message = LossScale::new(rule).expect_err(part).to_string();
        assert!(message.starts_with("loss scaling: ") && message.lines().count() == 1);
        says(message, [part]);
        // A handle keeps what it has.
        let handle = LossScale::fixed(8.0).unwrap();
        assert!(handle.import(LossScaleState { rule, skipped: 5 }).is_err());
        assert_eq!((handle.loss_scale(), handle.skipped()), (8.0, 0));
    };
    let not_scales = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40];
    for scale in not_scales {
        refused(LossScaleRule::Static(scale), &format!("the static loss scale = {scale}"));
        let rule = DynamicLossScale::default();
        let dynamic = LossScaleRule::Dynamic;
        refused(dynamic(rule.with_loss_scale(scale)), &format!(" loss_scale = {scale}"));
        refused(dynamic(rule.with_min_loss_scale(scale)), &format!("min_loss_scale = {scale}"));
    }
    let default = DynamicLossScale::default();
    let dynamic = LossScaleRule::Dynamic;
    for factor in [1.0, 0.5, -2.0, f32::NAN, f32::INFINITY] {
        refused(dynamic(default.with_factor(factor)), &format!("factor = {factor}"));
    }
    for (rule, part) in [
        (default.with_period(0), "counter = 0 has reached period = 0"),
        (DynamicLossScale { counter: 2000, ..default }, "counter = 2000 has reached"),
        (
            default.with_min_loss_scale(65536.0),
            "loss_scale = 32768 is less than min_loss_scale = 65536",
        ),
    ] {
        refused(dynamic(rule), part);
    }
}

#[test]
fn malformed_json_is_one_line() {
    for (json, part) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid type: sequence, expected an object"),
        (r#"{"rule": {"dynamic": []}}"#, "invalid type: sequence, expected an object"),
        (r#"{"rules": "none"}"#, "unknown field `rules`"),
        (r#"{"rule": "nothing"}"#, "unknown variant `nothing`"),
        (r#"{"rule": {"static": 0}}"#, "the static loss scale = 0"),
        (r#"{"rule": {"static": 1e60}}"#, "inf"),
        (r#"{"rule": {"static": null}}"#, "null"),
        (r#"{"rule": {"dynamic": {"scale": 2}}}"#, "unknown field `scale`"),
        (r#"{"rule": {"dynamic": {"loss_scale": -2}}}"#, "loss_scale = -2"),
        (r#"{"rule": {"dynamic": {"counter": 7, "period": 7}}}"#, "counter = 7"),
        (r#"{"rule": {"dynamic": {"counter": -1}}}"#, "-1"),
        (r#"{"rule": "none", "skipped": -1}"#, "-1"),
    ] {
        let message = LossScaleState::from_json(json).expect_err(json).to_string();
        assert_eq!(message.lines().count(), 1, "{message}");
        says(message, [part]);
    }
}

#[test]
fn clones_share_the_state_on_any_thread() {
    let loss_scale = LossScale::dynamic();
    let clone = loss_scale.clone();
    std::thread::spawn(move || clone.adjust(false)).join().expect("no panic");
    assert_eq!((loss_scale.loss_scale(), loss_scale.skipped()), (16384.0, 1));
}

#[test]
fn losses_are_multiplied_and_gradients_divided() {
    let layer: Linear<B> = LinearConfig::new(2, 1).init(&Default::default());
    for (loss_scale, factor) in [
        (LossScale::none(), 1.0),
        (LossScale::fixed(48.0).unwrap(), 48.0),
        (LossScale::dynamic(), 32768.0),
    ] {
        let loss = layer.forward(tensor(&[3.0, 5.0], [1, 2])).sum();
        let scaled = loss_scale.scale(loss.clone());
        assert_eq!(values(scaled.clone()), [values(loss)[0] * factor]);
        let grads = GradientsParams::from_grads(scaled.backward(), &layer);
        let weight = |grads: &GradientsParams| {
            values(grads.get::<Flex, 2>(layer.weight.id).expect("a gradient"))
        };
        assert_eq!(weight(&grads), [3.0 * factor, 5.0 * factor]);
        let grads = loss_scale.unscale::<B, _>(&layer, grads);
        assert_eq!(weight(&grads), [3.0, 5.0]);
        assert_eq!(grads.len(), 2);
    }
}

#[test]
fn gradients_in_half_precision_are_divided_in_f32() {
    // 2^20 is infinite in f16.
    let loss_scale = LossScale::fixed(2f32.powi(20)).unwrap();
    let layer: Linear<B> = LinearConfig::new(1, 1).with_bias(false).init(&Default::default());
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let layer = Policy::uniform(dtype).cast_module_to_param(layer.clone());
        let mut grads = GradientsParams::new();
        grads.register(layer.weight.id, tensor::<Flex, 2>(&[16384.0], [1, 1]).cast(dtype));
        let grads = loss_scale.unscale::<B, _>(&layer, grads);
        let grad = grads.get::<Flex, 2>(layer.weight.id).expect("a gradient");
        assert_eq!((grad.dtype(), values(grad)), (dtype.into(), vec![2f32.powi(-6)]));
    }
}

#[test]
fn a_parameter_in_two_places_is_divided_once() {
    let layer: Linear<B> = LinearConfig::new(1, 1).with_bias(false).init(&Default::default());
    let twice = vec![layer.clone(), layer.clone()];
    let mut grads = GradientsParams::new();
    grads.register(layer.weight.id, tensor::<Flex, 2>(&[12.0], [1, 1]));
    let grads = LossScale::fixed(4.0).unwrap().unscale::<B, _>(&twice, grads);
    assert_eq!(values(grads.get::<Flex, 2>(layer.weight.id).expect("a gradient")), [3.0]);
}

#[test]
fn one_element_that_is_not_finite_is_found_in_any_dtype() {
    let layer: Linear<B> = LinearConfig::new(3, 2).init(&Default::default());
    let grads = |weight: &[f32], bias: &[f32], dtype: FloatDType| {
        let mut grads = GradientsParams::new();
        grads.register(layer.weight.id, tensor::<Flex, 2>(weight, [3, 2]).cast(dtype));
        let bias_id = layer.bias.as_ref().expect("a bias").id;
        grads.register(bias_id, tensor::<Flex, 1>(bias, [2]).cast(dtype));
        grads
    };
    let fine = [1.0, -2.0, 0.0, 60000.0, 1e-7, -0.0];
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
        assert!(all_finite::<B, _>(&layer, &grads(&fine, &[0.0, 1.0], dtype)));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for index in 0..6 {
                let mut weight = fine;
                weight[index] = bad;
                assert!(!all_finite::<B, _>(&layer, &grads(&weight, &[0.0, 1.0], dtype)));
            }
            assert!(!all_finite::<B, _>(&layer, &grads(&fine, &[0.0, bad], dtype)));
        }
    }
    // f16 ends at 65504.
    assert!(!all_finite::<B, _>(&layer, &grads(&[1e6; 6], &[0.0; 2], FloatDType::F16)));
    assert!(all_finite::<B, _>(&layer, &GradientsParams::new()));
}

fn rules() -> impl Strategy<Value = LossScaleRule> {
    let scale = || (-100i32..100, 1f32..2.0).prop_map(|(exponent, m)| m * 2f32.powi(exponent));
    let dynamic = (scale(), scale(), 1u32..5000, 1.0001f32..16.0, any::<u32>()).prop_map(
        |(a, b, period, factor, counter)| {
            LossScaleRule::Dynamic(DynamicLossScale {
                loss_scale: a.max(b),
                min_loss_scale: a.min(b),
                period,
                factor,
                counter: counter % period,
            })
        },
    );
    prop_oneof![Just(LossScaleRule::None), scale().prop_map(LossScaleRule::Static), dynamic]
}

proptest! {
    #[test]
    fn states_read_back_to_the_bit(rule in rules(), skipped in any::<u64>()) {
        let state = LossScaleState { rule, skipped };
        prop_assert_eq!(LossScaleState::from_json(&state.to_json()).unwrap(), state);
    }

    #[test]
    fn states_stay_valid(rule in rules(), steps in prop::collection::vec(any::<bool>(), 0..300)) {
        let mut rule = rule;
        for finite in steps {
            rule = rule.adjust(finite);
            prop_assert!(rule.validate().is_ok(), "{:?}", rule);
        }
    }
}
