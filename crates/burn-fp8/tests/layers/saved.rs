//! What backward steps take, in FP8: the gradients are those of what the codes stand for.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::Param;
use burn::nn::LayerNormConfig;
use burn::tensor::activation;
use burn::tensor::module::attention;
use burn_fp8::Saved;
use burn_fp8::burn_fp8_core::{Overflow, scale};
use burn_fp8::fused::ops::{AttentionOptions, self_attention, silu};

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
    let group = |group: &[f32]| -> Vec<f32> {
        let finite = group.iter().filter(|x| x.is_finite());
        let amax = finite.fold(0f32, |amax, x| amax.max(x.abs()));
        let scale = scale::from_amax(amax, E4M3, Recipe::current());
        let code = |x: &f32| E4M3.encode(x / scale, Overflow::SaturateFinite);
        group.iter().map(|x| E4M3.decode(code(x)) * scale).collect()
    };
    x.chunks(width).flat_map(|row| row.chunks(128)).flat_map(group).collect()
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

/// The result is what it was; gradients are, to the bit, those of an input that is what the codes stand for.
#[test]
fn gradients_are_those_of_the_numbers_of_the_codes() {
    fn check<B: AutodiffBackend>(operations: [Operation<B>; 3]) {
        let x = numbers(1);
        for (index, run) in operations.into_iter().enumerate() {
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
    check::<A>([layer_norm, |x| (activation::gelu(x), vec![]), |x| (silu(x), vec![])]);
    type Balanced = Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>;
    check::<Balanced>([layer_norm, |x| (activation::gelu(x), vec![]), |x| (silu(x), vec![])]);
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
