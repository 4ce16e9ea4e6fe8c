//! Burn 0.23's own quantization to FP8: its codes and scales are those of this project.

use burn::tensor::Device;
use burn::tensor::quantization::{QuantScheme, QuantValue};
use burn_fp8_next::burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};

use crate::common::*;

#[test]
fn codes_and_scales_of_burn_are_ours() {
    // Magnitudes over forty powers of two, ties among them, both signs.
    let x: Vec<f32> = (0..4096)
        .map(|i| {
            let magnitude = (1.0 + (i % 128) as f32 / 128.0) * 2f32.powi(i % 41 - 30);
            if i % 3 == 0 { -magnitude } else { magnitude }
        })
        .collect();
    let amax = x.iter().fold(0f32, |amax, x| amax.max(x.abs()));
    for (value, format) in
        [(QuantValue::E4M3, Fp8Format::E4M3), (QuantValue::E5M2, Fp8Format::E5M2)]
    {
        let scheme = QuantScheme::default().with_value(value);
        let data = tensor(&x, [64, 64], &Device::flex()).quantize_dynamic(&scheme).into_data();
        let (codes, of_scale) = data.as_bytes().split_at(x.len());
        let expected = scale::from_amax(amax, format, Recipe::current());
        assert_eq!(of_scale, expected.to_le_bytes(), "{format}");
        let ours = |x: &f32| format.encode(x / expected, Overflow::Saturate);
        assert_eq!(codes, x.iter().map(ours).collect::<Vec<_>>(), "{format}");
    }
}
