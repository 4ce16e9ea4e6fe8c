//! What is not finite shows where it does on the host; scales far from one lose nothing.

use crate::common::special::{
    codes_and_scales_agree_with_flex, special_values_stay_visible, ties_go_to_even,
};
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{is_rehearsal, native, ways};

const M: usize = 32;
const K: usize = 64;
const N: usize = 48;
const SHAPE: [usize; 3] = [M, K, N];

fn non_finite_values_stay_visible<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let clean = [Random(1).normals(M * K), Random(2).normals(K * N), Random(3).normals(M * N)];
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for operand in 0..3 {
            let mut data = clean.clone();
            data[operand][77] = poison;
            let data = data.each_ref().map(Vec::as_slice);
            let exact = exact_step_under(Recipe::current(), data, SHAPE);
            for way in ways::<B>() {
                let results = way.config.scope(|| matrix_step::<Outer<B>>(data, SHAPE));
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
    let (x, w, g) = (vec![0.0; M * K], Random(2).normals(K * N), Random(3).normals(M * N));
    let step = || matrix_step::<Outer<B>>([&x, &w, &g], SHAPE);
    let [y, dx, dw] = native::<B>().scope(step);
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

on_cuda_and_rehearsed!([
    ties_go_to_even,
    special_values_stay_visible,
    codes_and_scales_agree_with_flex,
    non_finite_values_stay_visible,
    zeros_give_zeros,
    extreme_scales_lose_nothing,
]);
