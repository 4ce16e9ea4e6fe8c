//! FP8 state that is not tracked, and so cannot move: outputs and gradients against products in f64.

use burn_fp8::nn::Fp8State;

use crate::common::delayed::with_amax;
use crate::common::models::{parameters, state};
use crate::common::*;

/// M, K and N.
const SIZES: [usize; 3] = [48, 64, 32];

/// The largest magnitudes of inputs and output gradients: those of a loss that is a mean over a large batch lie far below the smallest number of E5M2.
const SMALL: [f32; 2] = [1e-2, 1e-8];
const LARGE: [f32; 2] = [1e4, 1e7];

/// What FP8 costs: some 29 dB forward, 25 dB where the gradient is in E5M2. A product that has gone to zero has 0 dB.
const DECIBELS: [f64; 2] = [27.0, 22.0];

fn layer<B: AutodiffBackend>(weight: f32) -> Fp8Linear<B> {
    let [_, k, n] = SIZES;
    Fp8Linear::from(linear(tensor(&with_amax(1, k * n, weight), [k, n]), None))
}

fn operands([x, g]: [f32; 2]) -> [Vec<f32>; 2] {
    let [m, k, n] = SIZES;
    [with_amax(2, m * k, x), with_amax(3, m * n, g)]
}

/// What to give the optimizer after a step with these magnitudes. Where a place is named, output and gradient of the input have to be those of f64 but
/// for the rounding to FP8.
#[track_caller]
fn backward<B: AutodiffBackend + Fp8Matmul>(
    layer: &Fp8Linear<B>,
    amaxes: [f32; 2],
    place: Option<&str>,
) -> GradientsParams {
    let ([m, k, n], [x, g]) = (SIZES, operands(amaxes));
    let input = tensor::<B, 2>(&x, [m, k]).set_require_grad(place.is_some());
    let y = layer.forward(input.clone());
    // The gradient of sum(y · g) with respect to y is g, exactly.
    let grads = (y.clone() * tensor(&g, [m, n])).sum().backward();
    if let Some(place) = place {
        let weight = wide(&values(layer.weight.val()));
        let [y_exact, of_x, _] = Exact::step([&wide(&x), &weight, &wide(&g)], SIZES);
        let output = sqnr(&y_exact.values, &wide(&values(y)));
        let gradient = sqnr(&of_x.values, &wide(&grad(&input, &grads)));
        let is_right = output >= DECIBELS[0] && gradient >= DECIBELS[1];
        assert!(is_right, "{place}: {output:.1}, {gradient:.1} dB");
    }
    GradientsParams::from_grads(grads, layer)
}

#[track_caller]
fn assert_right<B: AutodiffBackend + Fp8Matmul>(
    layer: &Fp8Linear<B>,
    amaxes: [f32; 2],
    place: &str,
) -> GradientsParams {
    backward(layer, amaxes, Some(place))
}

fn sgd<B: AutodiffBackend + Fp8Matmul>() -> Fp8Optimizer<impl Optimizer<Fp8Linear<B>, B>> {
    Fp8Optimizer::new(SgdConfig::new().init::<B, Fp8Linear<B>>())
}

/// A layer that has seen magnitudes for some steps, more than it needs to get used to them.
fn trained<B: AutodiffBackend + Fp8Matmul>(amaxes: [f32; 2]) -> Fp8Linear<B> {
    let mut layer = layer::<B>(1e-3);
    for step in 0..3 {
        let grads = backward(&layer, amaxes, None);
        layer = sgd().step(0.0, layer, grads);
        assert_eq!(state(&layer.dot.output_grad).1[0], amaxes[1], "step {step}");
    }
    layer
}

fn frozen_layers_pass_gradients_on<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    fn check<B: AutodiffBackend + Fp8Matmul>() {
        for amaxes in [SMALL, LARGE, [1.0, 1.0]] {
            let frozen = layer::<B>(1e-3).no_grad();
            assert_right(&frozen, amaxes, &format!("never trained, {amaxes:?}"));
            // A history that does not fit any more.
            for seen in [SMALL, LARGE] {
                let frozen = trained::<B>(seen).no_grad();
                let before = parameters(&frozen);
                let what = format!("trained with {seen:?}, {amaxes:?}");
                let grads = assert_right(&frozen, amaxes, &what);
                assert!(grads.is_empty(), "{what}: nothing of it is tracked");
                let stepped = sgd().step(0.1, frozen.clone(), grads);
                assert_eq!(parameters(&stepped), before, "{what}");
                // As a layer comes out of files and validation.
                let record = frozen.clone().into_record();
                let loaded = layer::<B>(1.0).no_grad().load_record(record);
                assert_right(&loaded, amaxes, &what);
                assert_right(&Fp8Linear::<B>::from_inner(frozen.valid()), amaxes, &what);
                assert_right(&frozen.fork(&Default::default()), amaxes, &what);
            }
        }
        // Only the weight is frozen: the state moves on.
        let mut layer = trained::<B>(SMALL);
        layer.weight = layer.weight.set_require_grad(false);
        let grads = assert_right(&layer, SMALL, "the weight is frozen");
        assert_eq!(grads.len(), 6);
        let layer = sgd().step(0.1, layer, grads);
        assert_eq!(state(&layer.dot.input).1.iter().filter(|amax| **amax > 0.0).count(), 4);
    }
    check::<Autodiff<B>>();
    check::<Outer<B>>();
    check::<Inner<B>>();
}

/// Each part of the state that moves does so, the others are not waited for: all 64 choices.
fn parts_of_the_state_can_be_frozen<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    fn freeze<B: Backend>(state: Fp8State<B>, which: usize) -> Fp8State<B> {
        let Fp8State { scale, amax_history } = state;
        Fp8State {
            scale: scale.set_require_grad(which & 1 == 0),
            amax_history: amax_history.set_require_grad(which & 2 == 0),
        }
    }
    for which in 0..64 {
        let mut layer = layer::<Autodiff<B>>(1e-3);
        layer.dot.input = freeze(layer.dot.input, which);
        layer.dot.kernel = freeze(layer.dot.kernel, which >> 2);
        layer.dot.output_grad = freeze(layer.dot.output_grad, which >> 4);
        let place = format!("{which:06b}");
        // By the third step what moves has moved.
        for place in [None, None, Some(&place[..])] {
            let grads = backward(&layer, SMALL, place);
            assert_eq!(grads.len(), 1 + 6 - (which as u32).count_ones() as usize);
            layer = sgd().step(0.0, layer, grads);
        }
    }
}

/// Without gradients: the layer's own history, as in Flax, and what is there where it has none.
fn inference_needs_no_history<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, _] = SIZES;
    for x_amax in [1e-5, 1.0, 1e6] {
        let x = with_amax(2, m * k, x_amax);
        let never_trained = layer::<Autodiff<B>>(1e-4);
        let weight = wide(&values(never_trained.weight.val()));
        let exact = Exact::product(&wide(&x), &weight, SIZES).values;
        let valid = values(never_trained.valid().forward(tensor::<B, 2>(&x, [m, k])));
        let frozen = never_trained.no_grad().forward(tensor::<Autodiff<B>, 2>(&x, [m, k]));
        assert_eq!(bits(&values(frozen)), bits(&valid));
        let decibels = sqnr(&exact, &wide(&valid));
        assert!(decibels >= DECIBELS[0], "{x_amax}: {decibels:.1} dB");
    }
    // Of a history larger inputs saturate at its amax; one that holds zeros alone keeps the scale that came with it.
    let trained = trained::<Autodiff<B>>(SMALL);
    let scale = |layer: &Fp8Linear<B>| {
        let (_, report) = trace(|| layer.forward(ones::<B, 2>([m, k])));
        report.products[0].lhs.expect("in FP8").scale
    };
    let valid = trained.valid();
    assert_eq!(scale(&valid), 1.0 / (448.0 / SMALL[0]));
    assert_eq!(scale(&valid.clone().no_grad()), 1.0 / (448.0 / SMALL[0]));
    let mut silent = valid;
    let zeros = Tensor::zeros([1, 1024], &Default::default());
    silent.dot.input.amax_history = silent.dot.input.amax_history.map(|_| zeros);
    silent.dot.input.scale = silent.dot.input.scale.map(|scale| scale.full_like(0.25));
    assert_eq!(scale(&silent), 0.25);
}

/// Zeros, amaxes that are too small for a scale, and what is not finite leave no NaN behind that was not there.
fn nothing_is_divided_by_zero<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = SIZES;
    let layer = layer::<Autodiff<B>>(1e-3).no_grad();
    for amax in [0.0, 1e-40, 1e-36, f32::INFINITY] {
        let mut g = vec![0.0; m * n];
        g[5] = amax;
        let x = Tensor::<Autodiff<B>, 2>::zeros([m, k], &Default::default()).require_grad();
        let y = layer.forward(x.clone());
        assert!(values(y.clone()).iter().all(|y| *y == 0.0));
        let grads = (y * tensor(&g, [m, n])).sum().backward();
        let gradient = grad(&x, &grads);
        assert!(gradient.iter().all(|x| x.is_finite()), "{amax:e}");
    }
}

tests_on_cpu!([
    frozen_layers_pass_gradients_on,
    parts_of_the_state_can_be_frozen,
    inference_needs_no_history,
    nothing_is_divided_by_zero,
]);
