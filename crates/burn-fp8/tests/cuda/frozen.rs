//! Frozen layers on tensor cores: each product one call, on a weight that is moved once, with the result of sums on the host.

use burn::tensor::DType;
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{ActivationScale, FrozenLinear};

use crate::common::exact::Exact;
use crate::common::{reference, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, assert_native, emulated_way, first, normal, of_tensor_cores, rounded,
    trace_single_calls, typed,
};

/// M, K, N: multiples of 16, a batch of one, and neither.
const SHAPES: [[usize; 3]; 3] = [[64, 96, 80], [1, 128, 64], [37, 100, 33]];

fn match_sums_on_the_host<B: Fp8Matmul>() {
    for (shape @ [m, k, n], dtype) in
        first(&SHAPES, 2).iter().flat_map(|&shape| DTYPES.map(|dtype| (shape, dtype)))
    {
        let (weight, bias) = (normal(1, k * n), normal(2, n));
        let input = rounded(normal(3, m * k), dtype);
        let quantized_weight = reference::quantize_dequantize(&weight, E4M3);
        for activation in [ActivationScale::Current, ActivationScale::Static(0.01)] {
            let x = match activation {
                ActivationScale::Current => reference::quantize_dequantize(&input, E4M3),
                ActivationScale::Static(scale) => {
                    reference::quantize_dequantize_by(&input, scale, E4M3)
                }
            };
            // The bias is added outside of the product, in the type of the input.
            let exact = Exact::product(&x, &quantized_weight, shape)
                .rounded(dtype)
                .plus_bias(&rounded(bias.clone(), dtype))
                .rounded(dtype);

            let layer = FrozenLinear::from_weight(
                tensor::<B, 2>(&weight, [k, n]),
                Some(tensor(&bias, [n])),
                activation,
            );
            let layer = layer.expect("valid");
            let codes = layer.codes().to_bytes();
            // Emulated, then natively twice: on a weight that lies as emulation left it, and as the first product did. Then emulated again.
            let [first, last] = [emulated_way(), emulated_way()];
            for way in [first, of_tensor_cores::<B>(), of_tensor_cores::<B>(), last] {
                let what = format!("{} {shape:?} {dtype:?} {activation:?}", way.name);
                let x = typed::<B, 2>(&input, [m, k], dtype);
                let (y, report) =
                    trace_single_calls::<B, _>(|| way.config.scope(|| layer.forward(x)));
                if way.is_native {
                    assert_native::<B>(&report, 1);
                }
                assert_eq!(y.dtype(), DType::from(dtype));
                exact.assert(&values(y), way.sums, &what);
            }
            assert_eq!(layer.codes().to_bytes(), codes);
        }
    }
}

on_cuda_and_rehearsed!(match_sums_on_the_host);
