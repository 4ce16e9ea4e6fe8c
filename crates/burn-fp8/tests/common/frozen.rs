//! Frozen layers with numbers that are known.

use super::*;

/// A layer with its weight and bias.
pub fn layer<B: Fp8Matmul>(
    random: &mut Random,
    [k, n]: [usize; 2],
    activation: ActivationScale,
) -> (FrozenLinear<B>, Vec<f32>, Vec<f32>) {
    let (weight, bias) = (random.spread(k * n), random.spread(n));
    let layer =
        FrozenLinear::from_weight(tensor(&weight, [k, n]), Some(tensor(&bias, [n])), activation);
    (layer.expect("a good layer"), weight, bias)
}

/// The layer without what it lies on.
pub fn parts<B: Backend>(
    layer: &FrozenLinear<B>,
) -> (Vec<u8>, f32, Option<Vec<f32>>, ActivationScale) {
    let bias = layer.bias().map(|bias| values(bias.clone()));
    (layer.tensor().to_bytes(), layer.tensor().read_scale(), bias, layer.activation())
}

/// What an input holds in FP8.
pub fn quantized(x: &[f32], activation: ActivationScale) -> Vec<f64> {
    match activation {
        ActivationScale::Current => reference::quantize_dequantize(x, E4M3),
        ActivationScale::Static(scale) => reference::quantize_dequantize_by(x, scale, E4M3),
        other => panic!("{other:?} has a test of its own"),
    }
}

/// Calls `check` for every shape, type and kind of scale with a layer, an input, and what comes of it by definition, in f64.
pub fn for_each_layer<B: Fp8Matmul>(
    shapes: &[[usize; 3]],
    types: &[FloatDType],
    check: impl Fn(&FrozenLinear<B>, Tensor<B, 2>, &Exact, &str),
) {
    let mut random = Random(1);
    for (&[m, k, n], &dtype) in shapes.iter().flat_map(|s| types.iter().map(move |t| (s, t))) {
        for activation in [ActivationScale::Current, ActivationScale::Static(0.003)] {
            let (layer, weight, bias) = layer::<B>(&mut random, [k, n], activation);
            let x = tensor::<B, 2>(&random.spread(m * k), [m, k]).cast(dtype);
            let held = quantized(&values(x.clone()), activation);
            let weight = reference::quantize_dequantize(&weight, E4M3);
            // Product and bias are rounded to the type, and their sum is.
            let bias = values(tensor::<B, 1>(&bias, [n]).cast(dtype));
            let product = Exact::product(&held, &weight, [m, k, n]).rounded(dtype);
            let exact = product.plus_bias(&bias).rounded(dtype);
            check(&layer, x, &exact, &format!("{m}×{k}×{n} {dtype:?} {activation:?}"));
        }
    }
}

pub fn outputs_follow_the_definition<B: Fp8Matmul>() {
    let shapes =
        [[1, 1, 1], [1, 7, 5], [1, 64, 65], [2, 33, 3], [5, 17, 66], [9, 130, 70], [40, 12, 9]];
    let types = [vec![FloatDType::F32], half_types::<B>()].concat();
    for_each_layer::<B>(&shapes, &types, |layer, x, exact, what| {
        let dtype = x.dtype();
        let y = layer.forward(x);
        assert_eq!(y.dtype(), dtype, "{what}");
        exact.assert(&values(y), Sums::F32, what);
    });
}
