//! The golden file `flax_sequences` through a layer and its optimizer: the state freezes at an infinity and a NaN and recovers when they
//! have left the history, as in Flax.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::{DotMode, Fp8DotGeneralConfig, Fp8Linear, Fp8LinearConfig, Fp8State};
use burn_fp8::optim::Fp8Optimizer;
use common::Outer;
use common::golden::{Golden, assert_same, exact};

const STEPS: usize = 12;

/// Which operand of the layer the tensors of a sequence become.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// `x` of an `in_qdq` in E4M3.
    Input,
    /// The cotangent of an `out_qdq` in E5M2.
    OutputGrad,
}

impl Part {
    fn state<B: AutodiffBackend>(self, layer: &Fp8Linear<B>) -> &Fp8State<B> {
        match self {
            Self::Input => &layer.dot.input,
            Self::OutputGrad => &layer.dot.output_grad,
        }
    }
}

fn run<B: AutodiffBackend + Fp8Matmul>(part: Part, mode: DotMode) -> usize {
    let golden = Golden::open("flax_sequences");
    let prefix = match part {
        Part::Input => "in_qdq.e4m3fn.",
        Part::OutputGrad => "out_qdq.e5m2.",
    };
    let cases = golden.cases().into_iter().filter(|case| {
        case["dtype"] == "f32" && case["name"].as_str().is_some_and(|name| name.starts_with(prefix))
    });
    let mut ran = 0;
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let steps = case["H"].as_u64().expect("a number") as usize;
        let dot = Fp8DotGeneralConfig::new().with_amax_history_length(steps).with_mode(mode);
        let config = Fp8LinearConfig::new(5, 5).with_dot(dot);
        let mut layer = config.init::<B>(&Default::default());
        let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
        for step in 0..STEPS {
            let given = |what: &str| exact::<B, 2>(golden.entry(&format!("{name}/{what}"), step));
            let ones = Tensor::<B, 2>::ones([3, 5], &Default::default());
            let (x, g) = match part {
                Part::Input => (given("x"), ones),
                Part::OutputGrad => (ones, given("g")),
            };
            // The gradient of sum(y · g) with respect to y is g, exactly.
            let grads = (layer.forward(x) * g).sum().backward();
            let grads = GradientsParams::from_grads(grads, &layer);
            layer = optimizer.step(0.0, layer, grads);
            let state = part.state(&layer);
            for (what, param) in [("scale", &state.scale), ("amax_history", &state.amax_history)] {
                let expected = golden.entry(&format!("{name}/{what}"), step + 1);
                let what = format!("{name} {part:?} {mode:?} step {step} {what}");
                assert_same(param.val(), &expected, &what);
            }
        }
        ran += 1;
    }
    ran
}

#[test]
fn the_state_of_a_layer_freezes_and_recovers_as_in_flax() {
    for part in [Part::Input, Part::OutputGrad] {
        for mode in [DotMode::Direct, DotMode::QuantizeDequantize] {
            // Histories of 1, 4, 16 and 1024 steps.
            assert_eq!(run::<Autodiff<Flex>>(part, mode), 4);
            assert_eq!(run::<Outer<Flex>>(part, mode), 4);
            #[cfg(feature = "ndarray")]
            assert_eq!(run::<Autodiff<burn::backend::NdArray>>(part, mode), 4);
        }
    }
}
