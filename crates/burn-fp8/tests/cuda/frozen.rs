//! Frozen layers on tensor cores: each product one call, on a weight that is moved once, with the results of emulation.

use burn::tensor::{DType, FloatDType};
use burn_fp8::nn::{ActivationScale, FrozenLinear};
use burn_fp8::{Fp8Config, Fp8Matmul};

use crate::common::{assert_close, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{DTYPES, assert_native, emulated, native, normal, trace_single_calls, typed};

/// M, K, N: multiples of 16, a batch of one, and neither.
const SHAPES: [[usize; 3]; 3] = [[64, 96, 80], [1, 128, 64], [37, 100, 33]];

fn output<B: Fp8Matmul>(
    config: &Fp8Config,
    layer: &FrozenLinear<B>,
    [m, k, _]: [usize; 3],
    dtype: FloatDType,
    is_native: bool,
) -> Vec<f32> {
    let x = typed::<B, 2>(&normal(3, m * k), [m, k], dtype);
    let (y, report) = trace_single_calls::<B, _>(|| config.scope(|| layer.forward(x)));
    if is_native {
        assert_native::<B>(&report, 1);
    }
    assert_eq!(y.dtype(), DType::from(dtype));
    values(y)
}

fn follow_emulation<B: Fp8Matmul>() {
    for (shape, dtype) in SHAPES.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        let [_, k, n] = shape;
        for activation in [ActivationScale::Current, ActivationScale::Static(0.01)] {
            let weight = tensor::<B, 2>(&normal(1, k * n), [k, n]);
            let bias = tensor::<B, 1>(&normal(2, n), [n]);
            let layer = FrozenLinear::from_weight(weight, Some(bias), activation).expect("valid");
            let codes = layer.codes().to_bytes();
            let expected = output(&emulated(), &layer, shape, dtype, false);
            assert!(expected.iter().any(|value| *value != 0.0));
            // Twice: on a weight that lies as emulation left it, and as the first product did. Then emulated again.
            for (config, is_native) in
                [(native::<B>(), true), (native::<B>(), true), (emulated(), false)]
            {
                let actual = output(&config, &layer, shape, dtype, is_native);
                let what = format!("{shape:?} {dtype:?} {activation:?} native: {is_native}");
                assert_close(&actual, &expected, 0.01, &what);
            }
            assert_eq!(layer.codes().to_bytes(), codes);
        }
    }
}

on_cuda_and_rehearsed!(follow_emulation);
