//! Quantization of special values, of every rounding decision, and of random bit patterns, on any backend.

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorPrimitive};
use burn_fp8::Fp8Format::{self, E4M3, E5M2};
use burn_fp8::engine::{Quantize, ScaleRule};
use burn_fp8::{Fp8Matmul, Recipe};

use super::{Random, bits, reference, tensor};

fn quantize<B: Fp8Matmul>(x: &[f32], format: Fp8Format, recipe: Recipe) -> (Vec<f32>, f32) {
    let TensorPrimitive::Float(x) = tensor::<B, 1>(x, [x.len()]).into_primitive() else {
        unreachable!("made of floats");
    };
    let quantized =
        B::fp8_quantize(x, Quantize { format, scale: ScaleRule::Current(recipe), save: true });
    let values =
        super::values(Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(quantized.values)));
    let saved = B::fp8_values(quantized.codes.expect("asked for"));
    let saved = super::values(Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(saved)));
    let non_nan = |values: &[f32]| {
        values.iter().map(|v| if v.is_nan() { None } else { Some(v.to_bits()) }).collect::<Vec<_>>()
    };
    assert_eq!(non_nan(&values), non_nan(&saved), "saved codes hold the values");
    (values, quantized.scale.read())
}

pub fn check_special<B: Fp8Matmul>() {
    const INF: f32 = f32::INFINITY;
    let current = Recipe::current();
    for (format, max) in [(E4M3, 448.0f32), (E5M2, 57344.0)] {
        // The scale comes from the finite elements; what is not finite stays visible.
        let (values, scale) = quantize::<B>(&[1.0, f32::NAN, INF, -INF, -2.0], format, current);
        assert_eq!(scale, 2.0 / max, "{format}");
        assert_eq!(values[4], -max);
        assert!(values[1].is_nan());
        match format {
            E4M3 => assert!(values[2].is_nan() && values[3].is_nan()),
            E5M2 => assert_eq!(values[2..4], [INF, -INF]),
        }
        // Nothing finite, nothing but zeros: scale 1; zeros keep their sign.
        assert_eq!(quantize::<B>(&[f32::NAN, INF], format, current).1, 1.0);
        let (values, scale) = quantize::<B>(&[0.0, -0.0, 0.0], format, current);
        assert_eq!((bits(&values), scale), (bits(&[0.0, -0.0, 0.0]), 1.0));
        // Subnormal inputs, and an amax so small that the scale is clamped.
        for x in [[1e-40f32, -1e-40, 3e-41, 1e-45], [f32::MIN_POSITIVE, 1e-39, -1e-38, 0.0]] {
            let (values, scale) = quantize::<B>(&x, format, current);
            assert_eq!(scale, f32::MIN_POSITIVE, "{format} {x:?}");
            let expected = x.map(|x| reference::round(f64::from(x / scale), format) as f32);
            assert_eq!(bits(&values), bits(&expected), "{format} {x:?}");
        }
        // One outlier: the rest falls to zero or near it, but with its sign.
        let (values, scale) = quantize::<B>(&[1e30, 1.0, -1.0, 1e28], format, current);
        assert_eq!(values[0], max);
        assert_eq!(bits(&values[1..3]), bits(&[0.0, -0.0]));
        assert_eq!(values[3], reference::round(f64::from(1e28f32 / scale), format) as f32);
        // The largest number, with a margin that would take the scale past it.
        let recipe = current.with_margin(64).with_power_of_two(true);
        let (values, scale) = quantize::<B>(&[f32::MAX, -1.0], format, recipe);
        assert!(scale.is_finite() && values.iter().all(|value| value.is_finite()));
    }
}

/// Every rounding decision of both formats: all midpoints between neighbours, the values beside them, and the values.
pub fn check_ties<B: Fp8Matmul>() {
    for format in [E4M3, E5M2] {
        let magnitudes = reference::magnitudes(format);
        let mut x: Vec<f32> = vec![];
        for pair in magnitudes.windows(2) {
            let middle = ((pair[0] + pair[1]) / 2.0) as f32;
            let beside = [middle.next_down(), middle, middle.next_up(), pair[1] as f32];
            x.extend(beside.iter().flat_map(|x| [*x, -x]));
        }
        let (values, scale) = quantize::<B>(&x, format, Recipe::current());
        assert_eq!(scale, 1.0, "the largest value is the format's");
        let expected: Vec<f32> =
            x.iter().map(|x| reference::round(f64::from(*x), format) as f32).collect();
        assert_eq!(bits(&values), bits(&expected), "{format}");
    }
}

/// The codes and scales of a backend equal those of Flex, which come from the slice functions, bit for bit.
pub fn check_agreement<B: Fp8Matmul>() {
    let mut random = Random(17);
    for format in [E4M3, E5M2] {
        for power_of_two in [false, true] {
            for margin in [-3, 0, 5] {
                let recipe = Recipe::current().with_margin(margin).with_power_of_two(power_of_two);
                // Any bit pattern, so of any magnitude, some of them not finite.
                let x: Vec<f32> = (0..4096).map(|_| f32::from_bits(random.bits() as u32)).collect();
                for x in [x.clone(), x.iter().map(|x| x.clamp(-1.0, 1.0)).collect()] {
                    let (flex, flex_scale) = quantize::<Flex>(&x, format, recipe);
                    let (portable, scale) = quantize::<B>(&x, format, recipe);
                    assert_eq!(flex_scale.to_bits(), scale.to_bits(), "{format} {recipe:?}");
                    for ((x, a), b) in x.iter().zip(&flex).zip(&portable) {
                        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                        assert!(same, "{format} {recipe:?} {x:e}: {a} and {b}");
                    }
                }
            }
        }
    }
}
