//! Frozen layers against their definition: weights and inputs with scales of every kind.

use ActivationScale::{Blocks, Current, Mx, PerToken, Static, Unquantized};

use super::*;

pub const ACTIVATIONS: [ActivationScale; 7] = [
    Unquantized,
    Static(0.02),
    Current,
    PerToken,
    Blocks { size: 64, power_of_two: false },
    Blocks { size: 128, power_of_two: true },
    Mx,
];

/// What a matrix of these columns holds in E4M3 where each block has a scale of its own amax.
fn held(x: &[f32], columns: usize, [high, wide]: [usize; 2], recipe: Recipe) -> Vec<f64> {
    let across = columns.div_ceil(wide);
    let block = |at: usize| at / columns / high * across + at % columns / wide;
    let mut amaxes = vec![0f32; (x.len() / columns).div_ceil(high) * across];
    for (at, x) in x.iter().enumerate().filter(|(_, x)| x.is_finite()) {
        amaxes[block(at)] = amaxes[block(at)].max(x.abs());
    }
    let scale = |at| fp8::scale_of(amaxes[block(at)], E4M3, recipe);
    let one = |(at, x): (usize, &f32)| fp8::quantize_dequantize_by(&[*x], scale(at), E4M3)[0];
    x.iter().enumerate().map(one).collect()
}

/// What an input of `k` columns holds.
pub fn quantized(x: &[f32], k: usize, activation: ActivationScale) -> Vec<f64> {
    let current = Recipe::current();
    match activation {
        Unquantized => wide(x),
        Static(scale) => fp8::quantize_dequantize_by(x, scale, E4M3),
        Current => held(x, k, [x.len(), k], current),
        PerToken => held(x, k, [1, k], current),
        Blocks { size, power_of_two } => {
            held(x, k, [1, size], Recipe::blockwise().with_power_of_two(power_of_two))
        }
        Mx => held(x, k, [1, 32], Recipe::mxfp8()),
    }
}

/// Weights `[k, n]` and what they hold. The first two have one scale; those of blocks have them row by row, or as files do.
pub fn weights<B: Fp8Matmul>(seed: u64, [k, n]: [usize; 2]) -> Vec<(Fp8Tensor<B, 2>, Vec<f64>)> {
    let numbers = Random(seed).spread(k * n);
    // As files have it: an output a row.
    let rows = || tensor::<B, 2>(&numbers, [n, k]);
    let by_columns = transpose(&numbers, [n, k]);
    let divided = Recipe::blockwise().with_power_of_two(false);
    let of_blocks = |block, recipe| {
        Fp8Tensor::quantize_blocks(rows(), E4M3, block, recipe).expect("blocks").transpose()
    };
    let by_columns = Fp8Tensor::quantize(tensor::<B, 2>(&by_columns, [k, n]), E4M3);
    let in_columns = Fp8Tensor::quantize_blocks(rows().transpose(), E4M3, [64, 16], divided);
    let holds = |block, recipe| transpose(&held(&numbers, k, block, recipe), [n, k]);
    let whole = || holds([n, k], Recipe::current());
    vec![
        (Fp8Tensor::quantize(rows().transpose(), E4M3), whole()),
        (by_columns, whole()),
        (
            Fp8Tensor::quantize_rows(rows(), E4M3).expect("rows").transpose(),
            holds([1, k], Recipe::current()),
        ),
        (of_blocks([16, 64], Recipe::blockwise()), holds([16, 64], Recipe::blockwise())),
        (in_columns.expect("blocks"), holds([16, 64], divided)),
        (of_blocks([128, 128], divided), holds([128, 128], divided)),
        (of_blocks([1, 32], Recipe::mxfp8()), holds([1, 32], Recipe::mxfp8())),
    ]
}

/// A layer, what is known of it, and what of an input.
pub struct Case<B: Backend> {
    pub layer: FrozenLinear<B>,
    /// Of [`weights`].
    pub index: usize,
    pub x: Tensor<B, 2>,
    pub exact: Exact,
    pub what: String,
}

/// Calls `check` for every shape, type and kind of scales.
pub fn for_each_layer<B: Fp8Matmul>(
    shapes: &[[usize; 3]],
    types: &[FloatDType],
    kinds: usize,
    activations: &[ActivationScale],
    check: impl Fn(Case<B>),
) {
    for (seed, &[m, k, n]) in (1..).zip(shapes) {
        let mut random = Random(seed);
        let (numbers, bias) = (random.spread(m * k), random.spread(n));
        for (index, (weight, holds)) in
            weights::<B>(seed, [k, n]).into_iter().enumerate().take(kinds)
        {
            let narrow: Vec<_> = holds.iter().map(|x| *x as f32).collect();
            for &activation in activations {
                let bias = tensor::<B, 1>(&bias, [n]);
                let layer =
                    FrozenLinear::from_tensor(weight.clone(), Some(bias.clone()), activation);
                let layer = layer.expect("a layer");
                assert_eq!(values(layer.weight()), narrow, "weight {index}");
                for &dtype in types {
                    let x = tensor::<B, 2>(&numbers, [m, k]).cast(dtype);
                    let held = quantized(&values(x.clone()), k, activation);
                    // Product and bias are rounded to the type, and their sum is.
                    let exact = Exact::product(&held, &holds, [m, k, n]).rounded(float(dtype));
                    let bias = values(bias.clone().cast(dtype));
                    let exact = exact.plus_bias(&bias).rounded(float(dtype));
                    let what = format!("{m}×{k}×{n} {dtype:?} {activation:?}, weight {index}");
                    check(Case { layer: layer.clone(), index, x, exact, what });
                }
            }
        }
    }
}

pub const SHAPES: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 7, 5],
    [1, 64, 65],
    [2, 33, 3],
    [5, 17, 66],
    [3, 130, 70],
    [40, 48, 96],
    [17, 128, 64],
    [3, 100, 300],
];

pub fn outputs_follow_the_definition<B: Fp8Matmul>() {
    let types = [vec![FloatDType::F32], half_types::<B>()].concat();
    for_each_layer::<B>(&SHAPES, &types, 7, &ACTIVATIONS, |case| {
        let Case { layer, index, x, exact, what } = case;
        let ([_, k], dtype) = (x.dims(), x.dtype());
        let (y, report) = trace(|| layer.forward(x));
        assert_eq!(y.dtype(), dtype, "{what}");
        exact.assert(&values(y), Sums::F32, &what);
        let [product] = &report.products[..] else { panic!("one product: {report}") };
        let activation = layer.activation();
        // Where one block holds all that is summed, it is as good as one scale.
        let is_native = match activation {
            Static(_) | Current | PerToken => index < 3 || (index < 6 && k <= 64),
            Blocks { size: 128, .. } => index == 5,
            _ => false,
        };
        match activation {
            Unquantized => {
                let only = HighPrecision::WeightOnly;
                assert_eq!(product.ran, Implementation::HighPrecision(only), "{what}");
                says(&product.ran, ["high precision: only the weight is in FP8"]);
            }
            _ if is_native => assert_eq!(product.ran, implementation::<B>(), "{what}"),
            _ => assert!(product.lhs.is_some(), "{what}"),
        }
    });
}

/// Codes, scales, bias and scale of the input.
pub type Parts = (Vec<u8>, Vec<f32>, Option<Vec<f32>>, ActivationScale);

/// The layer without what it lies on.
pub fn parts<B: Backend>(layer: &FrozenLinear<B>) -> Parts {
    let bias = layer.bias().map(|bias| values(bias.clone()));
    (layer.tensor().to_bytes(), values(layer.tensor().scales()), bias, layer.activation())
}
