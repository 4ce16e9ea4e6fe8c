//! GELU, SiLU, dropout and layer normalization as one operation each, against Burn's own, on every kind of backend.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::Param;
use burn::nn::{DropoutConfig, LayerNormConfig, RmsNorm, RmsNormConfig, SwiGluConfig};
use burn::record::NamedMpkBytesRecorder;
use burn::tensor::activation;
use burn::tensor::{Distribution, TensorData};
use burn_fp8::fused::nn::{FusedMlpConfig, FusedRmsNorm, MlpActivation};
use burn_fp8::fused::ops::{dropout, gated, gelu, silu};

use crate::common::*;

fn numbers<A: Backend>() -> Tensor<A, 3> {
    let values: Vec<f32> =
        (0..3 * 50 * 40).map(|i| ((i * 7919) % 9973) as f32 / 1000.0 - 5.0).collect();
    // Not contiguous.
    let x = Tensor::from_data(TensorData::new(values, [3, 50, 40]), &Default::default());
    x.swap_dims(1, 2)
}

/// The result, and the gradient of `x` where that of the result is `2 · x`.
fn results<A: AutodiffBackend>(f: impl FnOnce(Tensor<A, 3>) -> Tensor<A, 3>) -> [Vec<f32>; 2] {
    let x = numbers::<A>().require_grad();
    let y = f(x.clone());
    let grads = (y.clone() * x.clone().detach() * 2.0).sum().backward();
    let grad = x.grad(&grads).expect("it was used");
    [y.into_data().to_vec().unwrap(), grad.into_data().to_vec().unwrap()]
}

#[track_caller]
fn assert_burns<A: AutodiffBackend + Fp8Matmul>() {
    assert_near(results::<A>(gelu), results::<Autodiff<Flex>>(activation::gelu));
    assert_near(results::<A>(silu), results::<Autodiff<Flex>>(activation::silu));
    let burns = results::<Autodiff<Flex>>(|x| activation::silu(x.clone()) * (x + 1.0));
    assert_near(results::<A>(|x| gated(MlpActivation::Silu, x.clone(), x + 1.0)), burns);
}

#[track_caller]
fn assert_near([y, grad]: [Vec<f32>; 2], [exact, exact_grad]: [Vec<f32>; 2]) {
    for (x, exact) in y.iter().zip(&exact).chain(grad.iter().zip(&exact_grad)) {
        assert!((x - exact).abs() <= 2e-6 * (1.0 + exact.abs()), "{x} {exact}");
    }
}

/// By the same seed of Burn's generator, with others between.
fn dropped<A: AutodiffBackend + Fp8Matmul>() -> [Vec<f32>; 2] {
    <A as Backend>::seed(&Default::default(), 4);
    results::<A>(|x| dropout(x, 0.25))
}

#[test]
fn gelu_silu_and_gates_and_their_gradients_are_burns() {
    assert_burns::<Autodiff<Flex>>();
    assert_burns::<Fp8Backend<Autodiff<Flex>>>();
    assert_burns::<Autodiff<Fp8Backend<Flex>>>();
    #[cfg(feature = "ndarray")]
    assert_burns::<Autodiff<burn::backend::NdArray>>();
}

/// Where attention is one operation.
fn as_one<R>(run: impl FnOnce() -> R) -> R {
    Fp8Config::off().with_attention(Some(Default::default())).scope(run)
}

/// Layer normalization of rows far from zero: the result, the gradients of input and gamma, and of beta.
fn normed<A: AutodiffBackend>(operands: DType, dtype: DType, beta: bool) -> Vec<Tensor<A, 1>> {
    let cast = |x: Tensor<A, 3>| x.cast(operands).cast(dtype).detach();
    let x = cast(numbers::<A>() + 3.0).require_grad();
    let factors = cast(numbers::<A>().slice([0..1, 0..1, 0..50])).reshape([50]);
    let mut norm = LayerNormConfig::new(50).with_bias(beta).init::<A>(&Default::default());
    norm.gamma = Param::from_tensor(factors.clone());
    norm.beta = norm.beta.map(|_| Param::from_tensor(factors / 2.0));
    let y = norm.forward(x.clone());
    let grads = (y.clone() * cast(numbers::<A>())).sum().backward();
    let parameters = [Some(norm.gamma), norm.beta].into_iter().flatten();
    let of_parameters = parameters.map(|parameter| parameter.val().grad(&grads));
    let of_x = x.grad(&grads).map(|grad| grad.flatten(0, 2));
    let grads = [of_x].into_iter().chain(of_parameters);
    let grads = grads.map(|grad| Tensor::from_inner(grad.expect("it was used")));
    [y.flatten(0, 2)].into_iter().chain(grads).collect()
}

fn values<A: AutodiffBackend>(tensors: Vec<Tensor<A, 1>>) -> Vec<Vec<f32>> {
    tensors.into_iter().map(|tensor| tensor.into_data().to_vec().unwrap()).collect()
}

/// Burn's layers and functions call operations of the backend: where the configuration says so, each of them is one here. That is seen by how they round.
#[test]
fn layer_norm_and_gelu_of_burn_are_one_operation_each_where_attention_is() {
    /// Whether the results and the gradients of GELU and of layer normalization differ from those of the same backend otherwise.
    #[track_caller]
    fn differ<A: AutodiffBackend + Fp8Matmul>() -> [Vec<bool>; 2] {
        let gelus = || results::<A>(activation::gelu).to_vec();
        let norms = || values(normed::<A>(DType::F32, DType::F32, true));
        let exact = [
            results::<Autodiff<Flex>>(activation::gelu).to_vec(),
            values(normed::<Autodiff<Flex>>(DType::F32, DType::F32, true)),
        ];
        let ours = [as_one(gelus), as_one(norms)];
        let pairs = ours.iter().flatten().flatten().zip(exact.iter().flatten().flatten());
        for (x, exact) in pairs {
            assert!((x - exact).abs() <= 2e-5 * (1.0 + exact.abs()), "{x} {exact}");
        }
        let apart = Fp8Config::default().with_fused(false);
        let plain = [apart.scope(gelus), apart.scope(norms)];
        if A::FP8_ON_HOST {
            assert_eq!([gelus(), norms()], ours, "the default");
        }
        [0, 1].map(|of| ours[of].iter().zip(&plain[of]).map(|(x, y)| x != y).collect())
    }
    let (both, all) = (vec![true; 2], vec![true; 4]);
    assert_eq!(differ::<Fp8Backend<Autodiff<Flex>>>(), [both.clone(), all.clone()]);
    let balanced = differ::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>>();
    assert_eq!(balanced, [both.clone(), all]);
    // This order has no layer normalization of its own.
    assert_eq!(differ::<Autodiff<Fp8Backend<Flex>>>(), [both, vec![false; 4]]);
    #[cfg(feature = "ndarray")]
    {
        // Forward it is NdArray's own; a sum over rows has no other order.
        let [_, norms] = differ::<Fp8Backend<Autodiff<burn::backend::NdArray>>>();
        assert!(!norms[0] && norms[1]);
    }
}

/// The result and the gradient, with FP8 on and off; along the last dimension ours, along another Burn's to the bit.
#[test]
fn softmax_and_its_logarithm_and_their_gradients_are_burns() {
    fn check<A: AutodiffBackend>(softmax: fn(Tensor<A, 3>, usize) -> Tensor<A, 3>) {
        for dim in [2, 1] {
            let run = || results::<A>(|x| softmax(x, dim));
            let burns = Fp8Config::off().scope(run);
            for (ours, burns) in run().iter().zip(&burns) {
                assert!(ours.iter().any(|x| x.abs() > 1e-3));
                let differs = ours.iter().zip(burns).any(|(x, y)| x != y);
                assert_eq!(differs, dim == 2, "one operation");
                assert_close(ours, burns, 1e-5, "softmax");
            }
        }
    }
    check::<Fp8Backend<Autodiff<Flex>>>(activation::softmax);
    check::<Fp8Backend<Autodiff<Flex>>>(activation::log_softmax);
    #[cfg(feature = "ndarray")]
    {
        // In tensor operations the gradient is as near to the kernel's, which is tested against f64; NdArray's own is 1e-4 off.
        type A = Fp8Backend<Autodiff<burn::backend::NdArray>>;
        type Kernel = Fp8Backend<Autodiff<Flex>>;
        let ours = as_one(|| results::<A>(|x| activation::softmax(x, 2)));
        assert_close(
            &ours.concat(),
            &results::<Kernel>(|x| activation::softmax(x, 2)).concat(),
            1e-5,
            "softmax",
        );
        let ours = as_one(|| results::<A>(|x| activation::log_softmax(x, 2)));
        let kernels = results::<Kernel>(|x| activation::log_softmax(x, 2));
        assert_close(&ours.concat(), &kernels.concat(), 1e-5, "its logarithm");
    }
}

/// Burn's own dropout, whose bits are drawn on all threads: as many are dropped, the same by the same seed.
#[test]
fn dropout_of_burn_draws_its_bits_on_all_threads() {
    type A = Fp8Backend<Autodiff<Flex>>;
    let run = |seed| {
        <A as Backend>::seed(&Default::default(), seed);
        let x = Tensor::<A, 2>::ones([300, 700], &Default::default());
        let y = DropoutConfig::new(0.25).init().forward(x);
        y.into_data().to_vec::<f32>().expect("f32")
    };
    let y = run(3);
    assert!(y.iter().all(|y| *y == 0.0 || *y == 1.0 / 0.75));
    let kept = y.iter().filter(|y| **y != 0.0).count() as f64 / y.len() as f64;
    // Four standard deviations.
    assert!((kept - 0.75).abs() < 4.0 * (0.75f64 * 0.25 / y.len() as f64).sqrt(), "{kept}");
    assert_eq!(run(3), y);
    assert_ne!(run(4), y);
    let burns = Fp8Config::off().scope(|| run(3));
    assert_ne!(burns, y);
    assert_eq!(Fp8Config::default().with_fused(false).scope(|| run(3)), burns);
    // Too rare for 16 bits.
    let rare = || {
        <A as Backend>::seed(&Default::default(), 3);
        let rare = Distribution::Bernoulli(1e-3);
        Tensor::<A, 1>::random([4096], rare, &Default::default()).into_data()
    };
    rare().assert_eq(&Fp8Config::off().scope(rare), true);
}

#[test]
fn layer_norm_without_beta_has_no_gradient_of_it() {
    let run = |beta| normed::<Fp8Backend<Autodiff<Flex>>>(DType::F32, DType::F32, beta);
    let (with, without) = (as_one(|| values(run(true))), as_one(|| values(run(false))));
    assert_eq!([with.len(), without.len()], [4, 3]);
    assert_eq!(with[1..3], without[1..]);
}

#[test]
fn layer_norm_of_other_rows_is_refused() {
    let norm = LayerNormConfig::new(30).init::<Fp8Backend<Autodiff<Flex>>>(&Default::default());
    let message = panic_of(|| as_one(|| norm.forward(numbers())));
    assert!(message.contains("rows of [3, 40, 50] have 50 elements; gamma is [30]"), "{message}");
}

/// Halves are computed in f32 and rounded once.
#[test]
fn layer_norm_of_halves_is_rounded_once_and_of_doubles_is_burns() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let half = DType::BF16;
    let halves = as_one(|| normed::<B>(half, half, true));
    for (halves, whole) in halves.into_iter().zip(as_one(|| normed::<B>(half, DType::F32, true))) {
        assert_eq!(halves.dtype(), half);
        halves.into_data().assert_eq(&whole.cast(half).into_data(), true);
    }
    let doubles = || normed::<B>(DType::F64, DType::F64, true);
    for (ours, burns) in as_one(doubles).into_iter().zip(doubles()) {
        ours.into_data().assert_eq(&burns.into_data(), true);
    }
}

#[test]
fn layer_norm_of_mixed_types_is_refused() {
    let norm = LayerNormConfig::new(50).init::<Fp8Backend<Autodiff<Flex>>>(&Default::default());
    let message = panic_of(|| as_one(|| norm.forward(numbers().cast(DType::BF16))));
    assert!(message.contains("the input is BF16 and gamma F32: cast one of them"), "{message}");
}

/// What is kept has the same factor in the result and in the gradient; what is dropped is 0 in both.
#[test]
fn dropout_keeps_and_drops_the_same_forward_and_backward() {
    alone(|| {
        let [y, grad] = dropped::<Autodiff<Flex>>();
        let x: Vec<f32> = numbers::<Flex>().into_data().to_vec().unwrap();
        let factor = (1.0f32 / 0.75).to_bits();
        let mut dropped_elements = 0;
        for ((x, y), grad) in x.iter().zip(&y).zip(&grad).filter(|((x, _), _)| **x != 0.0) {
            match *y {
                0.0 => {
                    dropped_elements += 1;
                    assert_eq!(*grad, 0.0);
                }
                y => {
                    assert_eq!(y, x * f32::from_bits(factor));
                    assert_eq!(*grad, x * 2.0 * f32::from_bits(factor));
                }
            }
        }
        // Six standard deviations of 6,000.
        assert!((1300..1700).contains(&dropped_elements), "{dropped_elements}");
        assert_eq!(dropped::<Autodiff<Flex>>(), [y.clone(), grad.clone()]);
        assert_eq!(dropped::<Fp8Backend<Autodiff<Flex>>>(), [y, grad]);

        let valid = numbers::<Flex>();
        dropout(valid.clone(), 0.25).into_data().assert_eq(&valid.into_data(), true);
    });
}

#[test]
fn half_tensors_keep_their_type() {
    let x = numbers::<Autodiff<Flex>>().cast(DType::BF16).require_grad();
    let y = gelu(x.clone());
    assert_eq!(y.dtype(), DType::BF16);
    let grads = y.sum().backward();
    assert_eq!(x.grad(&grads).unwrap().dtype(), DType::BF16);
}

#[test]
fn a_probability_that_is_none_is_refused() {
    for probability in [-0.1, 1.0, f64::NAN] {
        let message = panic_of(|| dropout(numbers::<Autodiff<Flex>>(), probability));
        assert!(message.contains("at least 0 and less than 1"), "{message}");
    }
}

/// Burn's, of rows that are not contiguous, one of them of zeros: the result, and the gradients of input and gamma.
#[test]
fn rms_norm_and_its_gradients_are_burns() {
    /// By each of both layers, with factors that are not ones.
    fn both<A: AutodiffBackend + Fp8Matmul>() -> [[Vec<f32>; 3]; 2] {
        let mut norm = RmsNormConfig::new(50).init::<A>(&Default::default());
        norm.gamma = Param::from_tensor(random(4, [50]));
        let fused = FusedRmsNorm::from(norm.clone());
        let run = |forward: &dyn Fn(Tensor<A, 3>) -> Tensor<A, 3>, gamma: &Param<Tensor<A, 1>>| {
            let row = Tensor::zeros([3, 1, 50], &Default::default());
            let x = numbers::<A>().slice_assign([0..3, 7..8, 0..50], row).require_grad();
            let y = forward(x.clone());
            let grads = (y.clone() * numbers::<A>()).sum().backward();
            [values(vec![y.flatten(0, 2)]).remove(0), grad(&x, &grads), grad(&gamma.val(), &grads)]
        };
        [run(&|x| fused.forward(x), &fused.gamma), run(&|x| norm.forward(x), &norm.gamma)]
    }
    #[track_caller]
    fn check<A: AutodiffBackend + Fp8Matmul>(burns: &[Vec<f32>; 3]) {
        let [fused, _] = both::<A>();
        for (of, (fused, burns)) in fused.iter().zip(burns).enumerate() {
            assert_close(fused, burns, 1e-5, &format!("{of}"));
        }
    }
    let [_, burns] = both::<Autodiff<Flex>>();
    check::<Autodiff<Flex>>(&burns);
    check::<Fp8Backend<Autodiff<Flex>>>(&burns);
    check::<Autodiff<Fp8Backend<Flex>>>(&burns);
    #[cfg(feature = "ndarray")]
    check::<Fp8Backend<Autodiff<burn::backend::NdArray>>>(&burns);

    let message = panic_of(|| FusedRmsNorm::from(rms(30)).forward(numbers()));
    assert!(message.contains("RMS normalization: rows of [3, 40, 50] have 50"), "{message}");
}

fn rms(width: usize) -> RmsNorm<Autodiff<Flex>> {
    RmsNormConfig::new(width).with_epsilon(1e-3).init(&Default::default())
}

#[test]
fn records_of_rms_norms_load_both_ways() {
    let mut trained = rms(50);
    trained.gamma = Param::from_tensor(random(4, [50]));
    let gamma = |param: &Param<Tensor<Autodiff<Flex>, 1>>| param.val().into_data();
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::default();
    let device = Default::default();
    let bytes = recorder.record(trained.clone().into_record(), ()).expect("it can be recorded");
    let fused = FusedRmsNorm::from(rms(50));
    let fused = fused.load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(gamma(&fused.gamma), gamma(&trained.gamma));
    let bytes = recorder.record(fused.clone().into_record(), ()).expect("it can be recorded");
    let back = rms(50).load_record(recorder.load(bytes, &device).expect("it loads"));
    assert_eq!(gamma(&back.gamma), gamma(&trained.gamma));
    assert_eq!((fused.epsilon, RmsNorm::from(fused).epsilon), (1e-3, 1e-3));
}

#[test]
fn a_gate_and_what_it_is_for_are_alike() {
    let x = numbers::<Autodiff<Flex>>;
    let message = panic_of(|| gated(MlpActivation::Gelu, x(), x().narrow(0, 0, 1)));
    assert!(message.contains("must be alike"), "{message}");
}

/// Against Burn's layers with the same weights, in f32; and in FP8 all products of a step.
#[test]
fn a_gated_mlp_is_burns_swiglu_between_two_layers() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let device = Default::default();
    let mlp = FusedMlpConfig::swiglu(50, 64).init::<B>(&device);
    // Before it is used, each clone of a parameter would draw numbers of its own.
    let ours = Fp8Config::off().scope(|| results::<B>(|x| mlp.forward(x)));
    let mut swiglu = SwiGluConfig::new(50, 64).init::<B>(&device);
    swiglu.linear_inner = mlp.gate.clone().expect("it is gated");
    swiglu.linear_outer = mlp.up.clone();
    Fp8Config::off().scope(|| {
        let exact = results::<B>(|x| mlp.down.forward(swiglu.forward(x)));
        assert_near(ours, exact);
        let plain = FusedMlpConfig::new(50, 64).init::<B>(&device);
        assert!(plain.gate.is_none() && plain.up.bias.is_some());
        let exact = results::<B>(|x| plain.down.forward(activation::gelu(plain.up.forward(x))));
        assert_near(results::<B>(|x| plain.forward(x)), exact);
    });
    let (_, report) = trace(|| results::<B>(|x| mlp.forward(x)));
    assert_eq!(report.fp8().count(), 9);
    assert!(mlp.to_string().contains("gated: true"), "{mlp}");
}
