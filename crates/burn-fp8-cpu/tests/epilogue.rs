//! What becomes of exact sums: scales, bias, activation, each type of output.

mod common;

use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Activation, Scales};
use common::case::{Case, same};
use common::reference::Reference;
use common::{Layout, Operand, PAIRS, Random, codes_where, integers};

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
        let a = random.codes(&integers(left), batch * m * k);
        let b = random.codes(&integers(right), batch * k * n);
        let lhs = Operand::batch(a, left, batch, [m, k], Layout::Rows);
        let rhs = Operand::batch(b, right, batch, [k, n], Layout::Rows);
        let mut case = Case::new(lhs, rhs, [1.0; 2]);
        case.bias = Some((0..n).map(|x| x as f32 * 0.3 - 9.0).collect());
        (case.lhs_scales, case.rhs_scales) = (per_lhs.clone(), per_rhs.clone());
        case.check(&case.rows());
        // The scales of one matrix count for each matrix of the batch.
        case.rhs_scales = per_rhs[..n].repeat(batch);
        let shared = Scales::Rows { lhs: &per_lhs, rhs: &per_rhs[..n] };
        case.check(&case.epilogue(shared));
        case.lhs_scales = per_lhs[..m].repeat(batch);
        let shared = Scales::Rows { lhs: &per_lhs[..m], rhs: &per_rhs[..n] };
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
        case.sums = Reference::new(&case.lhs, &case.rhs).sums;
        let exact = case.sums.iter().map(|sum| sum * f64::from(scale) * f64::from(scale));
        let exact: Vec<_> = exact.map(|x| x as f32).collect();
        assert!(exact[..n].iter().all(|x| *x == 0.0) && exact[n..].iter().all(|x| x.is_finite()));
        assert!(exact[n..].iter().filter(|x| x.is_normal()).count() > m * n / 2);
        same(&case.expected(), &exact, |x| x, "the reference");
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
        case.sums = Reference::new(&case.lhs, &case.rhs).sums;
        assert_eq!(case.expected().iter().filter(|x| x.is_nan()).count(), 2 * 70 + 2 * 28);
        case.check(&case.tensor());
        case.check(&case.rows());
    }
}
