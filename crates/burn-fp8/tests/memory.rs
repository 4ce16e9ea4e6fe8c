//! How much memory attention takes: no table of scores, whose size is the square of the length. Alone in its program, since the allocator
//! counts for all of it.

use burn::backend::{Autodiff, Flex};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::AttentionPrecision;
use burn_fp8::fused::ops::{AttentionOptions, attention};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Forward and backward, with queries, keys, values and the output and its gradient alive: 6 times the first three would be one array of
/// the size of the inputs for each of the three, for the output, and for its gradient, and one more.
#[test]
fn attention_takes_at_most_six_times_its_inputs() {
    type B = Autodiff<Flex>;
    let shape = [2, 8, 4096, 64];
    let inputs = 3 * shape.iter().product::<usize>() * size_of::<f32>();
    for precision in AttentionPrecision::ALL {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let operand = || Tensor::<B, 4>::random(shape, Distribution::Default, &Default::default());
        let [q, k, v] = [(); 3].map(|()| operand().require_grad());
        let options = AttentionOptions { causal: true, precision, ..AttentionOptions::default() };
        let output = attention(q.clone(), k.clone(), v.clone(), options);
        let grads = output.sum().backward();
        let reached = [&q, &k, &v].map(|leaf| leaf.grad(&grads).expect("it was used").dims());
        assert_eq!(reached, [shape; 3]);
        let peak = MEMORY.peak_usage() - before;
        let ratio = peak as f64 / inputs as f64;
        println!("attention in {precision}: {ratio:.2} times its inputs of {} MiB", inputs >> 20);
        // One table of scores of one head would be 1.3 times the inputs; of all heads, 21 times.
        assert!((1.0..=6.0).contains(&ratio), "{precision}: {ratio:.2} times the inputs");
    }
}
