//! Quantization of special values, of every rounding decision, and of random bit patterns, on any backend.

use burn::tensor::TensorPrimitive;
use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::engine::{Matrix, Request, Scalar, ScaleRule, ScaleRuleOf, Scales, Wanted};
use burn_fp8_cpu::slice;

use super::*;

/// What the values of codes are, without their scale, and the scale: the one place where tests quantize as products do.
pub fn quantize<B: Fp8Matmul, const D: usize>(
    x: Tensor<B, D>,
    format: Fp8Format,
    recipe: Recipe,
) -> (Vec<f32>, f32) {
    quantize_by(x, format, ScaleRule::Current(recipe))
}

fn quantize_by<B: Fp8Matmul, const D: usize>(
    x: Tensor<B, D>,
    format: Fp8Format,
    rule: ScaleRuleOf<B>,
) -> (Vec<f32>, f32) {
    let request = Request::whole(format, rule, Wanted::CodesAndValues);
    let quantized = B::fp8_quantize(x.into_primitive().tensor(), request);
    let Scales::One(scale) = quantized.scales.clone() else { panic!("one for all") };
    let used = Matrix { scales: Scales::One(Scalar::Host(1.0)), ..quantized };
    let saved = Matrix { values: None, ..used.clone() };
    let [used, saved] = [used, saved]
        .map(|matrix| TensorPrimitive::Float(B::fp8_dequantize(matrix)))
        .map(|numbers| values(Tensor::<B, D>::from_primitive(numbers)));
    assert_same(&used, &saved, "saved codes hold the values");
    (used, scale.read::<B>())
}

fn row<B: Fp8Matmul>(x: &[f32], format: Fp8Format, recipe: Recipe) -> (Vec<f32>, f32) {
    quantize::<B, 1>(tensor(x, [x.len()]), format, recipe)
}

/// Numbers of the format, the middles between them, and beyond the largest one, by definition.
pub fn overflow_is_what_was_asked_for<B: Fp8Matmul>() {
    const SCALE: f32 = 0.5;
    for format in fp8::FORMATS {
        let limits = [f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        let x = [hard::boundaries(format, SCALE), limits.to_vec()].concat();
        for overflow in fp8::OVERFLOWS {
            let rule = ScaleRule::Given(Scalar::Host(SCALE), overflow);
            let (values, _) = quantize_by::<B, 1>(tensor(&x, [x.len()]), format, rule);
            let expected = |x: &f32| {
                fp8::decode(fp8::encode(f64::from(*x) / f64::from(SCALE), format, overflow), format)
                    as f32
            };
            let expected: Vec<_> = x.iter().map(expected).collect();
            assert_same(&values, &expected, &format!("{format} {overflow:?}"));
        }
    }
}

pub fn special_values_stay_visible<B: Fp8Matmul>() {
    const INF: f32 = f32::INFINITY;
    let current = Recipe::current();
    for (format, max) in [(E4M3, 448.0f32), (E5M2, 57344.0)] {
        // The scale comes from the finite elements; what is not finite stays visible.
        let (values, scale) = row::<B>(&[1.0, f32::NAN, INF, -INF, -2.0], format, current);
        assert_eq!((scale, values[4]), (2.0 / max, -max), "{format}");
        let infinite = if format == E4M3 { f32::NAN } else { INF };
        assert_same(&values[1..4], &[f32::NAN, infinite, -infinite], "not finite");
        // Nothing finite, nothing but zeros: scale 1; zeros keep their sign.
        assert_eq!(row::<B>(&[f32::NAN, INF], format, current).1, 1.0);
        let (values, scale) = row::<B>(&[0.0, -0.0, 0.0], format, current);
        assert_eq!((bits(&values), scale), (bits(&[0.0, -0.0, 0.0]), 1.0));
        // Subnormal inputs, and an amax so small that the scale is clamped.
        for x in [[1e-40f32, -1e-40, 3e-41, 1e-45], [f32::MIN_POSITIVE, 1e-39, -1e-38, 0.0]] {
            let (values, scale) = row::<B>(&x, format, current);
            assert_eq!(scale, f32::MIN_POSITIVE, "{format} {x:?}");
            let expected = x.map(|x| fp8::round(f64::from(x / scale), format) as f32);
            assert_eq!(bits(&values), bits(&expected), "{format} {x:?}");
        }
        // One outlier: the rest falls to zero or near it, but with its sign.
        let (values, scale) = row::<B>(&[1e30, 1.0, -1.0, 1e28], format, current);
        let last = fp8::round(f64::from(1e28f32 / scale), format) as f32;
        assert_eq!(bits(&values), bits(&[max, 0.0, -0.0, last]));
        // The largest number, with a margin that would take the scale past it.
        let recipe = current.with_margin(64).with_power_of_two(true);
        let (values, scale) = row::<B>(&[f32::MAX, -1.0], format, recipe);
        assert!(scale.is_finite() && values.iter().all(|value| value.is_finite()));
    }
}

/// Every rounding decision of both formats: all midpoints between neighbours, the values beside them, and the values.
pub fn ties_go_to_even<B: Fp8Matmul>() {
    for format in fp8::FORMATS {
        let mut x = hard::boundaries(format, 1.0);
        x.retain(|x| x.abs() <= fp8::largest(format));
        let (values, scale) = row::<B>(&x, format, Recipe::current());
        assert_eq!(scale, 1.0, "the largest value is the format's");
        let expected: Vec<_> = x.iter().map(|x| fp8::round(f64::from(*x), format) as f32).collect();
        assert_eq!(bits(&values), bits(&expected), "{format}");
    }
}

/// The codes and scales of a backend equal those of Flex, which come from the slice functions, bit for bit.
pub fn codes_and_scales_agree_with_flex<B: Fp8Matmul>() {
    for format in fp8::FORMATS {
        for (power_of_two, margin) in
            [false, true].into_iter().flat_map(|p| [(p, -3), (p, 0), (p, 5)])
        {
            let recipe = Recipe::current().with_margin(margin).with_power_of_two(power_of_two);
            // Any bit pattern, so of any magnitude, some of them not finite.
            let x = Random(17).floats(4096);
            for x in [x.clone(), x.iter().map(|x| x.clamp(-1.0, 1.0)).collect()] {
                let (flex, flex_scale) = row::<Flex>(&x, format, recipe);
                let (portable, scale) = row::<B>(&x, format, recipe);
                assert_eq!(flex_scale.to_bits(), scale.to_bits(), "{format} {recipe:?}");
                assert_same(&portable, &flex, &format!("{format} {recipe:?}"));
            }
        }
    }
}
