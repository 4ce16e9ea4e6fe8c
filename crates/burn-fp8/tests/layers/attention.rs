//! Attention as one operation, against the same in Burn's own operations, on every kind of backend; and the layer.

use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::record::NamedMpkBytesRecorder;
use burn::tensor::activation::softmax;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Int, TensorData};
use burn_fp8::fused::nn::{AttentionInput, FusedAttention, FusedAttentionConfig};
use burn_fp8::fused::ops::{AttentionOptions, attention, self_attention};
use burn_fp8::{AttentionPrecision, Dropout};
use burn_fp8_cpu::dropout::keep;

use crate::common::*;

/// What is asked of attention.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    causal: bool,
    softcap: bool,
    bias: bool,
    masks: bool,
    dropout: bool,
    precision: AttentionPrecision,
}

const HEADS: [usize; 2] = [4, 2];
const LENGTHS: [usize; 2] = [70, 81];
const WIDTH: usize = 24;

fn cases(precision: AttentionPrecision) -> [Case; 6] {
    let plain = Case { precision, ..Case::default() };
    [
        plain,
        Case { causal: true, ..plain },
        Case { softcap: true, bias: true, ..plain },
        Case { masks: true, causal: true, ..plain },
        Case { dropout: true, ..plain },
        Case { causal: true, softcap: true, bias: true, masks: true, dropout: true, precision },
    ]
}

/// Numbers of about a normal distribution, the same on every backend.
fn numbers<A: Backend, const D: usize>(shape: [usize; D], seed: usize) -> Tensor<A, D> {
    let count: usize = shape.iter().product();
    let number = |i: usize| {
        let x = (i * 7919 + seed * 104_729) % 10_007;
        (x as f32 / 10_007.0 - 0.5) + ((x * x) % 997) as f32 / 997.0 - 0.5
    };
    let values: Vec<f32> = (0..count).map(number).collect();
    Tensor::from_data(TensorData::new(values, shape), &Default::default())
}

/// Queries, keys, values and the bias.
struct Operands<A: Backend> {
    tensors: [Tensor<A, 4>; 4],
    pad: Tensor<A, 2, Bool>,
    mask: Tensor<A, 4, Bool>,
}

impl<A: Backend> Operands<A> {
    fn new() -> Self {
        let ([heads, kv_heads], [queries, keys]) = (HEADS, LENGTHS);
        let device = Default::default();
        let hidden = |shape: [usize; 4], every: usize| {
            let count: usize = shape.iter().product();
            let hidden: Vec<bool> = (0..count).map(|i| i % every == 1).collect();
            Tensor::from_data(TensorData::new(hidden, shape), &device)
        };
        let pad = hidden([2, 1, 1, keys], 5).reshape([2, keys]);
        Self {
            tensors: [
                numbers([2, heads, queries, WIDTH], 1),
                // Not contiguous: as a linear layer gives them.
                numbers([2, keys, kv_heads, WIDTH], 2).swap_dims(1, 2),
                numbers([2, kv_heads, keys, WIDTH], 3),
                numbers([1, heads, queries, keys], 4),
            ],
            pad,
            mask: hidden([2, 1, queries, keys], 7),
        }
    }
}

/// The output, then the gradients of queries, keys, values and, where there is one, of the bias.
type Results = Vec<Vec<f32>>;

fn results<A: AutodiffBackend>(
    operands: Operands<A>,
    case: Case,
    run: impl FnOnce([Tensor<A, 4>; 3], AttentionOptions<A>) -> Tensor<A, 4>,
) -> Results {
    let [q, k, v, bias] = operands.tensors.map(|tensor| tensor.require_grad());
    let options = AttentionOptions {
        causal: case.causal,
        softcap: case.softcap.then_some(0.8),
        bias: case.bias.then(|| bias.clone()),
        mask_pad: case.masks.then_some(operands.pad),
        mask: case.masks.then_some(operands.mask),
        dropout: case.dropout.then(|| Dropout::new(0.25, 77).unwrap()),
        precision: case.precision,
        scale: None,
    };
    let output = run([q.clone(), k.clone(), v.clone()], options);
    let weights = numbers::<A, 4>(output.dims(), 5);
    let grads = (output.clone() * weights).sum().backward();
    let of = |tensor: &Tensor<A, 4>| {
        let grad = tensor.grad(&grads).expect("it was used");
        grad.into_data().convert::<f32>().to_vec().unwrap()
    };
    let mut results = vec![output.into_data().convert::<f32>().to_vec().unwrap()];
    results.extend([&q, &k, &v].map(of));
    results.extend(case.bias.then(|| of(&bias)));
    results
}

/// In Burn's own operations, in f32.
fn plainly<A: AutodiffBackend>(case: Case) -> Results {
    results(Operands::<A>::new(), case, |[q, k, v], options| {
        let ([heads, kv_heads], [queries, keys]) = (HEADS, LENGTHS);
        let device = q.device();
        let spread = |x: Tensor<A, 4>| {
            let group = heads / kv_heads;
            let x: Tensor<A, 5> = x.unsqueeze_dim(2).repeat_dim(2, group);
            x.reshape([2, heads, keys, WIDTH])
        };
        let mut scores = q.matmul(spread(k).transpose()) / (WIDTH as f32).sqrt();
        if let Some(cap) = options.softcap {
            scores = (scores / cap).tanh() * cap;
        }
        if let Some(bias) = options.bias {
            scores = scores + bias;
        }
        // Far below every score, and finite: the rows of this test all see something.
        if let Some(pad) = options.mask_pad {
            scores = scores
                .mask_fill(pad.reshape([2, 1, 1, keys]).expand([2, heads, queries, keys]), -1e6);
        }
        if let Some(mask) = options.mask {
            scores = scores.mask_fill(mask.expand([2, heads, queries, keys]), -1e6);
        }
        if options.causal {
            let row = Tensor::<A, 1, Int>::arange(0..queries as i64, &device).reshape([queries, 1]);
            let last = row.add_scalar((keys - queries) as i64).expand([queries, keys]);
            let key = Tensor::<A, 1, Int>::arange(0..keys as i64, &device).reshape([1, keys]);
            let ahead = key.expand([queries, keys]).greater(last);
            scores =
                scores.mask_fill(ahead.unsqueeze::<4>().expand([2, heads, queries, keys]), -1e6);
        }
        let mut weights = softmax(scores, 3);
        if let Some(dropout) = options.dropout {
            let kept = |index: usize| {
                let mut columns = vec![[0f32; 8]; keys];
                keep(dropout, (index / keys) as u64, 0, &mut columns);
                columns[index % keys][0] * dropout.factor()
            };
            let kept: Vec<f32> = (0..2 * heads * queries * keys).map(kept).collect();
            weights = weights
                * Tensor::from_data(TensorData::new(kept, [2, heads, queries, keys]), &device);
        }
        weights.matmul(spread(v))
    })
}

fn ours<A: AutodiffBackend + Fp8Matmul>(case: Case) -> Results {
    results(Operands::<A>::new(), case, |[q, k, v], options| attention(q, k, v, options))
}

/// The root mean square of errors, relative to that of the reference.
fn error(x: &[f32], exact: &[f32]) -> f32 {
    assert_eq!(x.len(), exact.len());
    let square = |x: f32| x * x;
    let size: f32 = exact.iter().copied().map(square).sum();
    (x.iter().zip(exact).map(|(x, exact)| square(x - exact)).sum::<f32>() / size).sqrt()
}

#[track_caller]
fn assert_near(results: &Results, exact: &Results, bound: f32, what: &str) {
    assert_eq!(results.len(), exact.len());
    for (index, (results, exact)) in results.iter().zip(exact).enumerate() {
        let error = error(results, exact);
        assert!(error <= bound, "{what}, result {index}: {error}");
    }
}

#[track_caller]
fn assert_attends<A: AutodiffBackend + Fp8Matmul>(precisions: &[AttentionPrecision]) {
    for precision in precisions {
        let bound = match precision {
            AttentionPrecision::High => 3e-6,
            AttentionPrecision::Bf16 => 0.01,
            AttentionPrecision::Fp8 => 0.12,
        };
        for case in cases(*precision) {
            let exact = plainly::<Autodiff<Flex>>(case);
            assert_near(&ours::<A>(case), &exact, bound, &format!("{case:?}"));
        }
    }
}

#[test]
fn attention_and_its_gradients_are_those_of_burns_operations() {
    assert_attends::<Autodiff<Flex>>(&AttentionPrecision::ALL);
}

#[cfg(feature = "ndarray")]
#[test]
fn attention_in_tensor_operations_is_the_same() {
    use burn::backend::NdArray;
    assert_attends::<Autodiff<NdArray>>(&[AttentionPrecision::High, AttentionPrecision::Fp8]);
    let bf16 = Case { precision: AttentionPrecision::Bf16, ..Case::default() };
    let message = panic_of(move || ours::<Autodiff<NdArray>>(bf16));
    assert!(message.contains("ndarray>` has no bf16; choose `high` or `fp8`"), "{message}");
}

/// Of one tensor of queries, keys and values: to the bit what it is of its parts, with its gradients.
fn assert_self_attention_is_that_of_its_parts<A: AutodiffBackend + Fp8Matmul>() {
    let ([heads, kv_heads], length) = (HEADS, 37);
    let run = |case: Case, as_one: bool| {
        let qkv = numbers::<A, 4>([2, length, heads + 2 * kv_heads, WIDTH], 5).require_grad();
        let bias = numbers::<A, 4>([1, heads, length, length], 6).require_grad();
        let options = AttentionOptions {
            causal: case.causal,
            bias: case.bias.then(|| bias.clone()),
            dropout: case.dropout.then(|| Dropout::new(0.25, 77).unwrap()),
            precision: case.precision,
            ..AttentionOptions::default()
        };
        let y = match as_one {
            true => self_attention(qkv.clone(), kv_heads, options),
            false => {
                let part = |first, count| qkv.clone().narrow(2, first, count).swap_dims(1, 2);
                let (q, k) = (part(0, heads), part(heads, kv_heads));
                attention(q, k, part(heads + kv_heads, kv_heads), options)
            }
        };
        let weights = numbers::<A, 4>([2, heads, length, WIDTH], 7);
        let grads = (y.clone() * weights).sum().backward();
        let of_bias = bias.grad(&grads).map(values);
        assert_eq!(of_bias.is_some(), case.bias);
        [values(y), values(qkv.grad(&grads).expect("tracked")), of_bias.unwrap_or_default()]
            .map(|values| bits(&values))
    };
    for precision in [AttentionPrecision::High, AttentionPrecision::Fp8] {
        let case = Case { causal: true, dropout: true, precision, ..Case::default() };
        for case in [case, Case { bias: true, ..case }] {
            assert!(run(case, true) == run(case, false), "{case:?}");
        }
    }
}

#[test]
fn self_attention_is_that_of_its_parts() {
    assert_self_attention_is_that_of_its_parts::<Autodiff<Flex>>();
    assert_self_attention_is_that_of_its_parts::<Outer<Flex>>();
    assert_self_attention_is_that_of_its_parts::<Inner<Flex>>();
    #[cfg(feature = "ndarray")]
    assert_self_attention_is_that_of_its_parts::<Outer<burn::backend::NdArray>>();
    let refused = |kv_heads| {
        let qkv = numbers::<Flex, 4>([1, 3, 6, 8], 1);
        panic_of(move || self_attention(qkv, kv_heads, AttentionOptions::default()))
    };
    assert!(refused(3).contains("leaves no heads of queries beside 3"), "{}", refused(3));
    assert!(refused(usize::MAX).contains("leaves no heads"));
    assert!(refused(0).contains("cannot share 0 heads"), "{}", refused(0));
    assert_eq!(
        self_attention(numbers::<Flex, 4>([1, 3, 6, 8], 1), 1, AttentionOptions::default()).dims(),
        [1, 4, 3, 8]
    );
}

/// With every product in FP8, attention stays what its options say; and where FP8 is off it is f32.
#[test]
fn the_decorator_leaves_attention_to_its_options() {
    let config = Fp8Config::default().with_filter(Filter::every_matmul());
    for case in cases(AttentionPrecision::High) {
        let expected = ours::<Autodiff<Flex>>(case);
        config.scope(|| {
            assert_eq!(ours::<Fp8Backend<Autodiff<Flex>>>(case), expected);
            assert_eq!(ours::<Autodiff<Fp8Backend<Flex>>>(case), expected);
        });
        let fp8 = Case { precision: AttentionPrecision::Fp8, ..case };
        assert_ne!(ours::<Autodiff<Flex>>(fp8), expected);
        assert_eq!(high_precision(|| ours::<Fp8Backend<Autodiff<Flex>>>(fp8)), expected);
        assert_eq!(high_precision(|| ours::<Autodiff<Fp8Backend<Flex>>>(fp8)), expected);
    }
}

/// Burn's own operation, forward and backward, is this one where the configuration says so.
#[test]
fn burns_operation_is_one_where_the_configuration_says_so() {
    type B = Fp8Backend<Autodiff<Flex>>;
    // As many heads of keys as of queries, which Burn's wants.
    let run = |case: Case, ours: bool| {
        let mut operands = Operands::<B>::new();
        let [q, k, v, bias] = operands.tensors;
        let spread = |x: Tensor<B, 4>| x.repeat_dim(1, 2);
        operands.tensors = [q, spread(k), spread(v), bias];
        results(operands, case, |[q, k, v], options| {
            if ours {
                return attention(q, k, v, options);
            }
            let AttentionOptions { bias, mask, causal, softcap, .. } = options;
            let options = AttentionModuleOptions { scale: None, is_causal: causal, softcap };
            burn::tensor::module::attention(q, k, v, mask, bias, options)
        })
    };
    for precision in AttentionPrecision::ALL {
        for case in cases(precision) {
            if case.dropout || case.masks {
                continue;
            }
            let expected = run(case, true);
            let as_one = Fp8Config::default().with_attention(Some(precision));
            assert_eq!(as_one.scope(|| run(case, false)), expected, "{case:?}");
            let apart = Fp8Config::default().with_fused(false);
            assert_ne!(apart.scope(|| run(case, false)), expected);
            let off = Fp8Config::off().with_attention(Some(precision));
            let high = run(Case { precision: AttentionPrecision::High, ..case }, true);
            assert_eq!(off.scope(|| run(case, false)), high);
            assert_eq!(run(case, false), high, "the default");
        }
    }
}

#[test]
fn a_trace_says_in_what_precision_attention_ran() {
    type B = Fp8Backend<Autodiff<Flex>>;
    for precision in AttentionPrecision::ALL {
        let (_, report) = trace(|| ours::<B>(Case { precision, ..Case::default() }));
        let ran: Vec<_> =
            report.products.iter().map(|product| (product.role, product.ran.to_string())).collect();
        let output = (
            GemmRole::Output,
            format!("high precision: attention as one operation, in {precision}"),
        );
        let expected = match precision {
            AttentionPrecision::Fp8 => {
                let [output, input, weight] =
                    [GemmRole::Output, GemmRole::GradInput, GemmRole::GradWeight]
                        .map(|role| (role, implementation::<Flex>().to_string()));
                vec![output.clone(), output, input.clone(), weight.clone(), input, weight]
            }
            _ => vec![output.clone(), output],
        };
        assert_eq!(ran, expected);
        let [scores, context] = [0, 1].map(|index| report.products[index].gemm);
        assert_eq!([scores.batch, scores.m, scores.n, scores.k], [8, 70, 81, 24]);
        assert_eq!([context.batch, context.m, context.n, context.k], [8, 70, 24, 81]);
    }
}

/// Also where its score is not finite.
#[track_caller]
fn assert_hidden_keys_have_no_say<A: Backend + Fp8Matmul>() {
    let run = |last: f32| -> Vec<f32> {
        let [q, k, v] = [1, 2, 3].map(|seed| numbers::<A, 4>([1, 2, 5, 8], seed));
        let k = k.slice_fill([0..1, 0..2, 4..5, 0..8], last);
        let options = AttentionOptions { causal: true, ..AttentionOptions::default() };
        attention(q, k, v, options).slice([0..1, 0..2, 0..4]).into_data().to_vec().unwrap()
    };
    let expected = run(0.0);
    assert!(expected.iter().all(|x| x.is_finite()));
    assert_eq!(run(3e38), expected);
}

#[test]
fn hidden_keys_have_no_say() {
    assert_hidden_keys_have_no_say::<Flex>();
    #[cfg(feature = "ndarray")]
    assert_hidden_keys_have_no_say::<burn::backend::NdArray>();
}

#[test]
fn half_tensors_are_attended_to_in_f32() {
    let case = Case::default();
    let expected = ours::<Autodiff<Flex>>(case);
    let mut operands = Operands::<Autodiff<Flex>>::new();
    operands.tensors = operands.tensors.map(|tensor| tensor.cast(DType::BF16));
    let results = results(operands, case, |[q, k, v], options| {
        let output = attention(q, k, v, options);
        assert_eq!(output.dtype(), DType::BF16);
        output.cast(DType::F32)
    });
    assert_near(&results, &expected, 0.01, "bf16");
}

#[test]
fn what_cannot_be_attended_to_is_refused() {
    let heads = |shape: [usize; 4]| numbers::<Flex, 4>(shape, 1);
    let message = |q: [usize; 4], k: [usize; 4], options: AttentionOptions<Flex>| {
        let (q, k) = (heads(q), heads(k));
        panic_of(move || attention(q, k.clone(), k, options))
    };
    let (q, k) = ([1, 4, 5, 8], [1, 2, 6, 8]);
    let plain = AttentionOptions::default;
    for (message, expected) in [
        (message([1, 3, 5, 8], k, plain()), "3 heads of queries cannot share 2 heads of keys"),
        (message([2, 4, 5, 8], k, plain()), "the batch of the queries"),
        (message([1, 4, 5, 300], [1, 2, 6, 300], plain()), "1 to 256 wide"),
        (
            message(q, k, AttentionOptions { scale: Some(f64::NAN), ..plain() }),
            "the scale of attention is NaN",
        ),
        (message(q, k, AttentionOptions { softcap: Some(0.0), ..plain() }), "must be positive"),
        (
            message(q, k, AttentionOptions { bias: Some(heads([1, 1, 5, 5])), ..plain() }),
            "the bias of attention has shape [1, 1, 5, 5]",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    if implementation::<Flex>() == Implementation::FakeQuantized {
        let native = Fp8Config::default().with_execution(Execution::Native);
        let fp8 = AttentionOptions { precision: AttentionPrecision::Fp8, ..plain() };
        let message = native.scope(|| message(q, k, fp8));
        assert!(message.contains("cannot run FP8 products natively"), "{message}");
    }
}

/// The trace says what multiplied codes: the unit where there is one, unless emulation is asked for. A gradient of the bias is left to emulation.
#[test]
fn a_matrix_unit_multiplies_unless_it_is_told_not_to() {
    let shape = [2, 4, 70, 32];
    let step = |with_bias: bool| {
        let [q, k, v] = [1, 2, 3].map(|seed| numbers::<Outer<Flex>, 4>(shape, seed).require_grad());
        let bias = numbers::<Outer<Flex>, 4>([1, 1, 70, 70], 4).require_grad();
        let options = AttentionOptions {
            causal: true,
            bias: with_bias.then_some(bias),
            precision: AttentionPrecision::Fp8,
            ..Default::default()
        };
        let y = attention(q.clone(), k, v, options);
        let grads = y.clone().powi_scalar(2).sum().backward();
        [values(y), values(q.grad(&grads).expect("tracked"))]
    };
    let unit = implementation::<Flex>();
    let emulated = Implementation::FakeQuantized;
    let run = |execution, with_bias| {
        let config = Fp8Config::default().with_execution(execution);
        let (results, report) = config.scope(|| trace(|| step(with_bias)));
        let ran: Vec<_> = report.products.iter().map(|product| product.ran.clone()).collect();
        assert_eq!(ran.len(), 6, "two products forward, four backward: {report}");
        (results, ran)
    };
    let (on_unit, ran) = run(Execution::Auto, false);
    assert!(ran.iter().all(|ran| *ran == unit), "{ran:?}");
    let (in_f32, ran) = run(Execution::FakeQuantized, false);
    assert!(ran.iter().all(|ran| *ran == emulated), "{ran:?}");
    for (found, expected) in on_unit.iter().zip(&in_f32) {
        let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        for (found, expected) in found.iter().zip(expected) {
            // Where sums differ in their last bits, a probability may be rounded to the next code.
            assert!((found - expected).abs() <= 0.05 * largest, "{found}, not {expected}");
        }
    }
    let (_, ran) = run(Execution::Auto, true);
    assert!(ran[..2].iter().all(|ran| *ran == unit), "{ran:?}");
    assert!(ran[2..].iter().all(|ran| *ran == emulated), "{ran:?}");
}

fn layer<A: Backend>(config: FusedAttentionConfig) -> FusedAttention<A> {
    <A as Backend>::seed(&Default::default(), 3);
    config.init(&Default::default())
}

/// A record of Burn's layer loads, and gives what that one gives where both do the same.
#[test]
fn the_layer_takes_the_place_of_burns() {
    let device = Default::default();
    let burns = MultiHeadAttentionConfig::new(32, 4).with_dropout(0.0).init::<Flex>(&device);
    burns.forward(MhaInput::self_attn(numbers([1, 1, 32], 1)));
    let recorder = NamedMpkBytesRecorder::<FullPrecisionSettings>::new();
    let bytes = recorder.record(burns.clone().into_record(), ()).expect("it can be recorded");
    let layer = layer::<Flex>(FusedAttentionConfig::new(32, 4).with_dropout(0.0));
    let layer = layer.load_record(recorder.load(bytes, &device).expect("it loads"));

    let (x, y) = (numbers([2, 9, 32], 1), numbers::<Flex, 3>([2, 11, 32], 2));
    let pad: Vec<bool> = (0..22).map(|i| i % 4 == 1).collect();
    let pad = Tensor::<Flex, 2, Bool>::from_data(TensorData::new(pad, [2, 11]), &device);
    let attn: Vec<bool> = (0..2 * 9 * 11).map(|i| i % 5 == 2).collect();
    let attn = Tensor::<Flex, 3, Bool>::from_data(TensorData::new(attn, [2, 9, 11]), &device);
    let expected = burns.forward(
        MhaInput::new(x.clone(), y.clone(), y.clone())
            .mask_pad(pad.clone())
            .mask_attn(attn.clone()),
    );
    let input = AttentionInput::new(x, y.clone(), y).mask_pad(pad).mask_attn(attn);
    let vec = |x: Tensor<Flex, 3>| x.into_data().to_vec::<f32>().unwrap();
    let context = vec(layer.forward(input.clone()));
    assert!(error(&context, &vec(expected.context)) < 1e-6);
    assert_eq!(vec(FusedAttention::from(burns.clone()).forward(input)), context);
    let quiet = MultiHeadAttentionConfig::new(32, 4).with_quiet_softmax(true).init::<Flex>(&device);
    panics(|| drop(FusedAttention::from(quiet)), ["quiet_softmax"]);

    let bytes = recorder.record(layer.clone().into_record(), ()).expect("it can be recorded");
    burns.load_record(recorder.load(bytes, &device).expect("it loads back"));
    assert_eq!(
        layer.to_string(),
        "FusedAttention {n_heads: 4, kv_heads: 4, dropout: 0, causal: false, precision: high, params: 4224}"
    );
}

/// A row of a causal layer does not change with what comes after it.
#[test]
fn a_causal_layer_sees_nothing_ahead() {
    let config = FusedAttentionConfig::new(32, 4).with_kv_heads(Some(2)).with_causal(true);
    let layer = layer::<Flex>(config);
    let x = numbers::<Flex, 3>([1, 80, 32], 1);
    let forward = |x: Tensor<Flex, 3>| layer.forward(AttentionInput::self_attn(x));
    let whole = forward(x.clone());
    for length in [1, 7, 64, 79] {
        let part = forward(x.clone().narrow(1, 0, length));
        let expected = whole.clone().narrow(1, 0, length);
        part.into_data().assert_approx_eq::<f32>(&expected.into_data(), Default::default());
    }
}

/// Dropout is that of training alone, and its seed comes from the backend's generator.
#[test]
fn dropout_follows_the_seed_of_the_backend() {
    alone(|| {
        type B = Autodiff<Flex>;
        let layer = layer::<B>(FusedAttentionConfig::new(32, 4).with_dropout(0.5));
        let x = numbers::<B, 3>([2, 20, 32], 1);
        // Parameters are made where they are first read.
        layer.forward(AttentionInput::self_attn(x.clone()));
        let forward = |seed: u64| {
            <B as Backend>::seed(&Default::default(), seed);
            let first = layer.forward(AttentionInput::self_attn(x.clone()));
            let second = layer.forward(AttentionInput::self_attn(x.clone()));
            [first, second].map(|y| y.into_data().to_vec::<f32>().unwrap())
        };
        let [first, second] = forward(5);
        assert_ne!(first, second);
        assert_eq!(forward(5), [first.clone(), second]);
        assert_ne!(forward(6)[0], first);

        let valid = layer.valid();
        let run = || valid.forward(AttentionInput::self_attn(x.clone().inner())).into_data();
        assert_eq!(run(), run());
    });
}

#[test]
fn a_layer_that_cannot_be_is_refused() {
    let init = |config: FusedAttentionConfig| panic_of(move || layer::<Flex>(config));
    assert!(init(FusedAttentionConfig::new(30, 4)).contains("4 heads do not divide d_model = 30"));
    let config = FusedAttentionConfig::new(32, 4);
    assert!(init(config.clone().with_kv_heads(Some(3))).contains("3 heads of keys"));
    assert!(init(config.clone().with_dropout(1.0)).contains("at least 0 and less than 1"));
    assert!(init(FusedAttentionConfig::new(600, 2)).contains("heads are 300 wide"));
}
