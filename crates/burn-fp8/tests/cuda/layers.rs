//! FP8 layers on tensor cores: the results of sums on the host, and the very state of Flax's formulas.

use crate::common::frozen::{Case, for_each_layer};
use crate::common::models::state;
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Way, assert_native, emulated_way, first, of_tensor_cores, rounded, trace_single_calls,
    typed, ways,
};

/// M, K, N: multiples of 16, and not.
const SHAPES: [[usize; 3]; 2] = [[64, 96, 80], [37, 100, 33]];
const STEPS: u64 = 6;
const HISTORY: usize = 3;

/// Of one step: result, gradients of input, weight and bias; and the bits of scales and histories after it.
type Step<R> = ([R; 4], Vec<u32>);

/// What goes through a layer: weight and bias stay, so that every step can be computed by itself; input and output gradient are of another
/// magnitude in each step, so that scales lag behind, and some of it saturates.
struct Data {
    shape: [usize; 3],
    dtype: FloatDType,
    parameters: [Vec<f32>; 2],
    steps: Vec<[Vec<f32>; 2]>,
}

impl Data {
    fn new(shape @ [m, k, n]: [usize; 3], dtype: FloatDType) -> Self {
        let mut random = Random(1);
        let mut normals = |count, magnitude: f32| {
            rounded(random.normals(count).iter().map(|x| x * magnitude).collect(), dtype)
        };
        let parameters = [normals(k * n, 1.0), normals(n, 1.0)];
        let steps = (0..STEPS as usize).map(|step| {
            let magnitude = [1.0, 8.0, 0.25, 50.0][step % 4];
            [normals(m * k, magnitude), normals(m * n, magnitude)]
        });
        Self { shape, dtype, parameters, steps: steps.collect() }
    }
}

fn train<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(
    data: &Data,
    way: &Way,
) -> Vec<Step<Vec<f32>>> {
    let Data { shape: [m, k, n], dtype, .. } = *data;
    let dot =
        Fp8DotGeneralConfig::new().with_amax_history_length(HISTORY).with_mode(DotMode::Direct);
    let mut layer: Fp8Linear<A> =
        Fp8LinearConfig::new(k, n).with_dot(dot).init(&Default::default());
    layer.weight = Param::from_tensor(typed(&data.parameters[0], [k, n], dtype));
    layer.bias = Some(Param::from_tensor(typed(&data.parameters[1], [n], dtype)));
    let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
    let steps = data.steps.iter().map(|[x, g]| {
        let x = typed::<A, 2>(x, [m, k], dtype).require_grad();
        let g = typed::<A, 2>(g, [m, n], dtype);
        let step = || {
            let y = layer.forward(x.clone());
            // The gradient of sum(y · g) with respect to y is g, exactly.
            (y.clone(), (y * g).sum().backward())
        };
        let ((y, grads), report) = trace(|| way.config.scope(step));
        if way.is_native {
            assert_native::<I>(&report, 3);
        }
        assert_eq!(y.dtype(), DType::from(dtype));
        let bias = layer.bias.as_ref().expect("with bias").val();
        let of_weight = grad(&layer.weight.val(), &grads);
        let results = [values(y), grad(&x, &grads), of_weight, grad(&bias, &grads)];
        let grads = GradientsParams::from_grads(grads, &layer);
        layer = optimizer.step(0.0, layer.clone(), grads);
        let states = [&layer.dot.input, &layer.dot.kernel, &layer.dot.output_grad].map(state);
        let states = states.map(|(scale, history)| [bits(&[scale]), bits(&history)].concat());
        (results, states.concat())
    });
    steps.collect()
}

/// Scale and amax history of an operand, by Flax's formulas.
struct Operand {
    format: Fp8Format,
    scale: f32,
    history: [f32; HISTORY],
}

impl Operand {
    /// Chooses the scale from the history as it was, notes the amax, and returns what a tensor of the type holds in FP8.
    fn quantize(&mut self, tensor: &[f32], dtype: FloatDType) -> Vec<f64> {
        let amax = fp8::amax(&self.history);
        self.scale = match amax > 0.0 {
            true => 1.0 / (fp8::largest(self.format) / amax),
            false => 1.0 / (1.0 / self.scale),
        };
        self.history.rotate_left(1);
        self.history[0] = fp8::amax(tensor);
        // In bf16 and f16 the divisor and the quotient are rounded to the type.
        let divisor = rounded(vec![self.scale], dtype)[0];
        let quotients = rounded(tensor.iter().map(|x| x / divisor).collect(), dtype);
        let scale = f64::from(self.scale);
        quotients.iter().map(|x| fp8::round(f64::from(*x), self.format) * scale).collect()
    }
}

/// Results and state of each step, on the host.
fn expected(data: &Data) -> Vec<Step<Exact>> {
    let Data { shape: shape @ [m, _, n], dtype, parameters: [weight, bias], .. } = data;
    let mut operands =
        [E4M3, E4M3, E5M2].map(|format| Operand { format, scale: 1.0, history: [0.0; HISTORY] });
    let steps = data.steps.iter().map(|[x, g]| {
        let mut tensors = [x, weight, g].into_iter();
        let held = operands
            .each_mut()
            .map(|operand| operand.quantize(tensors.next().expect("three"), *dtype));
        let [y, dx, dw] = Exact::step(held.each_ref().map(Vec::as_slice), *shape);
        let db = Exact::product(&vec![1.0; *m], &wide(g), [1, *m, *n]);
        let [y, dx, dw, db] = [y, dx, dw, db].map(|exact| exact.rounded(float(*dtype)));
        let y = y.plus_bias(bias).rounded(float(*dtype));
        let state = |operand: &Operand| [bits(&[operand.scale]), bits(&operand.history)].concat();
        ([y, dx, dw, db], operands.iter().flat_map(state).collect())
    });
    steps.collect()
}

fn check<I: Fp8Matmul, A: AutodiffBackend + Fp8Matmul>(what: &str) {
    for (shape, dtype) in SHAPES.into_iter().flat_map(|shape| DTYPES.map(|dtype| (shape, dtype))) {
        let data = Data::new(shape, dtype);
        let expected = expected(&data);
        for way in ways::<I>() {
            let steps = train::<I, A>(&data, &way).into_iter().zip(&expected);
            for (index, ((results, state), (exact, expected))) in steps.enumerate() {
                let what = format!("{} {what} {shape:?} {dtype:?} step {index}", way.name);
                assert_eq!(state, *expected, "{what}: state");
                // The gradient of the bias is a sum by Burn, in the type of the tensors.
                let sums = [way.sums, way.sums, way.sums, Sums::Of(float(dtype))];
                let all = results.iter().zip(exact).zip(sums);
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

/// Frozen layers with one scale for the weight and for the input: each product one call, on a weight that is moved once.
fn frozen_ones_match_sums_on_the_host<B: Fp8Matmul>() {
    // A batch of one, too.
    let shapes = [SHAPES[0], [1, 128, 64], SHAPES[1]];
    let activations = [ActivationScale::Current, ActivationScale::Static(0.003)];
    for_each_layer::<B>(first(&shapes, 2), &DTYPES, 2, &activations, |case| {
        let Case { layer, x, exact, what, .. } = case;
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
