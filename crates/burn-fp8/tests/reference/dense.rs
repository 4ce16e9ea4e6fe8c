//! The golden files `dense_*`: eight steps of SGD on Flax's `Dense` with FP8, free-running from each of them on.

use burn_fp8::nn::{Fp8DotGeneralRecord, Fp8StateRecord};

use crate::common::golden::exact;
use crate::common::*;

const STEPS: usize = 8;
const TOLERANCE: f32 = 1e-5;

fn floats(data: TensorData) -> Vec<f32> {
    data.to_vec().expect("golden data of f32")
}

/// From step `start` on, with the parameters and the state that Flax had then.
fn run<B, const D: usize>(op: &str, mode: DotMode, name: &str, start: usize)
where
    B: AutodiffBackend<InnerBackend: Fp8Matmul> + Fp8Matmul,
{
    let golden = golden(&format!("dense_{op}"));
    let entry = |what: &str, step| golden.entry(&format!("{name}/{what}"), step);
    let kernel = entry("param/kernel", start);
    let [d_input, d_output] = kernel.shape.dims();
    let steps = entry("fp8/input_amax_history", 0).num_elements();
    let dot = Fp8DotGeneralConfig::new().with_amax_history_length(steps).with_mode(mode);
    let mut layer: Fp8Linear<B> =
        Fp8LinearConfig::new(d_input, d_output).with_dot(dot).init(&Default::default());
    layer.weight = layer.weight.map(|_| exact(kernel).require_grad());
    layer.bias =
        layer.bias.map(|bias| bias.map(|_| exact(entry("param/bias", start)).require_grad()));
    let state = |operand: &str| {
        let part = |part: &str| floats(entry(&format!("fp8/{operand}_{part}"), start));
        Some(Fp8StateRecord { scale: part("scale")[0], amax_history: part("amax_history") })
    };
    let record = Fp8DotGeneralRecord {
        input: state("input"),
        kernel: state("kernel"),
        output_grad: state("output_grad"),
    };
    layer.dot = layer.dot.load_record(Some(record));
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());

    for step in start..STEPS {
        let close = |actual: Vec<f32>, part: &str, step| {
            let what = format!("{op} {name} step {step} from {start} {part}");
            assert_close(&actual, &floats(entry(part, step)), TOLERANCE, &what);
        };
        let x = exact::<B, D>(entry("x", step)).require_grad();
        let y = layer.forward(x.clone());
        close(values(y.clone()), "y", step);
        if step > 0 {
            // Without gradients the same state gives the same numbers.
            let x = exact::<B, D>(entry("x", step));
            close(values(layer.valid().forward(x.clone().inner())), "y", step);
            close(values(layer.clone().no_grad().forward(x)), "y", step);
        }
        let error = y - exact::<B, D>(entry("target", step));
        let loss = (error.clone() * error).mean();
        close(values(loss.clone()), "loss", step);
        let bias = |layer: &Fp8Linear<B>| layer.bias.clone().expect("a bias").val();
        let grads = loss.backward();
        close(grad(&x, &grads), "grad/x", step);
        close(grad(&layer.weight.val(), &grads), "grad/kernel", step);
        close(grad(&bias(&layer), &grads), "grad/bias", step);

        let grads = GradientsParams::from_grads(grads, &layer);
        layer = optimizer.step(0.05, layer, grads);
        close(values(layer.weight.val()), "param/kernel", step + 1);
        close(values(bias(&layer)), "param/bias", step + 1);
        let dot = &layer.dot;
        for (operand, state) in
            [("input", &dot.input), ("kernel", &dot.kernel), ("output_grad", &dot.output_grad)]
        {
            for (part, param) in [("scale", &state.scale), ("amax_history", &state.amax_history)] {
                let expected = floats(entry(&format!("fp8/{operand}_{part}"), step + 1));
                let actual = values(param.val());
                assert_eq!(actual.len(), expected.len());
                // Equal to one unit in the last place.
                let near = |(a, e): (&f32, &f32)| a.to_bits().abs_diff(e.to_bits()) <= 1;
                let is_same = actual.iter().zip(&expected).all(near);
                assert!(is_same, "{op} {name} step {step} {operand}: {actual:?} {expected:?}");
            }
        }
    }
}

fn run_all<B: AutodiffBackend<InnerBackend: Fp8Matmul> + Fp8Matmul>() {
    let modes = [
        ("Fp8DotGeneralOp", DotMode::QuantizeDequantize),
        ("Fp8DirectDotGeneralOp", DotMode::Direct),
    ];
    for (op, mode) in modes {
        let names = golden(&format!("dense_{op}")).case_names("cases");
        assert_eq!(names, ["h1024", "h4"], "every case runs");
        for start in 0..STEPS {
            run::<B, 2>(op, mode, "h1024", start);
            run::<B, 3>(op, mode, "h4", start);
        }
    }
}

fn autodiff_trains_as_flax_in_every_order<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    run_all::<Autodiff<B>>();
    run_all::<Outer<B>>();
    run_all::<Inner<B>>();
}

tests_on_cpu!([autodiff_trains_as_flax_in_every_order]);
