//! FP8 layers on tensor cores: results as in emulation, and the very same state.

use burn::backend::Autodiff;
use burn::module::Param;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, FloatDType};
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig};
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{Fp8Config, Fp8Matmul, trace};

use crate::common::models::state;
use crate::common::{Outer, assert_close, bits, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{DTYPES, assert_native, emulated, native, normal, typed};

/// M, K, N: multiples of 16, and not.
const SHAPES: [[usize; 3]; 2] = [[64, 96, 80], [37, 100, 33]];
const STEPS: u64 = 6;

/// Of one step: result, gradients of input, weight and bias; and the bits of scales and histories after it.
struct Step {
    results: [Vec<f32>; 4],
    state: Vec<u32>,
}

fn train<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(
    config: &Fp8Config,
    [m, k, n]: [usize; 3],
    dtype: FloatDType,
    is_native: bool,
) -> Vec<Step> {
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(3).with_mode(DotMode::Direct);
    let mut layer: Fp8Linear<A> =
        Fp8LinearConfig::new(k, n).with_dot(dot).init(&Default::default());
    layer.weight = Param::from_tensor(typed(&normal(1, k * n), [k, n], dtype));
    layer.bias = Some(Param::from_tensor(typed(&normal(2, n), [n], dtype)));
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
    let mut steps = vec![];
    for step in 0..STEPS {
        // Of another magnitude each time: scales lag behind, and some of it saturates.
        let magnitude = [1.0, 8.0, 0.25, 50.0][(step % 4) as usize];
        let data = |seed, count| -> Vec<f32> {
            normal(10 * step + seed, count).iter().map(|x| x * magnitude).collect()
        };
        let x = typed::<A, 2>(&data(3, m * k), [m, k], dtype).require_grad();
        let g = typed::<A, 2>(&data(4, m * n), [m, n], dtype);
        let ((y, mut grads), report) = trace(|| {
            config.scope(|| {
                let y = layer.forward(x.clone());
                // The gradient of sum(y · g) with respect to y is g, exactly.
                (y.clone(), (y * g).sum().backward())
            })
        });
        if is_native {
            assert_native::<I>(&report, 3);
        }
        assert_eq!(y.dtype(), DType::from(dtype));
        let bias = layer.bias.as_ref().expect("with bias").val();
        let results = [
            values(y),
            values(x.grad_remove(&mut grads).expect("tracked")),
            values(layer.weight.val().grad(&grads).expect("tracked")),
            values(bias.grad(&grads).expect("tracked")),
        ];
        let grads = GradientsParams::from_grads(grads, &layer);
        // Weights stay as they are, so that both runs see the same numbers.
        layer = optimizer.step(0.0, layer, grads);
        let dot = &layer.dot;
        let state = [&dot.input, &dot.kernel, &dot.output_grad]
            .into_iter()
            .flat_map(|of| {
                let (scale, history) = state(of);
                [bits(&[scale]), bits(&history)].concat()
            })
            .collect();
        steps.push(Step { results, state });
    }
    steps
}

fn check<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(what: &str) {
    for shape in SHAPES {
        for dtype in DTYPES {
            let on_tensor_cores = train::<I, A>(&native::<I>(), shape, dtype, true);
            let expected = train::<I, A>(&emulated(), shape, dtype, false);
            for (index, (step, expected)) in on_tensor_cores.iter().zip(&expected).enumerate() {
                let what = format!("{what} {shape:?} {dtype:?} step {index}");
                assert_eq!(step.state, expected.state, "{what}: state");
                let all = step.results.iter().zip(&expected.results);
                for ((actual, expected), name) in all.zip(["y", "dx", "dw", "db"]) {
                    assert!(expected.iter().any(|value| *value != 0.0), "{what} {name}");
                    assert_close(actual, expected, 0.01, &format!("{what} {name}"));
                }
            }
        }
    }
}

fn follow_emulation<B: Fp8Matmul>()
where
    Autodiff<B>: AutodiffBackend + Fp8Matmul,
    Outer<B>: AutodiffBackend + Fp8Matmul,
{
    check::<B, Autodiff<B>>("layer");
    check::<B, Outer<B>>("layer within the decorator");
}

on_cuda_and_rehearsed!(follow_emulation);
