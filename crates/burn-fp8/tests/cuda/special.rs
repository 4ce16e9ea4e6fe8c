//! What is not finite shows where it does on the host; scales far from one lose nothing.

use burn::tensor::backend::AutodiffBackend;
use burn_fp8::{Fp8Backend, Fp8Config, Fp8Matmul};

use crate::common::{Outer, assert_close, special, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{exact_step, is_rehearsal, native, normal, quantized, ways};

const M: usize = 32;
const K: usize = 64;
const N: usize = 48;

fn emulated_ties_go_to_even<B: Fp8Matmul>() {
    special::check_ties::<B>();
}

fn emulated_special_values<B: Fp8Matmul>() {
    special::check_special::<B>();
    special::check_agreement::<B>();
}

fn step<B: AutodiffBackend>(config: &Fp8Config, [x, w, g]: [&[f32]; 3]) -> [Vec<f32>; 3] {
    let x = tensor::<B, 2>(x, [M, K]).require_grad();
    let w = tensor::<B, 2>(w, [K, N]).require_grad();
    let g = tensor::<B, 2>(g, [M, N]);
    config.scope(|| {
        let y = x.clone().matmul(w.clone());
        let grads = (y.clone() * g).sum().backward();
        let [dx, dw] = [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")));
        [values(y), dx, dw]
    })
}

fn non_finite_values_stay_visible<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let clean = [normal(1, M * K), normal(2, K * N), normal(3, M * N)];
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for operand in 0..3 {
            let mut data = clean.clone();
            data[operand][77] = poison;
            let data = data.each_ref().map(Vec::as_slice);
            let held = quantized(data);
            let exact = exact_step(held.each_ref().map(Vec::as_slice), [M, K, N]);
            for way in ways::<B>() {
                let results = step::<Outer<B>>(&way.config, data);
                for ((actual, exact), result) in results.iter().zip(&exact).zip(["y", "dx", "dw"]) {
                    let what = format!("{}, {poison} in operand {operand}: {result}", way.name);
                    assert!(exact.values.iter().any(|value| value.is_finite()), "{what}");
                    exact.assert(actual, way.sums, &what);
                }
            }
        }
    }
}

fn zeros_give_zeros<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let (x, w, g) = (vec![0.0; M * K], normal(2, K * N), normal(3, M * N));
    let [y, dx, dw] = step::<Outer<B>>(&native::<B>(), [&x, &w, &g]);
    assert!(y.iter().chain(&dw).all(|value| *value == 0.0));
    assert!(dx.iter().all(|value| value.is_finite()) && dx.iter().any(|value| *value != 0.0));
}

/// One scale far above one, the other far below. In which order cuBLASLt multiplies a sum with them is not documented: where one
/// order overflows, the result may be infinite, and which it is gets printed.
fn extreme_scales_lose_nothing<B: Fp8Matmul>() {
    for (left, right) in [(1e30f32, 1e-30f32), (1e-25, 1e20), (3e37, 1e-35)] {
        let product = native::<B>().scope(|| {
            tensor::<Fp8Backend<B>, 2>(&vec![left; M * K], [M, K])
                .matmul(tensor(&vec![right; K * N], [K, N]))
        });
        let expected = (f64::from(left) * f64::from(right) * K as f64) as f32;
        let product = values(product);
        // Sum times left scale, in f32, before the right one brings it back.
        let may_overflow = (448.0f32 * left * K as f32).is_infinite() && !is_rehearsal::<B>();
        if may_overflow && product.iter().all(|value| *value == f32::INFINITY) {
            println!("{left:e}·{right:e}: infinite, the left scale comes first");
            continue;
        }
        println!("{left:e}·{right:e}: {:e}, exactly {expected:e}", product[0]);
        // 64 times 448² has 12 bits, so that tensor cores keep it too: what is left is the rounding of scales and of their products.
        assert_close(&product, &vec![expected; M * N], 1e-6, &format!("{left:e}·{right:e}"));
    }
}

on_cuda_and_rehearsed!(
    emulated_ties_go_to_even,
    emulated_special_values,
    non_finite_values_stay_visible,
    zeros_give_zeros,
    extreme_scales_lose_nothing,
);
