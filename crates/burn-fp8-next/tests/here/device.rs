//! Unmodified models on a device whose products are in FP8.

use burn::module::{Module, Param};
use burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, relu, softmax};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Distribution, Gradients, Int, Tensor, TensorData};
use burn_fp8_next::nn::{ActivationScale, Fp8Linear, FrozenLinear};
use burn_fp8_next::{
    AttentionPrecision, Filter, Fp8Config, Fp8Error, Fp8Format, GemmRole, Recipe, Report, device,
    ops,
};

use crate::common::*;

const ROWS: usize = 32;
const INPUTS: usize = 48;
const HIDDEN: usize = 64;
const OUTPUTS: usize = 16;

fn random<const D: usize>(shape: [usize; D]) -> TensorData {
    Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex()).into_data()
}

/// Role, and the formats of both operands.
type Seen = (GemmRole, [Option<Fp8Format>; 2]);

fn seen(report: &Report) -> Vec<Seen> {
    let format =
        |operand: Option<burn_fp8_next::report::OperandReport>| operand.map(|it| it.format);
    let products = report.products.iter();
    products.map(|product| (product.role, [format(product.lhs), format(product.rhs)])).collect()
}

const OUTPUT: Seen = (GemmRole::Output, [Some(Fp8Format::E4M3), Some(Fp8Format::E4M3)]);
const GRAD_INPUT: Seen = (GemmRole::GradInput, [Some(Fp8Format::E5M2), Some(Fp8Format::E4M3)]);
const GRAD_WEIGHT: Seen = (GemmRole::GradWeight, [Some(Fp8Format::E4M3), Some(Fp8Format::E5M2)]);

/// Two layers of either kind: those have the same fields.
macro_rules! perceptron {
    ($name:ident, $layer:ty) => {
        #[derive(Module, Debug)]
        struct $name {
            hidden: $layer,
            output: $layer,
        }

        impl $name {
            fn forward(&self, x: Tensor<2>) -> Tensor<2> {
                self.output.forward(relu(self.hidden.forward(x)))
            }

            /// Losses, and all weights at the end.
            fn train(mut self, device: &Device, [x, y]: &[TensorData; 2]) -> [Vec<f32>; 2] {
                let [x, y] = [x, y].map(|data| Tensor::<2>::from_data(data.clone(), device));
                let mut losses = vec![];
                for _ in 0..20 {
                    let loss = (self.forward(x.clone()) - y.clone()).powi_scalar(2).mean();
                    losses.extend(values(loss.clone().inner()));
                    let gradients = ops::backward(loss);
                    for layer in [&mut self.hidden, &mut self.output] {
                        layer.weight = descend(layer.weight.clone(), &gradients);
                        layer.bias = layer.bias.take().map(|bias| descend(bias, &gradients));
                    }
                }
                let weights = [&self.hidden, &self.output].map(|layer| {
                    [values(layer.weight.val()), values(layer.bias.as_ref().unwrap().val())]
                });
                [losses, weights.concat().concat()]
            }
        }
    };
}
perceptron!(Plain, Linear);
perceptron!(Layers, Fp8Linear);

fn descend<const D: usize>(parameter: Param<Tensor<D>>, gradients: &Gradients) -> Param<Tensor<D>> {
    let gradient = parameter.val().grad(gradients).expect("it has one");
    parameter.map(|value| Tensor::from_inner(value.inner() - gradient * 0.1).require_grad())
}

/// One model of both kinds, with data for it. The first is on this device.
fn perceptrons(device: &Device) -> (Plain, Layers, [TensorData; 2]) {
    let local = Device::flex().autodiff();
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&local);
    let plain = Plain { hidden: layer(INPUTS, HIDDEN), output: layer(HIDDEN, OUTPUTS) };
    let layers = plain.clone();
    let layers = Layers { hidden: layers.hidden.into(), output: layers.output.into() };
    (plain.fork(device), layers, [random([ROWS, INPUTS]), random([ROWS, OUTPUTS])])
}

#[test]
fn a_training_is_that_of_the_layers_to_the_bit() {
    let recipes = [
        Recipe::current(),
        Recipe::rowwise(),
        Recipe::torchao_rowwise(),
        Recipe::mxfp8(),
        Recipe::blockwise(),
    ];
    for recipe in recipes {
        let config = Fp8Config::default().with_recipe(recipe);
        let device = device::flex_with(config).unwrap().autodiff();
        let (plain, layers, data) = perceptrons(&device);
        let (served, report) = device::trace(&device, || plain.train(&device, &data));
        assert_eq!((report.fp8().count(), report.high_precision().count()), (100, 0));
        let local = config.scope(|| layers.train(&Device::flex().autodiff(), &data));
        for (served, local) in served.iter().zip(&local) {
            assert_eq!(bits(served), bits(local), "{recipe:?}");
        }
    }
}

#[test]
fn each_layer_has_three_products_and_output_gradients_are_in_e5m2() {
    let device = device::flex().autodiff();
    let (model, _, [x, _]) = perceptrons(&device);
    let x = Tensor::<2>::from_data(x, &device).require_grad();
    let loss = || model.forward(x.clone()).powi_scalar(2).mean();

    let (_, report) = device::trace(&device, || ops::backward(loss()));
    assert_eq!(seen(&report), [OUTPUT, OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_INPUT, GRAD_WEIGHT]);
    // Nobody told the server: products like any other.
    let (_, report) = device::trace(&device, || loss().backward());
    assert_eq!(seen(&report), [OUTPUT; 6]);
    // What ran outside of a trace is in none.
    let (_, report) = device::trace(&device, || ());
    assert_eq!(seen(&report), []);
}

#[test]
fn a_validation_without_gradients_runs_forward_products() {
    let device = device::flex();
    let (model, _, [x, _]) = perceptrons(&device.clone().autodiff());
    let model = model.valid();
    let x = Tensor::<2>::from_data(x, &device);
    let (y, report) = device::trace(&device, || model.forward(x));
    assert_eq!(seen(&report), [OUTPUT, OUTPUT]);
    assert!(values(y).iter().all(|value| value.is_finite()));
}

#[test]
fn gradients_of_attention_are_in_e5m2_where_an_operand_was_transposed_before() {
    let config = Fp8Config::default().with_filter(Filter::every_matmul());
    let device = device::flex_with(config).unwrap().autodiff();
    let tensor = || Tensor::<4>::from_data(random([2, 2, 16, 16]), &device).require_grad();
    let (q, k, v) = (tensor(), tensor(), tensor());
    let (gradients, report) = device::trace(&device, || {
        let scores = softmax(q.clone().matmul(k.clone().swap_dims(2, 3)), 3);
        ops::backward(scores.matmul(v.clone()).powi_scalar(2).mean())
    });
    assert_eq!(seen(&report), [OUTPUT, OUTPUT, GRAD_INPUT, GRAD_WEIGHT, GRAD_INPUT, GRAD_WEIGHT]);
    for tensor in [q, k, v] {
        assert_eq!(tensor.grad(&gradients).unwrap().dims(), [2, 2, 16, 16]);
    }
}

#[test]
fn the_weight_of_a_batch_of_sequences_has_its_gradient_in_fp8_and_that_of_a_batch_of_products_not()
{
    let device = device::flex().autodiff();
    let tensor = |data| Tensor::<3>::from_data(data, &device).require_grad();
    let layer = LinearConfig::new(64, 64).init(&device);
    let (x, w) = (tensor(random([4, 64, 64])), tensor(random([4, 64, 64])));
    let (_, report) =
        device::trace(&device, || ops::backward(layer.forward(x.clone()).powi_scalar(2).mean()));
    assert_eq!(seen(&report), [OUTPUT, GRAD_INPUT, GRAD_WEIGHT]);
    let (_, report) =
        device::trace(&device, || ops::backward(x.clone().matmul(w.clone()).powi_scalar(2).mean()));
    assert_eq!((report.fp8().count(), report.high_precision().count()), (0, 3));

    // Both in one graph, of one input, and a second loss after the first one's backward pass.
    let narrow = LinearConfig::new(64, 32).init(&device);
    let products = || {
        let losses = [narrow.forward(x.clone()), x.clone().matmul(w.clone())];
        losses.map(|y| y.powi_scalar(2).mean())
    };
    let count = |run: &dyn Fn()| {
        let (_, report) = device::trace(&device, run);
        (report.fp8().count(), report.high_precision().count())
    };
    let together = || {
        let [one, other] = products();
        ops::backward(one + other);
    };
    assert_eq!(count(&together), (3, 3));
    let apart = || {
        let [one, other] = products();
        ops::backward(other);
        ops::backward(one);
    };
    assert_eq!(count(&apart), (3, 3));
    // Forward on one thread, backward on another one.
    let loss = narrow.forward(x.clone()).powi_scalar(2).mean();
    let elsewhere = || {
        std::thread::scope(|scope| {
            let backward = || device::trace(&device, || ops::backward(loss.clone())).1;
            scope.spawn(backward).join().expect("no panic")
        })
    };
    assert_eq!(elsewhere().fp8().count(), 2);
}

/// Attention asks for its products inside of its own operation.
#[test]
fn attention_is_traced_once() {
    use burn::tensor::module::attention;
    use burn::tensor::ops::AttentionModuleOptions;

    let config = Fp8Config::default().with_filter(Filter::every_matmul());
    let device = device::flex_with(config).unwrap();
    let [q, k, v] = [0; 3].map(|_| Tensor::<4>::from_data(random([2, 2, 16, 16]), &device));
    let attend = || attention(q, k, v, None, None, AttentionModuleOptions::default());
    let (_, report) = device::trace(&device, attend);
    assert_eq!(seen(&report), [OUTPUT; 2]);
}

/// GELU runs as one operation in both passes, layer normalization where no gradient is asked for.
#[test]
fn gelu_and_layer_norm_are_one_operation_each_where_attention_is() {
    let config = Fp8Config::off().with_attention(Some(AttentionPrecision::High));
    let device = device::flex_with(config).unwrap();
    let data = random([ROWS, INPUTS]);
    let run = |device: &Device| {
        let tracked = Tensor::<2>::from_data(data.clone(), &device.clone().autodiff());
        let tracked = tracked.require_grad();
        let gradients = ops::backward(gelu(tracked.clone()).powi_scalar(2).mean());
        let x = Tensor::<2>::from_data(data.clone(), device);
        let norm = LayerNormConfig::new(INPUTS).init(device);
        [gelu(x.clone()), tracked.grad(&gradients).unwrap(), norm.forward(x * 3.0 + 1.0)]
            .map(values)
    };
    let (ours, plain) = (run(&device), run(&Device::flex()));
    for (ours, plain) in ours.iter().zip(&plain) {
        // In another order, by another approximation.
        assert!(bits(ours) != bits(plain));
        for (x, y) in ours.iter().zip(plain) {
            assert!((x - y).abs() <= 2e-6 * (1.0 + y.abs()), "{x} {y}");
        }
    }
}

#[test]
fn burns_transformer_trains() {
    let device = device::flex().autodiff();
    let model = TransformerEncoderConfig::new(32, 64, 2, 2).with_dropout(0.0).init(&device);
    let x = Tensor::<3>::from_data(random([2, 16, 32]), &device);
    let (gradients, report) = device::trace(&device, || {
        let y = model.forward(TransformerEncoderInput::new(x.clone()));
        ops::backward(y.powi_scalar(2).mean())
    });
    // Six linear layers in each of two blocks; the input of the first three needs no gradient.
    let of = |role| report.fp8().filter(|product| product.role == role).count();
    assert_eq!(
        [of(GemmRole::Output), of(GemmRole::GradInput), of(GemmRole::GradWeight)],
        [12, 9, 12]
    );
    let weight = &model.layers[0].pwff.linear_inner.weight;
    assert!(values(weight.grad(&gradients).unwrap()).iter().all(|value| value.is_finite()));
}

#[test]
fn scopes_reach_the_server_by_this_module_and_others_are_refused_in_a_backward_pass() {
    let device = device::flex().autodiff();
    let (model, _, [x, _]) = perceptrons(&device);
    let x = Tensor::<2>::from_data(x, &device);
    let loss = || model.forward(x.clone()).powi_scalar(2).mean();
    let off = Fp8Config::off();
    let (_, report) =
        device::trace(&device, || device::scope(&device, &off, || ops::backward(loss())));
    assert_eq!((report.fp8().count(), report.high_precision().count()), (0, 5));

    says(panic_of(|| device::scope(&device, &off, || panic!("on purpose"))), ["on purpose"]);
    let (_, report) = device::trace(&device, loss);
    assert_eq!(seen(&report), [OUTPUT; 2]);

    let refused = panic_of(|| off.scope(|| ops::backward(loss())));
    says(refused, ["use device::scope and device::trace"]);
}

#[test]
fn threads_and_devices_do_not_disturb_each_other() {
    let devices = [
        device::flex(),
        device::flex_with(Fp8Config::default().with_recipe(Recipe::rowwise())).unwrap(),
    ];
    assert_eq!(devices[0], device::flex());
    assert_ne!(devices[0], devices[1]);
    let runs = [0, 1, 0, 1].map(|at| {
        let device = devices[at].clone().autodiff();
        let (plain, _, data) = perceptrons(&device);
        let alone = plain.clone().train(&device, &data);
        (device, plain, data, alone)
    });
    std::thread::scope(|scope| {
        for (device, plain, data, alone) in runs {
            scope.spawn(move || {
                let train = || plain.train(&device, &data);
                let (trained, report) = device::trace(&device, train);
                assert_eq!(trained, alone);
                assert_eq!((report.fp8().count(), report.high_precision().count()), (100, 0));
            });
        }
        // Neither does a thread in another scope.
        let device = devices[0].clone().autodiff();
        let (plain, _, data) = perceptrons(&device);
        let train = || device::scope(&device, &Fp8Config::off(), || plain.train(&device, &data));
        let (_, report) = device::trace(&device, train);
        assert_eq!((report.fp8().count(), report.high_precision().count()), (0, 100));
    });
}

#[test]
fn delayed_scaling_is_refused() {
    let config = Fp8Config::default().with_recipe(Recipe::delayed());
    let Err(Fp8Error::InvalidConfig(reason)) = device::flex_with(config) else {
        panic!("not refused")
    };
    says(reason, ["delayed scaling", "nn::Fp8Linear"]);
}

#[test]
fn everything_else_is_what_flex_does() {
    let [image, kernel] = [random([2, 3, 8, 8]), random([4, 3, 3, 3])];
    let all = |device: &Device| {
        let image = Tensor::<4>::from_data(image.clone(), device);
        let kernel = Tensor::<4>::from_data(kernel.clone(), device);
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        let y = conv2d(image.clone(), kernel, None, options);
        let indices = Tensor::<4, Int>::from_data([[[[2, 0, 1]]]], device).expand([2, 3, 8, 3]);
        let gathered = image.clone().gather(3, indices.clone());
        let mask = image.clone().greater_elem(0.0);
        let masked = image.clone().mask_fill(mask.clone(), 7.0).sort(3);
        let ints = (indices * 3 + mask.int().slice([0..2, 0..3, 0..8, 0..3])).max_dim(3);
        let floats =
            [softmax(y, 1), gathered, masked, image.tanh()].map(|it| it.flatten::<1>(0, 3));
        (floats.map(|it| bits(&values(it))).to_vec(), ints.into_data().convert::<i64>())
    };
    assert_eq!(all(&device::flex()), all(&Device::flex()));
}

/// What is made for Flex runs on the device as well, or says why not.
#[test]
fn layers_and_products_run_on_the_device_and_frozen_ones_are_refused() {
    let device = device::flex();
    let x = Tensor::<2>::from_data(random([ROWS, INPUTS]), &device);
    let linear: Linear = LinearConfig::new(INPUTS, HIDDEN).init(&device);
    let layer = Fp8Linear::from(linear.clone());
    let (y, report) = device::trace(&device, || layer.forward(x.clone()));
    assert_eq!(seen(&report), [OUTPUT]);
    assert_eq!(values(y), values(linear.forward(x.clone())));
    let weight = linear.weight.val();
    assert_eq!(values(ops::matmul(x.clone(), weight.clone())), values(x.clone().matmul(weight)));

    let weight = Tensor::<2>::from_data(random([INPUTS, HIDDEN]), &Device::flex());
    let frozen = FrozenLinear::from_weight(weight, None, ActivationScale::Current).unwrap();
    says(panic_of(|| frozen.forward(x)), ["runs on Device::flex()"]);
}
