//! The largest magnitude that `matmul_with_amax` returns, and GELU against its formula.

mod common;

use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Activation, Output, matmul_with_amax};
use common::case::{Case, same};
use common::{Random, Runner};
use half::bf16;

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
