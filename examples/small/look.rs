//! Where FP8 hurts: an observatory measures, on every tenth step, how much of each product rounding to FP8 loses.

use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::report::{Observatory, ObservatoryOptions, named};
use burn_fp8::{Fp8Backend, Fp8Error};

type B = Fp8Backend<Autodiff<Flex>>;

const WIDTH: usize = 64;

fn main() -> Result<(), Fp8Error> {
    let device = Default::default();
    let mut model: [Linear<B>; 2] = [(); 2].map(|()| LinearConfig::new(WIDTH, WIDTH).init(&device));
    let mut optimizer = SgdConfig::new().init();
    // With a log, `cargo xtask report LOG.jsonl` makes a page of it: `with_log`.
    let observatory = Observatory::new(ObservatoryOptions::default().with_every(10))?;
    for _ in 0..50 {
        let x = Tensor::<B, 2>::random([32, WIDTH], Distribution::Normal(0.0, 1.0), &device);
        // One row is far from the others, as in inputs with outliers: its scale flushes small numbers to 0.
        let x = x.clone().slice_assign([0..1, 0..WIDTH], x.slice([0..1, 0..WIDTH]) * 1e6);
        let gradients = observatory.step(|| {
            let h = named("first", || model[0].forward(x)).tanh();
            let y = named("second", || model[1].forward(h));
            GradientsParams::from_grads(y.powi_scalar(2).mean().backward(), &model)
        });
        model = optimizer.step(1e-3, model, gradients);
    }
    // The product that FP8 fits worst comes first, with advice.
    println!("{}", observatory.report());
    Ok(())
}
