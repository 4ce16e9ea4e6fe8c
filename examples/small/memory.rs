//! Where the memory of a training goes: a table of its phases, with activations saved in f32 and in FP8; a picture with a file name.

use std::{env, fs, io, thread};

use burn::backend::{Autodiff, Flex};
use burn::module::Module;
use burn::nn::RmsNormConfig;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::fused::nn::{FusedMlp, FusedMlpConfig, FusedRmsNorm};
use burn_fp8::report::memory::{Counting, Profile};
use burn_fp8::{Fp8Backend, Fp8Config, Saved};

type B = Fp8Backend<Autodiff<Flex>>;

const WIDTH: usize = 128;

/// It counts for the whole program.
#[global_allocator]
static MEMORY: Counting = Counting;

#[derive(Module, Debug)]
struct Layer<B: Backend> {
    norm: FusedRmsNorm<B>,
    mlp: FusedMlp<B>,
}

/// On a thread of its own, which finds no buffers of the one before.
fn profile(saved: Saved) -> Profile {
    let config = Fp8Config::default().with_saved(saved);
    thread::spawn(move || config.scope(train)).join().expect("it trains")
}

fn train() -> Profile {
    let device = Default::default();
    let mut profile = Profile::start();
    let model: Vec<Layer<B>> = (0..6)
        .map(|_| Layer {
            norm: RmsNormConfig::new(WIDTH).init(&device).into(),
            mlp: FusedMlpConfig::swiglu(WIDTH, 2 * WIDTH).init(&device),
        })
        .collect();
    // Burn makes parameters where they are used first: here.
    let mut model = model.to_device(&device);
    let input = Tensor::<B, 2>::random([1024, WIDTH], Distribution::Default, &device);
    let forward = |model: &[Layer<B>]| {
        let layer = |x: Tensor<B, 2>, layer: &Layer<B>| {
            x.clone() + layer.mlp.forward(layer.norm.forward(x))
        };
        model.iter().fold(input.clone(), layer).powi_scalar(2).mean()
    };
    profile.mark("weights");
    let mut optimizer = AdamWConfig::new().init();
    // The first step makes moments and buffers, of which a thread keeps up to 64 MiB for the next: all that this small training needs. The last step counts.
    for _step in 0..3 {
        let gradients = GradientsParams::from_grads(forward(&model).backward(), &model);
        profile.mark("backward");
        model = optimizer.step(1e-3, model, gradients);
        profile.mark("step");
    }
    profile
}

fn main() -> io::Result<()> {
    println!("{}", profile(Saved::Whole));
    let in_fp8 = profile(Saved::Fp8);
    println!("{in_fp8}");
    match env::args().nth(1) {
        Some(file) => fs::write(file, in_fp8.to_svg("Memory of a training step")),
        None => Ok(()),
    }
}
