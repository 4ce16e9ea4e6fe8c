//! How much memory operations take: attention no table of scores, whose size is the square of the length; others what their backward steps need. Each test is alone
//! in its process, since the allocator counts for all of it.

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::fused::nn::MlpActivation::Silu;
use burn_fp8::fused::ops::{AttentionOptions, attention, dropout, gated, rms_norm};
use burn_fp8::report::memory::{Counting, Profile};
use burn_fp8::{AttentionPrecision, Fp8Backend, Fp8Config, Saved};
use burn_fp8_test_support::alone;

#[global_allocator]
static MEMORY: Counting = Counting;

/// Forward and backward, with queries, keys, values and the output and its gradient alive: 6 times the first three would be one array of
/// the size of the inputs for each of the three, for the output, and for its gradient, and one more.
#[test]
fn attention_takes_at_most_six_times_its_inputs() {
    alone(attention_of_long_rows);
}

fn attention_of_long_rows() {
    type B = Autodiff<Flex>;
    let shape = [2, 8, 4096, 64];
    let inputs = 3 * shape.iter().product::<usize>() * size_of::<f32>();
    for precision in AttentionPrecision::ALL {
        let mut profile = Profile::start();
        let operand = || Tensor::<B, 4>::random(shape, Distribution::Default, &Default::default());
        let [q, k, v] = [(); 3].map(|()| operand().require_grad());
        let options = AttentionOptions { causal: true, precision, ..AttentionOptions::default() };
        let output = attention(q.clone(), k.clone(), v.clone(), options);
        let grads = output.sum().backward();
        let reached = [&q, &k, &v].map(|leaf| leaf.grad(&grads).expect("it was used").dims());
        assert_eq!(reached, [shape; 3]);
        profile.mark("attention");
        let ratio = profile.peak() as f64 / inputs as f64;
        println!("attention in {precision}: {ratio:.2} times its inputs of {} MiB", inputs >> 20);
        // One table of scores of one head would be 1.3 times the inputs; of all heads, 21 times.
        assert!((1.0..=6.0).contains(&ratio), "{precision}: {ratio:.2} times the inputs");
    }
}

type B = Fp8Backend<Autodiff<Flex>>;

/// Smaller than the memory that is kept to be used again.
const SHAPE: [usize; 2] = [96, 128];

/// What is held of inputs of an operation for its backward step, in inputs: all that a forward pass leaves, but for the result.
fn kept<const N: usize>(saved: Saved, run: impl Fn([Tensor<B, 2>; N]) -> Tensor<B, 2>) -> f64 {
    let leaf = || Tensor::random(SHAPE, Distribution::Default, &Default::default()).require_grad();
    let leaves = [(); N].map(|()| leaf());
    let forward = || {
        let mut profile = Profile::start();
        let inputs = leaves.clone().map(|leaf| leaf.mul_scalar(2.0));
        let result = Fp8Config::default().with_saved(saved).scope(|| run(inputs));
        profile.mark("forward");
        drop(result);
        profile.at("forward").held
    };
    // The first pass makes what all use. The allocator counts for the thread that runs tests, too, which may take some in one pass: the median is none of those.
    forward();
    let mut held = [(); 5].map(|()| forward());
    held.sort_unstable();
    held[2] as f64 / (SHAPE.iter().product::<usize>() * size_of::<f32>()) as f64 - 1.0
}

#[test]
fn operations_keep_their_inputs_or_their_codes_and_dropout_nothing() {
    alone(|| {
        let norm = |[x]: [_; 1]| rms_norm(x, Tensor::ones([SHAPE[1]], &Default::default()), 1e-5);
        let near = |kept: f64, inputs: f64| {
            println!("{kept:.3} inputs are kept, of {inputs}");
            // The graph takes a little.
            assert!((inputs..inputs + 0.15).contains(&kept), "{kept} inputs, not {inputs}");
        };
        // A byte for each element, and a scale for each 128.
        let codes = 0.25 + 1.0 / 128.0;
        near(kept(Saved::Whole, norm), 1.0);
        near(kept(Saved::Fp8, norm), codes);
        let swiglu = |[gate, up]: [_; 2]| gated(Silu, gate, up);
        near(kept(Saved::Whole, swiglu), 2.0);
        near(kept(Saved::Fp8, swiglu), 2.0 * codes);
        near(kept(Saved::Whole, |[x]: [_; 1]| dropout(x, 0.5)), 0.0);
    });
}
