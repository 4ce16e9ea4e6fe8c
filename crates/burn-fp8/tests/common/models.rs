//! A small model, plain and with FP8 layers.

use burn::module::ModuleVisitor;
use burn_fp8::nn::Fp8State;

use super::*;

#[derive(Module, Debug)]
pub struct Net<B: Backend> {
    pub first: Linear<B>,
    pub second: Linear<B>,
}

#[derive(Module, Debug)]
pub struct Fp8Net<B: Backend> {
    pub first: Fp8Linear<B>,
    pub second: Fp8Linear<B>,
}

pub fn net<B: Backend>() -> Net<B> {
    let device = Default::default();
    initialized(Net {
        first: LinearConfig::new(6, 5).init(&device),
        second: LinearConfig::new(5, 3).with_bias(false).init(&device),
    })
}

/// Burn initializes a weight when it is first used, and clones made before that each for itself.
pub fn initialized<B: Backend, M: Module<B>>(module: M) -> M {
    let _ = parameters(&module);
    module
}

pub fn dot() -> Fp8DotGeneralConfig {
    Fp8DotGeneralConfig::new().with_amax_history_length(4)
}

pub fn fp8_net<B: Backend>() -> Fp8Net<B> {
    let device = Default::default();
    initialized(Fp8Net {
        first: Fp8LinearConfig::new(6, 5).with_dot(dot()).init(&device),
        second: Fp8LinearConfig::new(5, 3).with_bias(false).with_dot(dot()).init(&device),
    })
}

impl<B: Fp8Matmul> Fp8Net<B> {
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.second.forward(burn::tensor::activation::relu(self.first.forward(x)))
    }
}

pub fn batch<B: Backend>(seed: u64) -> Tensor<B, 2> {
    tensor(&Random(seed).spread(7 * 6), [7, 6])
}

pub fn step<B: AutodiffBackend + Fp8Matmul>(
    net: Fp8Net<B>,
    optimizer: &mut impl Optimizer<Fp8Net<B>, B>,
    seed: u64,
) -> Fp8Net<B> {
    let y = net.forward(batch(seed));
    let grads = (y.clone() * y).mean().backward();
    let grads = GradientsParams::from_grads(grads, &net);
    optimizer.step(0.05, net, grads)
}

/// Names and bits of every float parameter of a model.
pub fn parameters<B: Backend>(module: &impl Module<B>) -> Vec<(String, Vec<u32>)> {
    #[derive(Default)]
    struct Collect(Vec<String>, Vec<(String, Vec<u32>)>);
    impl<B: Backend> ModuleVisitor<B> for Collect {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.1.push((self.0.join("."), bits(&values(param.val()))));
        }
    }
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.1
}

pub fn state<B: Backend>(state: &Fp8State<B>) -> (f32, Vec<f32>) {
    (values(state.scale.val())[0], values(state.amax_history.val()))
}
