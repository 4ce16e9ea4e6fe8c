//! FP8 layers on tensor cores: the results of sums on the host, and the very state of Flax's formulas.

use crate::common::frozen::for_each_layer;
use crate::common::models::state;
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Way, assert_native, emulated_way, first, normal, of_tensor_cores, rounded,
    trace_single_calls, typed, ways,
};

/// M, K, N: multiples of 16, and not.
const SHAPES: [[usize; 3]; 2] = [[64, 96, 80], [37, 100, 33]];
const STEPS: u64 = 6;
const HISTORY: usize = 3;

/// Of one step: result, gradients of input, weight and bias; and the bits of scales and histories after it.
struct Step {
    results: [Vec<f32>; 4],
    state: Vec<u32>,
}

/// What goes through a layer. Weights stay as they are, so that every step can be computed by itself.
struct Data {
    shape: [usize; 3],
    dtype: FloatDType,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Data {
    fn new(shape @ [_, k, n]: [usize; 3], dtype: FloatDType) -> Self {
        let [weight, bias] = [normal(1, k * n), normal(2, n)].map(|data| rounded(data, dtype));
        Self { shape, dtype, weight, bias }
    }

    /// Input and output gradient of a step. Of another magnitude each time: scales lag behind, and some of it saturates.
    fn of_step(&self, step: u64) -> [Vec<f32>; 2] {
        let [m, k, n] = self.shape;
        let magnitude = [1.0, 8.0, 0.25, 50.0][(step % 4) as usize];
        [(3, m * k), (4, m * n)].map(|(seed, count)| {
            let data = normal(10 * step + seed, count).iter().map(|x| x * magnitude).collect();
            rounded(data, self.dtype)
        })
    }
}

fn train<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(data: &Data, way: &Way) -> Vec<Step> {
    let Data { shape: [m, k, n], dtype, .. } = *data;
    let dot =
        Fp8DotGeneralConfig::new().with_amax_history_length(HISTORY).with_mode(DotMode::Direct);
    let mut layer: Fp8Linear<A> =
        Fp8LinearConfig::new(k, n).with_dot(dot).init(&Default::default());
    layer.weight = Param::from_tensor(typed(&data.weight, [k, n], dtype));
    layer.bias = Some(Param::from_tensor(typed(&data.bias, [n], dtype)));
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
    let mut steps = vec![];
    for step in 0..STEPS {
        let [x, g] = data.of_step(step);
        let x = typed::<A, 2>(&x, [m, k], dtype).require_grad();
        let g = typed::<A, 2>(&g, [m, n], dtype);
        let ((y, mut grads), report) = trace(|| {
            way.config.scope(|| {
                let y = layer.forward(x.clone());
                // The gradient of sum(y · g) with respect to y is g, exactly.
                (y.clone(), (y * g).sum().backward())
            })
        });
        if way.is_native {
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

/// Scale and amax history of an operand, by Flax's formulas.
struct Operand {
    format: Fp8Format,
    scale: f32,
    history: [f32; HISTORY],
}

impl Operand {
    fn new(format: Fp8Format) -> Self {
        Self { format, scale: 1.0, history: [0.0; HISTORY] }
    }

    /// Chooses the scale from the history as it was, notes the amax, and returns what a tensor of the type holds in FP8.
    fn quantize(&mut self, tensor: &[f32], dtype: FloatDType) -> Vec<f64> {
        let amax = self.history.iter().fold(0f32, |largest, amax| largest.max(*amax));
        self.scale = match amax > 0.0 {
            true => 1.0 / (reference::largest(self.format) / amax),
            false => 1.0 / (1.0 / self.scale),
        };
        self.history.rotate_left(1);
        self.history[0] = reference::amax(tensor);
        // In bf16 and f16 the divisor and the quotient are rounded to the type.
        let divisor = rounded(vec![self.scale], dtype)[0];
        let quotients = rounded(tensor.iter().map(|x| x / divisor).collect(), dtype);
        let scale = f64::from(self.scale);
        let held = |x: &f32| reference::round(f64::from(*x), self.format) * scale;
        quotients.iter().map(held).collect()
    }

    fn bits(&self) -> Vec<u32> {
        [bits(&[self.scale]), bits(&self.history)].concat()
    }
}

/// Results and state of each step, on the host.
fn expected(data: &Data) -> Vec<([Exact; 4], Vec<u32>)> {
    let Data { shape: shape @ [m, _, n], dtype, weight, bias } = data;
    let dtype = *dtype;
    let mut operands = [E4M3, E4M3, E5M2].map(Operand::new);
    let steps = (0..STEPS).map(|step| {
        let [x, g] = data.of_step(step);
        let mut tensors = [&x, weight, &g].into_iter();
        let held = operands.each_mut().map(|operand| {
            operand.quantize(tensors.next().expect("a tensor for each operand"), dtype)
        });
        let [y, dx, dw] = exact_step(held.each_ref().map(Vec::as_slice), *shape)
            .map(|product| product.rounded(dtype));
        let db = Exact::product(&vec![1.0; *m], &wide(&g), [1, *m, *n]).rounded(dtype);
        let y = y.plus_bias(bias).rounded(dtype);
        ([y, dx, dw, db], operands.iter().flat_map(Operand::bits).collect())
    });
    steps.collect()
}

fn check<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(what: &str) {
    for (shape, dtype) in SHAPES.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        let data = Data::new(shape, dtype);
        let expected = expected(&data);
        for way in ways::<I>() {
            let steps = train::<I, A>(&data, &way);
            assert_eq!(steps.len(), expected.len());
            for (index, (step, (exact, state))) in steps.iter().zip(&expected).enumerate() {
                let what = format!("{} {what} {shape:?} {dtype:?} step {index}", way.name);
                assert_eq!(step.state, *state, "{what}: state");
                // The gradient of the bias is a sum by Burn, in the type of the tensors.
                let sums = [way.sums, way.sums, way.sums, Sums::Of(dtype)];
                let all = step.results.iter().zip(exact).zip(sums);
                for (((actual, exact), sums), name) in all.zip(["y", "dx", "dw", "db"]) {
                    assert!(exact.values.iter().any(|value| *value != 0.0), "{what} {name}");
                    exact.assert(actual, sums, &format!("{what} {name}"));
                }
            }
        }
    }
}

fn match_sums_on_the_host<B: Fp8Matmul>()
where
    Autodiff<B>: AutodiffBackend + Fp8Matmul,
    Outer<B>: AutodiffBackend + Fp8Matmul,
{
    check::<B, Autodiff<B>>("layer");
    check::<B, Outer<B>>("layer within the decorator");
}

/// Frozen layers: each product one call, on a weight that is moved once.
fn frozen_ones_match_sums_on_the_host<B: Fp8Matmul>() {
    // A batch of one, too.
    let shapes = [SHAPES[0], [1, 128, 64], SHAPES[1]];
    for_each_layer::<B>(first(&shapes, 2), &DTYPES, |layer, x, exact, what| {
        let (codes, dtype) = (layer.tensor().to_bytes(), x.dtype());
        // Emulated, then natively twice: on a weight that lies as emulation left it, and as the first product did. Then emulated again.
        let native = of_tensor_cores::<B>;
        for way in [emulated_way(), native(), native(), emulated_way()] {
            let forward = || way.config.scope(|| layer.forward(x.clone()));
            let (y, report) = trace_single_calls::<B, _>(forward);
            if way.is_native {
                assert_native::<B>(&report, 1);
            }
            assert_eq!(y.dtype(), dtype);
            exact.assert(&values(y), way.sums, &format!("{} {what}", way.name));
        }
        assert_eq!(layer.tensor().to_bytes(), codes);
    });
}

on_cuda_and_rehearsed!([match_sums_on_the_host, frozen_ones_match_sums_on_the_host]);
