//! Products with scales of blocks on tensor cores, where the device has them: data whose products are exact whatever is summed first, with other scales in
//! each block, so that a scale in a wrong place is seen.

use burn_fp8::engine::Fallback;

use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{assert_native, emulated, first, is_rehearsal, native, of_tensor_cores};

/// M, K, N: less than a block, ragged ones, whole ones, more than one tile of scales.
const SHAPES: [[usize; 3]; 6] =
    [[3, 40, 5], [17, 96, 33], [130, 300, 150], [128, 256, 128], [300, 520, 260], [512, 1024, 384]];

/// Whether tensor cores of this device have scales of these blocks: by NVIDIA's table.
fn has<B: Fp8Matmul>(recipe: Recipe) -> bool {
    match capability::<B>() {
        Capability::Native(device) if recipe == Recipe::mxfp8() => {
            device.compute_capability >= (10, 0)
        }
        Capability::Native(device) => device.compute_capability == (9, 0),
        _ => false,
    }
}

fn tried<B: Fp8Matmul>(recipe: Recipe) -> Fp8Config {
    native::<B>().with_recipe(recipe).with_native_blocks(true)
}

/// Integers up to 2 times powers of two from 1 to 8, another one in each 32 elements of a row.
fn stepped(seed: u64, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut random = Random(seed);
    let mut values = vec![0.0; rows * columns];
    for row in values.chunks_mut(columns) {
        for part in row.chunks_mut(32) {
            let step = 2f32.powi((random.bits() % 4) as i32);
            part.fill_with(|| step * ((random.bits() % 5) as f32 - 2.0));
        }
    }
    values
}

fn recipes() -> [Recipe; 2] {
    [Recipe::mxfp8(), Recipe::blockwise()]
}

/// Output and both gradients.
fn of_layers_are_exact<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    for recipe in recipes() {
        for &[m, k, n] in first(&SHAPES, 4) {
            let (x, w, g) = (stepped(1, [m, k]), stepped(2, [k, n]), stepped(3, [m, n]));
            let step = |config: Fp8Config| {
                trace(|| config.scope(|| matrix_step::<Outer<B>>([&x, &w, &g], [m, k, n])))
            };
            let expected = Exact::step([&wide(&x), &wide(&w), &wide(&g)], [m, k, n]);
            let what = format!("{recipe}, {m}×{k}×{n}");
            let tried = tried::<B>(recipe);
            let (actual, report) = match has::<B>(recipe) || is_rehearsal::<B>() {
                true => step(tried),
                false => {
                    panics(|| step(tried), ["compute capability"]);
                    step(tried.with_execution(Execution::Auto))
                }
            };
            match has::<B>(recipe) || is_rehearsal::<B>() {
                true => assert_native::<B>(&report, 3),
                false => {
                    report.products.iter().for_each(|product| assert_fell_back(&product.ran, &what))
                }
            }
            for results in [actual, step(emulated().with_recipe(recipe)).0] {
                for (actual, expected) in results.iter().zip(&expected) {
                    expected.assert_exact(actual, &what);
                }
            }
        }
    }
}

#[track_caller]
fn assert_fell_back(ran: &Implementation, what: &str) {
    let Implementation::Fallback(Fallback::NoAlgorithm(reason)) = ran else {
        panic!("{what}: {ran:?}");
    };
    assert!(reason.contains("compute capability"), "{what}: {reason}");
}

/// The pairs that `scaled_matmul` takes, with scales in f32 where there are any: against sums in f64 of the numbers that the tensors stand for.
fn of_tensors_are_those_of_f64<B: Fp8Matmul>() {
    let divided = Recipe::blockwise().with_power_of_two(false);
    for &[m, k, n] in first(&SHAPES, 4) {
        let (x, w) = (Random(1).normals(m * k), Random(2).normals(n * k));
        for (of_a, of_b, recipe) in [
            ([1, k], [1, k], Recipe::current()),
            ([1, 32], [1, 32], Recipe::mxfp8()),
            ([1, 128], [128, 128], divided),
            ([1, 128], [1, 128], divided),
            ([128, 128], [1, 128], divided),
        ] {
            let quantized = |values: &[f32], shape, block| {
                let tensor = tensor::<B, 2>(values, shape);
                Fp8Tensor::quantize_blocks(tensor, E4M3, block, recipe).expect("blocks")
            };
            let (a, b) = (quantized(&x, [m, k], of_a), quantized(&w, [n, k], of_b).transpose());
            let [of_a, of_b] = [&a, &b].map(|tensor| wide(&values(tensor.dequantize())));
            let exact = Exact::product(&of_a, &of_b, [m, k, n]);
            let what = format!("{m}×{k}×{n} {:?} {:?}", a.block(), b.block());
            let options = ScaledMatmulOptions::default();
            let config = match is_rehearsal::<B>() {
                true => emulated(),
                false => tried::<B>(recipe).with_execution(Execution::Auto),
            };
            let (y, report) =
                trace(|| config.scope(|| scaled_matmul(&a, &b, &options).expect("they fit")));
            match has::<B>(recipe) {
                true => assert_native::<B>(&report, 1),
                // Burn multiplies f32 with fewer bits on tensor cores: what is emulated there is seen elsewhere.
                false if !is_rehearsal::<B>() => {
                    assert_fell_back(&report.products[0].ran, &what);
                    continue;
                }
                false => {}
            }
            exact.assert(&values(y.into_float()), of_tensor_cores::<B>().sums, &what);
        }
    }
}

on_cuda_and_rehearsed!([of_layers_are_exact, of_tensors_are_those_of_f64]);
