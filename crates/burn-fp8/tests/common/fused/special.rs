//! What is not finite, or beyond the largest number.

use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::{Activation, Fp8Matmul, Fp8Tensor, ScaledMatmulOptions, scaled_matmul};

use crate::common::{tensor, values};

/// NaN, infinities and numbers beyond the largest one, in codes, sums, bias and activation.
pub fn special_values<B: Fp8Matmul>() {
    const INF: f32 = f32::INFINITY;
    let device = Default::default();
    let column = |codes: &[u8], format, scale: f32| {
        Fp8Tensor::<B, 2>::from_bytes(codes.to_vec(), [codes.len(), 1], format, scale, &device)
            .expect("good")
    };
    // The codes of 1, NaN, ∞, -∞, the largest number, and its negative.
    let e5m2 = column(&[0x3C, 0x7E, 0x7C, 0xFC, 0x7B, 0xFB], E5M2, 1.0);
    let one = column(&[0x38], E4M3, 1.0);
    let run = |a: &Fp8Tensor<B, 2>, options: ScaledMatmulOptions<B>| {
        scaled_matmul(a, &one, &options).expect("good")
    };
    let same = |actual: &[f32], expected: &[f32]| {
        let same = |(a, e): (&f32, &f32)| a == e || (a.is_nan() && e.is_nan());
        assert!(
            actual.len() == expected.len() && actual.iter().zip(expected).all(same),
            "{actual:?}"
        );
    };
    let float = |activation| {
        values(run(&e5m2, ScaledMatmulOptions::default().with_activation(activation)).into_float())
    };
    same(&float(Activation::None), &[1.0, f32::NAN, INF, -INF, 57344.0, -57344.0]);
    if !B::fp8_capability(&device).is_native() {
        // What cuBLASLt's epilogues make of NaN and infinities is not documented.
        same(&float(Activation::Relu), &[1.0, f32::NAN, INF, 0.0, 57344.0, 0.0]);
        let gelu = float(Activation::Gelu);
        assert!((gelu[0] - 0.841_192).abs() < 1e-6, "{gelu:?}");
        same(&gelu[1..], &[f32::NAN, INF, f32::NAN, 57344.0, -0.0]);
    }

    // FP8 output clamps, infinities too; the amax tells what there was.
    for (format, nan, max) in [(E4M3, 0x7F, 0x7E), (E5M2, 0x7E, 0x7B)] {
        let output = run(&e5m2, ScaledMatmulOptions::fp8(format, 1.0).with_amax());
        same(&values(output.amax.clone().expect("asked for")), &[f32::NAN]);
        let d = output.into_fp8().to_bytes();
        assert!(format.is_nan(d[1]) && d[1] & 0x7F == nan, "{d:x?}");
        assert_eq!([d[2], d[3]], [max, max | 0x80], "{d:x?}");
    }
    let finite = column(&[0x3C, 0x7B, 0xFB, 0x00, 0x80], E5M2, 1.0);
    let output = run(&finite, ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
    assert_eq!(values(output.amax.clone().expect("asked for")), [57344.0], "before clamping");
    assert_eq!(output.into_fp8().to_bytes()[..4], [0x38, 0x7E, 0xFE, 0x00]);
    let infinite = column(&[0x3C, 0xFC], E5M2, 1.0);
    let output = run(&infinite, ScaledMatmulOptions::fp8(E4M3, 1.0).with_amax());
    assert_eq!(values(output.amax.expect("asked for")), [INF]);

    // A sum beyond f32, by its scale.
    let huge = column(&[0x7B], E5M2, f32::MAX / 2.0);
    same(&values(run(&huge, ScaledMatmulOptions::default()).into_float()), &[INF]);
    assert_eq!(
        run(&huge, ScaledMatmulOptions::fp8(E4M3, 2f32.powi(126))).into_fp8().to_bytes(),
        [0x7E]
    );

    // Scales on the device are not looked at: one that is NaN gives NaN.
    let nan = tensor::<B, 1>(&[f32::NAN], [1]);
    let tensor = Fp8Tensor::<B, 2>::from_bytes(vec![0x38], [1, 1], E4M3, nan, &device);
    let d = run(&tensor.expect("not looked at"), ScaledMatmulOptions::default());
    same(&values(d.into_float()), &[f32::NAN]);
}
