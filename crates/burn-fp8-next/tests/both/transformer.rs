//! Burn's own transformer layer, one step, from the same weights: under the decorator on Burn 0.21, and on the device here.

/// Numbers of two magnitudes; other ones for each parameter.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |i: usize| ((i + seed * 7919) * 2654435761 % 1009) as f32 / 1009.0 - 0.5;
    (0..count).map(|i| number(i) * if i % 13 == 0 { 0.7 } else { 0.3 }).collect()
}

const INPUT: [usize; 3] = [4, 16, 32];
const FEED_FORWARD: usize = 64;

/// What a step came to.
struct Step {
    loss: f32,
    /// The gradients of all parameters, in the order of the module.
    gradients: Vec<Vec<f32>>,
    /// How many products ran in FP8.
    in_fp8: usize,
}

/// The step is the same; Burn's types have a backend, or none.
macro_rules! step {
    ($burn:ident, $($backend:ident)?) => {
        use super::{FEED_FORWARD, INPUT, Step, numbers};
        use $burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
        use $burn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
        use $burn::tensor::TensorData;

        struct Set(usize);

        impl ModuleMapper$(<$backend>)? for Set {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                self.0 += 1;
                let seed = self.0;
                param.map(|tensor| {
                    let shape = tensor.shape();
                    let data = TensorData::new(numbers(seed, shape.num_elements()), shape);
                    Tensor::from_data(data, &tensor.device()).require_grad()
                })
            }
        }

        struct Read<'a>(&'a Gradients, Vec<Vec<f32>>);

        impl ModuleVisitor$(<$backend>)? for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad(self.0).expect("reached");
                self.1.push(gradient.into_data().iter::<f32>().collect());
            }
        }

        pub fn step() -> Step {
            let device = device();
            let config = TransformerEncoderConfig::new(INPUT[2], FEED_FORWARD, 2, 1);
            let model = config.with_dropout(0.0).init$(::<$backend>)?(&device).map(&mut Set(0));
            let data = TensorData::new(numbers(99, INPUT.iter().product()), INPUT);
            let x = Tensor::<3>::from_data(data, &device);
            let ((loss, gradients), in_fp8) = traced(&device, || {
                let y = model.forward(TransformerEncoderInput::new(x));
                let loss = y.powi_scalar(2).mean();
                (loss.clone(), backward(loss))
            });
            let mut read = Read(&gradients, vec![]);
            model.visit(&mut read);
            let loss = loss.into_data().iter::<f32>().next().expect("one number");
            Step { loss, gradients: read.1, in_fp8 }
        }
    };
}

mod old {
    use burn_021::backend::{Autodiff, Flex};
    use burn_021::tensor::backend::AutodiffBackend;

    type B = burn_fp8::Fp8Backend<Autodiff<Flex>>;
    type Tensor<const D: usize> = burn_021::tensor::Tensor<B, D>;
    type Gradients = <B as AutodiffBackend>::Gradients;
    type Device = burn_021::tensor::Device<B>;

    fn device() -> Device {
        Device::default()
    }

    fn backward(loss: Tensor<1>) -> Gradients {
        loss.backward()
    }

    fn traced<R>(_device: &Device, run: impl FnOnce() -> R) -> (R, usize) {
        let (result, report) = burn_fp8::trace(run);
        (result, report.fp8().count())
    }

    step!(burn_021, B);
}

mod new {
    use burn::tensor::{Device, Gradients, Tensor};
    use burn_fp8_next::{device, ops};

    fn device() -> Device {
        device::flex().autodiff()
    }

    fn backward(loss: Tensor<1>) -> Gradients {
        ops::backward(loss)
    }

    fn traced<R>(device: &Device, run: impl FnOnce() -> R) -> (R, usize) {
        let (result, report) = device::trace(device, run);
        (result, report.fp8().count())
    }

    step!(burn,);
}

#[test]
fn a_transformer_layer_has_the_gradients_that_it_has_on_burn_021() {
    let (old, new) = (old::step(), new::step());
    // Four products of attention's layers, two of the rest, each with its two gradients; the input has none, so three layers lack one.
    assert_eq!([old.in_fp8, new.in_fp8], [15, 15]);
    assert!((old.loss - new.loss).abs() <= 1e-6 * old.loss, "{} and {}", old.loss, new.loss);
    assert_eq!(old.gradients.len(), new.gradients.len());
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    let largest = old
        .gradients
        .iter()
        .map(|gradient| norm(&mut gradient.iter().copied()))
        .fold(0.0, f64::max);
    for (index, (old, new)) in old.gradients.iter().zip(&new.gradients).enumerate() {
        let error = norm(&mut old.iter().zip(new).map(|(old, new)| old - new));
        let size = norm(&mut old.iter().copied());
        // The bias of the keys moves no softmax: its gradient is what rounding leaves.
        let bound = 1e-6 * size.max(1e-3 * largest);
        assert!(size > 0.0 && error <= bound, "parameter {index}: {error:e} of {size:e}");
    }
}
