//! What becomes of exact sums: scales, bias, activation, each type of output, and the largest magnitude that `matmul_with_amax` returns.

use crate::common::case::{Case, same};
use crate::common::{Layout, Operand, PAIRS, Random, Runner, codes_where, exact, integers};
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Activation, OperandScales, Output, matmul_with_amax};
use half::bf16;

/// Scales that bring results around 1, beyond f16 and FP8, and among their subnormal numbers.
const SCALES: [[f32; 2]; 4] = [[0.37, 0.019], [60.0, 1.7], [1e-7, 0.9], [0.5, 0.25]];

#[test]
fn scales_bias_and_activation_are_applied_in_this_order_and_rounded_once() {
    let mut random = Random(1);
    for (scales, shape) in
        SCALES.into_iter().zip([[29, 45, 70], [1, 66, 300], [33, 31, 1100], [5, 97, 33]])
    {
        for activation in [Activation::None, Activation::Relu] {
            for has_bias in [false, true] {
                let mut case = Case::integers(&mut random, shape, scales);
                let size = scales[0] * scales[1] * 500.0;
                case.activation = activation;
                case.bias = has_bias.then(|| {
                    (0..shape[1])
                        .map(|_| (random.below(2001) as f32 - 1000.0) / 1000.0 * size)
                        .collect()
                });
                case.check(&case.tensor());
                case.check(&case.rows());
            }
        }
    }
}

#[test]
fn each_row_and_each_column_has_a_scale_of_its_own() {
    let mut random = Random(2);
    let mut draw = |count| -> Vec<f32> {
        (0..count).map(|_| (1 + random.below(1000)) as f32 * 0.0071).collect()
    };
    let ([m, n, k], batch) = ([17, 67, 90], 3);
    let (per_lhs, per_rhs) = (draw(batch * m), draw(batch * n));
    let mut random = Random(3);
    for [left, right] in PAIRS {
        let a = random.picks(&integers(left), batch * m * k);
        let b = random.picks(&integers(right), batch * k * n);
        let lhs = Operand::batch(a, left, batch, [m, k], Layout::Rows);
        let rhs = Operand::batch(b, right, batch, [k, n], Layout::Rows);
        let mut case = Case::new(lhs, rhs, [1.0; 2]);
        case.bias = Some((0..n).map(|x| x as f32 * 0.3 - 9.0).collect());
        (case.lhs_scales, case.rhs_scales) = (per_lhs.clone(), per_rhs.clone());
        case.check(&case.rows());
        // The scales of one matrix count for each matrix of the batch.
        case.rhs_scales = per_rhs[..n].repeat(batch);
        let shared = OperandScales::Rows { lhs: &per_lhs, rhs: &per_rhs[..n] };
        case.check(&case.epilogue(shared));
        case.lhs_scales = per_lhs[..m].repeat(batch);
        let shared = OperandScales::Rows { lhs: &per_lhs[..m], rhs: &per_rhs[..n] };
        case.check(&case.epilogue(shared));
    }
}

/// E5M2's smallest and largest codes bring what the product of the scales loses back into f32's range.
#[test]
fn scales_whose_product_is_no_f32_lose_nothing() {
    let mut random = Random(4);
    let format = Fp8Format::E5M2;
    let smallest = codes_where(format, |x| x.abs() <= 2f64.powi(-16));
    let largest = codes_where(format, |x| x.abs() == 49152.0 || x == 0.0);
    let [m, n, k] = [20, 40, 50];
    // 2^-32 · 2^150 and 2^31 · 2^-150; the product of the scales alone is ∞ or 0.
    for (codes, scale) in [(smallest, 2f32.powi(75)), (largest, 2f32.powi(-75))] {
        let lhs = Operand::random(&mut random, &codes, format, [m, k], Layout::Rows);
        let rhs = Operand::random(&mut random, &codes, format, [k, n], Layout::Rows);
        let mut case = Case::new(lhs, rhs, [scale; 2]);
        // One row of zeros, which must not become NaN.
        case.lhs.codes[..k].fill(0);
        case.lhs = Operand::new(case.lhs.codes.clone(), format, [m, k], Layout::Rows);
        case.sums = exact(&case.lhs, &case.rhs).values;
        let scaled = case.sums.iter().map(|sum| sum * f64::from(scale) * f64::from(scale));
        let scaled: Vec<_> = scaled.map(|x| x as f32).collect();
        assert!(scaled[..n].iter().all(|x| *x == 0.0) && scaled[n..].iter().all(|x| x.is_finite()));
        assert!(scaled[n..].iter().filter(|x| x.is_normal()).count() > m * n / 2);
        same(&case.expected(), &scaled, |x| x, "the reference");
        case.check(&case.tensor());
        case.check(&case.rows());
        // Among ordinary ones, where only some pairs have such a product.
        case.lhs_scales.iter_mut().step_by(3).for_each(|x| *x = 1.5);
        case.rhs_scales.iter_mut().step_by(5).for_each(|x| *x = 0.75);
        case.check(&case.rows());
    }
}

#[test]
fn nan_and_infinities_reach_every_output_and_activation() {
    let mut random = Random(5);
    for activation in [Activation::None, Activation::Relu] {
        let mut case = Case::integers(&mut random, [30, 70, 64], [0.37, 1.9]);
        case.activation = activation;
        let mut bias = vec![1.5; 70];
        (bias[3], bias[31], bias[32], bias[69]) =
            (f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN);
        case.bias = Some(bias);
        let mut codes = case.lhs.codes.clone();
        (codes[64 * 7], codes[64 * 29 + 63]) = (0x7F, 0xFF);
        case.lhs = Operand::new(codes, case.lhs.format, [30, 64], Layout::Rows);
        case.sums = exact(&case.lhs, &case.rhs).values;
        assert_eq!(case.expected().iter().filter(|x| x.is_nan()).count(), 2 * 70 + 2 * 28);
        case.check(&case.tensor());
        case.check(&case.rows());
    }
}

/// The largest magnitude of the results before they are rounded, whatever the output.
#[test]
fn amax_is_the_largest_magnitude_before_rounding() {
    let mut random = Random(6);
    let shapes = [[29, 45, 70], [1, 1, 1], [70, 33, 1100], [2, 65, 5], [400, 300, 40]];
    for (index, shape) in shapes.into_iter().enumerate() {
        for special in [0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut case = Case::integers(&mut random, shape, [0.37, 1.9]);
            let mut bias = vec![-0.75; shape[1]];
            // 0 is no special number: it changes nothing of note. NaN goes before infinity.
            bias[shape[1] - 1] = if special == 0.0 { -0.75 } else { special };
            if special.is_nan() && shape[1] > 1 {
                bias[0] = f32::INFINITY;
            }
            case.bias = Some(bias);
            case.activation = [Activation::None, Activation::Relu][index % 2];
            let expected = case.expected();
            let largest = match expected.iter().any(|x| x.is_nan()) {
                true => f32::NAN,
                false => expected.iter().fold(0f32, |largest, x| largest.max(x.abs())),
            };
            let [lhs, rhs] = case.views();
            let len = expected.len();
            for runner in Runner::units() {
                let Runner::Unit(unit) = runner else { unreachable!("units only") };
                let (mut y, mut z, mut codes) =
                    (vec![9e9; len], vec![bf16::ZERO; len], vec![0; len]);
                let format = Fp8Format::E4M3;
                let fp8 = Output::Fp8 { codes: &mut codes, format, factor: 100.0 };
                let mut other = vec![f32::NAN; len];
                for output in
                    [Output::F32(&mut other), Output::Add(&mut y), Output::Bf16(&mut z), fp8]
                {
                    let amax = matmul_with_amax(unit, lhs, rhs, &case.tensor(), output);
                    let same = amax == largest || amax.is_nan() && largest.is_nan();
                    assert!(same, "{unit} {shape:?} {special}: {amax}, not {largest}");
                }
                same(&other, &expected, |x| x, "with amax");
            }
        }
    }
}

/// In f64 at the f32 it is applied to, within 8 · 2^-24 · |x|.
///
/// The argument of tanh is rounded 8 times at most; as |t| · tanh′(t) < 0.45, that moves tanh by 3.6 · 2^-24. Its own error, two
/// units in the last place, and the addition of 1 make it less than 7 · 2^-24, halved; the product with x is rounded once more.
#[test]
fn gelu_is_the_formula_with_tanh() {
    let formula = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        x / 2.0 * (1.0 + inner.tanh())
    };
    let mut random = Random(7);
    for scales in [[0.004, 1.0], [0.1, 0.7], [1e30, 1.0], [1e-30, 1.0]] {
        let mut case = Case::integers(&mut random, [40, 70, 300], scales);
        let mut bias = vec![0.0; 70];
        (bias[1], bias[69], bias[32]) = (f32::NAN, f32::INFINITY, 1.0);
        case.bias = Some(bias);
        let before = case.expected();
        case.activation = Activation::Gelu;
        for runner in Runner::all() {
            let mut y = vec![f32::NAN; before.len()];
            let [lhs, rhs] = case.views();
            runner.run(lhs, rhs, &case.tensor(), Output::F32(&mut y));
            for (y, x) in y.iter().zip(&before) {
                let (y, x) = (f64::from(*y), f64::from(*x));
                let expected = formula(x);
                let close = (y - expected).abs() <= 8.0 * 2f64.powi(-24) * x.abs() + 1e-45;
                let special = y == expected || y.is_nan() && expected.is_nan();
                assert!(close || special, "{runner:?} gelu({x:e}) is {y:e}, not {expected:e}");
            }
        }
    }
}
