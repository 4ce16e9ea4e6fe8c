//! What backward steps take, in FP8: the gradients are those of what the codes stand for.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::Param;
use burn::nn::{LayerNormConfig, RmsNormConfig};
use burn::tensor::activation;
use burn::tensor::module::attention;
use burn_fp8::Saved;
use burn_fp8::burn_fp8_core::{Norm, Overflow, scale};
use burn_fp8::fused::nn::{FusedRmsNorm, MlpActivation};
use burn_fp8::fused::ops::{AttentionOptions, gated, self_attention, silu};
use burn_fp8_test_support::operations::Function;

use super::balls::{self, Ball};
use crate::common::*;

type A = Fp8Backend<Autodiff<Flex>>;

/// Rows that groups of 128 do not divide.
const SHAPE: [usize; 3] = [3, 5, 300];

fn saved() -> Fp8Config {
    Fp8Config::default().with_saved(Saved::Fp8)
}

/// Spread over magnitudes, with a group of zeros.
fn numbers(seed: u64) -> Vec<f32> {
    let mut x = Random(seed).spread(SHAPE.iter().product());
    x[..128].fill(0.0);
    x
}

/// What codes of E4M3 stand for, with a scale for each 128 elements of a row.
fn rounded(x: &[f32], width: usize) -> Vec<f32> {
    rounded_by(x, width, 128, 1.0)
}

/// The same with scales for other groups, and times a factor.
fn rounded_by(x: &[f32], width: usize, group: usize, factor: f32) -> Vec<f32> {
    let of_group = |group: &[f32]| -> Vec<f32> {
        let finite = group.iter().filter(|x| x.is_finite());
        let amax = finite.fold(0f32, |amax, x| amax.max(x.abs()));
        let scale = scale::from_amax(amax, E4M3, Recipe::current()) * factor;
        let code = |x: &f32| E4M3.encode(x / scale, Overflow::SaturateFinite);
        group.iter().map(|x| E4M3.decode(code(x)) * scale).collect()
    };
    x.chunks(width).flat_map(|row| row.chunks(group)).flat_map(of_group).collect()
}

/// The result, the gradient of `x`, and those of parameters.
fn pass<B: AutodiffBackend>(
    x: &[f32],
    run: impl Fn(Tensor<B, 3>) -> (Tensor<B, 3>, Vec<Tensor<B, 1>>),
) -> Vec<Vec<f32>> {
    let x = tensor::<B, 3>(x, SHAPE).require_grad();
    let (y, parameters) = run(x.clone());
    let g = tensor::<B, 3>(&Random(9).spread(SHAPE.iter().product()), SHAPE);
    let grads = (y.clone() * g).sum().backward();
    let of_parameters = parameters.iter().map(|parameter| grad(parameter, &grads));
    [values(y), grad(&x, &grads)].into_iter().chain(of_parameters).collect()
}

type Operation<B> = fn(Tensor<B, 3>) -> (Tensor<B, 3>, Vec<Tensor<B, 1>>);

fn layer_norm<B: Backend>(x: Tensor<B, 3>) -> (Tensor<B, 3>, Vec<Tensor<B, 1>>) {
    let mut norm = LayerNormConfig::new(SHAPE[2]).init::<B>(&Default::default());
    norm.gamma = Param::from_tensor(random::<B, 1>(4, [SHAPE[2]]));
    let parameters = vec![norm.gamma.val(), norm.beta.as_ref().expect("a bias").val()];
    (norm.forward(x), parameters)
}

fn rms_norm<B: AutodiffBackend + Fp8Matmul>(x: Tensor<B, 3>) -> (Tensor<B, 3>, Vec<Tensor<B, 1>>) {
    let mut norm = RmsNormConfig::new(SHAPE[2]).init::<B>(&Default::default());
    norm.gamma = Param::from_tensor(random::<B, 1>(4, [SHAPE[2]]));
    let parameters = vec![norm.gamma.val()];
    (FusedRmsNorm::from(norm).forward(x), parameters)
}

/// All that keep their input.
fn operations<B: AutodiffBackend + Fp8Matmul>() -> [Operation<B>; 5] {
    [
        layer_norm,
        rms_norm,
        |x| (activation::gelu(x), vec![]),
        |x| (silu(x), vec![]),
        |x| (gated(MlpActivation::Silu, x.clone(), x), vec![]),
    ]
}

/// The result is what it was; gradients are, to the bit, those of an input that is what the codes stand for.
#[test]
fn gradients_are_those_of_the_numbers_of_the_codes() {
    fn check<B: AutodiffBackend + Fp8Matmul>() {
        let x = numbers(1);
        for (index, run) in operations::<B>().into_iter().enumerate() {
            let in_fp8 = saved().scope(|| pass(&x, run));
            let (whole, of_codes) = (pass(&x, run), pass(&rounded(&x, SHAPE[2]), run));
            assert_eq!(bits(&in_fp8[0]), bits(&whole[0]), "{index}: the result");
            for (at, (in_fp8, of_codes)) in in_fp8.iter().zip(&of_codes).enumerate().skip(1) {
                assert_eq!(bits(in_fp8), bits(of_codes), "{index}: gradient {at}");
                assert!(in_fp8.iter().any(|x| *x != 0.0));
            }
            // The gradient of beta alone does not depend on the input.
            assert_ne!(in_fp8[1], whole[1], "{index}: codes are used");
            let off = Fp8Config { enabled: false, ..saved() };
            assert_eq!(off.scope(|| pass(&x, run)), high_precision(|| pass(&x, run)));
        }
    }
    check::<A>();
    check::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>>();
}

/// `y (g - Σ y g)` of rounded probabilities; logarithms stay as they are.
#[test]
fn probabilities_are_saved_and_logarithms_are_not() {
    let (x, g) = (numbers(2), Random(9).spread(SHAPE.iter().product()));
    let run = |x: Tensor<A, 3>| (activation::softmax(x, 2), vec![]);
    let [y, of_x] = &saved().scope(|| pass(&x, run))[..] else { panic!("two") };
    let rounded = rounded(y, SHAPE[2]);
    let rows = rounded.chunks(SHAPE[2]).zip(g.chunks(SHAPE[2]));
    let exact = rows.flat_map(|(y, g)| {
        let along: f64 = y.iter().zip(g).map(|(y, g)| f64::from(*y) * f64::from(*g)).sum();
        let of = move |(y, g): (&f32, &f32)| (f64::from(*y) * (f64::from(*g) - along)) as f32;
        y.iter().zip(g).map(of).collect::<Vec<_>>()
    });
    assert_close(of_x, &exact.collect::<Vec<_>>(), 1e-5, "softmax");
    let run = |x: Tensor<A, 3>| (activation::log_softmax(x, 2), vec![]);
    assert_eq!(saved().scope(|| pass(&x, run)), pass(&x, run));
}

/// Queries, keys and values, apart or in one tensor: gradients are those of what the codes stand for, to the bit.
#[test]
fn attention_saves_its_operands() {
    const SHAPE: [usize; 4] = [2, 40, 12, 24];
    let burns = |qkv: Tensor<A, 4>| {
        let part =
            |at: usize| qkv.clone().slice([0..2, 0..40, 4 * at..4 * (at + 1)]).swap_dims(1, 2);
        let options = Default::default();
        attention(part(0), part(1), part(2), None, None, options).swap_dims(1, 2)
    };
    let in_one = |qkv: Tensor<A, 4>| {
        A::seed(&Default::default(), 5);
        let options = AttentionOptions { causal: true, ..Default::default() };
        let options = options.with_dropout(0.1, &Default::default());
        self_attention(qkv, 4, options).swap_dims(1, 2)
    };
    let x = Random(3).spread(SHAPE.iter().product());
    let run = |x: &[f32], of: &dyn Fn(Tensor<A, 4>) -> Tensor<A, 4>| {
        let qkv = tensor::<A, 4>(x, SHAPE).require_grad();
        let y = of(qkv.clone());
        let grads = (y.clone() * random::<A, 4>(4, [2, 40, 4, 24])).sum().backward();
        [values(y), grad(&qkv, &grads)].map(|x| bits(&x))
    };
    for of in [&burns as &dyn Fn(_) -> _, &in_one] {
        let ([y, whole], [same, in_fp8]) = (run(&x, of), saved().scope(|| run(&x, of)));
        let [_, of_codes] = run(&rounded(&x, SHAPE[3]), of);
        assert_eq!((y, &in_fp8), (same, &of_codes));
        assert_ne!(in_fp8, whole, "codes are used");
    }
}

/// Numbers whose groups of 128 alternate between large ones and much smaller ones, and rows in what they begin with.
fn uneven(numbers: Vec<f32>, width: usize, by: f32) -> Vec<f32> {
    let is_small = |at: usize| (at / width + at % width / 128) % 2 == 1;
    numbers.into_iter().enumerate().map(|(at, x)| if is_small(at) { x * by } else { x }).collect()
}

/// Groups, and factors of scales, that are wrong.
const WRONG: [(usize, f32); 3] = [(256, 1.0), (128, 2.0), (128, 0.5)];

/// Gradients are off by no more than a rounding of `kept`, in rows of `width`, lets them be. Whether each of [`WRONG`] would have been off by more.
#[track_caller]
fn assert_bounded(
    found: &[f32],
    (kept, width): (&[f64], usize),
    gradients: impl Fn(&[Ball]) -> Vec<Ball>,
    what: &str,
) -> [bool; 3] {
    let bounds = gradients(&balls::saved(kept, width));
    assert_eq!(found.len(), bounds.len(), "{what}");
    for (at, (found, ball)) in found.iter().zip(&bounds).enumerate() {
        let error = (f64::from(*found) - ball.value).abs();
        assert!(error <= ball.radius, "{what}[{at}]: {found:e} is {error:e} from {ball:?}");
    }
    let norm = |of: fn(&Ball) -> f64| bounds.iter().map(|ball| of(ball).powi(2)).sum::<f64>();
    assert!(norm(|ball| ball.radius) < norm(|ball| ball.value), "{what}: it says something");
    let kept: Vec<_> = kept.iter().map(|x| *x as f32).collect();
    WRONG.map(|(group, factor)| {
        let wrong = rounded_by(&kept, width, group, factor);
        let wrong = gradients(&wrong.into_iter().map(Ball::exact).collect::<Vec<_>>());
        let is_off = |(wrong, ball): (&Ball, &Ball)| (wrong.value - ball.value).abs() > ball.radius;
        wrong.iter().zip(&bounds).any(is_off)
    })
}

/// Against the true gradient, which f64 has of the input itself.
#[test]
fn gradients_are_as_near_to_f64_as_groups_of_e4m3_allow() {
    let (count, width) = (SHAPE.iter().product(), SHAPE[2]);
    let (x, g) = (uneven(numbers(1), width, 2f32.powi(-12)), Random(9).spread(count));
    let kept = || (wide(&x), width);
    let gradients = |run: Operation<A>| -> Vec<f32> {
        saved().scope(|| pass(&x, run)).into_iter().skip(1).flatten().collect()
    };

    let [layer_norm, rms_norm, gelu, silu, swiglu] = operations::<A>();
    // The slopes of both functions change fastest at 0: by 2 / √(2π), and 1 / 2.
    let of_gelu = |x: &[Ball]| balls::of_function(Function::Gelu, 0.7979, x, &g);
    let of_silu = |x: &[Ball]| balls::of_function(Function::Silu, 0.5, x, &g);
    let of_swiglu = |x: &[Ball]| balls::of_swiglu(x, &g);
    type Gradients<'a> = &'a dyn Fn(&[Ball]) -> Vec<Ball>;
    let functions: [(_, Gradients<'_>, _); 3] =
        [(gelu, &of_gelu, "gelu"), (silu, &of_silu, "silu"), (swiglu, &of_swiglu, "swiglu")];
    for (run, of, what) in functions {
        let (kept, width) = kept();
        let seen = assert_bounded(&gradients(run), (&kept, width), of, what);
        assert_eq!(seen, [true; 3], "{what}");
    }

    let probabilities: Vec<f64> = wide(&x)
        .chunks(width)
        .flat_map(|row| {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            row.iter().map(move |x| x.exp() / sum).collect::<Vec<_>>()
        })
        .collect();
    let of = |y: &[Ball]| balls::of_softmax(y, &g, width);
    let found = gradients(|x| (activation::softmax(x, 2), vec![]));
    let seen = assert_bounded(&found, (&probabilities, width), of, "softmax");
    assert_eq!(seen, [true; 3], "softmax");

    let gamma = Random(4).spread(width);
    // A mean adds the roundings of a row's largest numbers to all: small ones that are lost are within them.
    let norms = [(layer_norm, Norm::Layer, false), (rms_norm, Norm::Rms, true)];
    for (run, norm, sees_groups) in norms {
        let of = |x: &[Ball]| balls::of_norm(norm, x, &g, &gamma);
        let (kept, width) = kept();
        let found = &gradients(run)[..count + width];
        let seen = assert_bounded(found, (&kept, width), of, norm.name());
        assert_eq!(seen, [sees_groups, false, true], "{norm:?}");
    }
}

/// The same of attention, one head of 160. A bound of many terms holds more than their roundings, of which many cancel: what is wrong is seen where there are two tokens
/// and the gradient of one feature.
#[test]
fn gradients_of_attention_are_as_near_to_f64_as_groups_of_e4m3_allow() {
    const WIDTH: usize = 160;
    let check = |length: usize, features: usize, seed: u64| {
        let mut random = Random(seed);
        let small = 2f32.powi(-24);
        let numbers = random.units(length * 3 * WIDTH).into_iter().enumerate();
        let numbers = numbers.map(|(at, x)| if at % WIDTH < 128 { x / 4.0 } else { x * small });
        let x: Vec<_> = numbers.collect();
        let numbers = random.units(length * WIDTH).into_iter().enumerate();
        let numbers = numbers.map(|(at, g)| if at % WIDTH < features { g } else { 0.0 });
        let g: Vec<_> = numbers.collect();
        let qkv = tensor::<A, 4>(&x, [1, length, 3, WIDTH]).require_grad();
        let found = saved().scope(|| {
            let y = self_attention(qkv.clone(), 1, AttentionOptions::default());
            grad(&qkv, &(y * tensor::<A, 4>(&g, [1, 1, length, WIDTH])).sum().backward())
        });
        let of = |x: &[Ball]| balls::of_attention(x, &g, WIDTH);
        assert_bounded(&found, (&wide(&x), WIDTH), of, "attention")
    };
    check(8, WIDTH, 1);
    let seen: Vec<_> = (1..=8).map(|seed| check(2, 1, seed)).collect();
    assert_eq!([0, 1, 2].map(|of| seen.iter().any(|seen| seen[of])), [true, false, true]);
}

#[test]
fn nan_and_infinities_stay_visible_in_gradients() {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers(1);
        x[400] = special;
        let run: [Operation<A>; 2] = [layer_norm, |x| (activation::gelu(x), vec![])];
        for (index, run) in run.into_iter().enumerate() {
            let of_x = saved().scope(|| pass(&x, run)).swap_remove(1);
            assert!(of_x[400].is_nan(), "{special}, {index}");
            // Neither a row before nor, for single elements, a neighbour in its group.
            assert!(of_x[299].is_finite() && (index == 0 || of_x[401].is_finite()), "{index}");
        }
    }
}

#[test]
fn a_backend_without_kernels_keeps_all_and_the_trace_says_so() {
    fn notes<B: AutodiffBackend>() -> String {
        let run = |x: Tensor<B, 3>| (x.matmul(random::<B, 2>(2, [300, 300]).unsqueeze()), vec![]);
        let (_, report) = trace(|| saved().scope(|| pass::<B>(&numbers(1), run)));
        report.to_string()
    }
    #[cfg(feature = "ndarray")]
    assert!(notes::<Fp8Backend<Autodiff<burn::backend::NdArray>>>().contains("kept as it is"));
    assert!(!notes::<A>().contains("kept as it is"));
    // Nor is anything saved so where nothing is fused.
    let apart = saved().with_fused(false);
    let x = || tensor::<A, 3>(&numbers(1), SHAPE).require_grad();
    let run = || x().matmul(random::<A, 2>(2, [300, 300]).unsqueeze());
    let (_, report) = trace(|| apart.scope(run));
    assert!(report.to_string().contains("with_fused(true)"), "{report}");
    let config = saved();
    assert!(config.to_json().contains(r#""saved": "fp8""#));
    assert_eq!(Fp8Config::from_json(&config.to_json()).expect("its own"), config);
    refused(Fp8Config::from_json(r#"{"saved": "int8"}"#), ["whole"]);
}
