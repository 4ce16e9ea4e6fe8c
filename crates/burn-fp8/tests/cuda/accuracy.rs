//! The error of products on tensor cores, against f64 sums of the same codes, and the golden products of Flax and JAX.
//!
//! A sanity bound, which a wrong layout, scale or format misses by far; how the error compares to that of `torch._scaled_mm` is
//! judged by `benches/peers/gpu_accuracy.py`.

use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Operand, assert_native, first, is_rehearsal, is_small, rounded, sample, typed, ways,
};

/// Hopper's tensor cores keep 14 bits or so of a sum of FP8 products, and with fast accumulation all along K; DeepSeek saw single
/// elements off by nearly 2 % at K = 4096 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). Over all elements it is less.
const FAST: f64 = 0.02;
/// Without fast accumulation partial sums are added in f32.
const PRECISE: f64 = 0.005;

#[track_caller]
fn check<B: Fp8Matmul>(data: &[Vec<f32>; 3], [m, k, n]: [usize; 3], dtype: FloatDType, what: &str)
where
    Outer<B>: AutodiffBackend,
{
    // As the tensors hold them.
    let [x, w, g] = data.each_ref().map(|data| rounded(data.clone(), dtype));
    let (x_t, w_t) = (transpose(&x, [m, k]), transpose(&w, [k, n]));
    let products = [
        ([Operand(&x, E4M3), Operand(&w, E4M3)], [m, k, n]),
        ([Operand(&g, E5M2), Operand(&w_t, E4M3)], [m, n, k]),
        ([Operand(&x_t, E4M3), Operand(&g, E5M2)], [k, m, n]),
    ];
    let epsilon = match dtype {
        FloatDType::BF16 => 2f64.powi(-9),
        FloatDType::F16 => 2f64.powi(-12),
        _ => 2f64.powi(-25),
    };
    for way in ways::<B>() {
        let tensors = || {
            [(&x, [m, k]), (&w, [k, n]), (&g, [m, n])]
                .map(|(x, shape)| typed::<Outer<B>, 2>(x, shape, dtype))
        };
        let (results, report) = trace(|| way.config.scope(|| step(tensors()).map(values)));
        if way.is_native {
            assert_native::<B>(&report, 3);
        }
        let what = format!("{} {what} {m}×{k}×{n} {dtype:?}", way.name);
        let bounds = match way.sums {
            Sums::TensorCores => [FAST, PRECISE, PRECISE],
            _ => [1e-4; 3],
        };
        assert_eq!(report.products.len(), 3, "{report}");
        for (index, (operands, shape)) in products.into_iter().enumerate() {
            let (sample, exact) = sample(&results[index], operands, shape, 64);
            // ‖actual − exact‖ / ‖exact‖
            let error = 10f64.powf(-sqnr(&exact.values, &wide(&sample)) / 20.0);
            println!("{what}: {error:.1e}");
            assert!(error <= bounds[index] + epsilon, "{what}: {error:e}");
            let product = &report.products[index];
            assert_eq!(product.role, GemmRole::ALL[index]);
            assert_eq!([product.gemm.m, product.gemm.k, product.gemm.n], shape, "{what}");
            for (operand, reported) in operands.iter().zip([product.lhs, product.rhs]) {
                let reported = reported.expect("in FP8");
                let reported = (reported.format, reported.scale, reported.saturated);
                assert_eq!(reported, (operand.1, fp8::scale(operand.0, operand.1), 0), "{what}");
            }
        }
    }
}

fn data([m, k, n]: [usize; 3]) -> [Vec<f32>; 3] {
    let mut random = Random(1);
    [m * k, k * n, m * n].map(|count| random.normals(count))
}

fn of_normal_data_is_small<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for &shape in first(&[[123, 1000, 77], [256, 512, 384]], 1) {
        for dtype in DTYPES {
            check::<B>(&data(shape), shape, dtype, "normal");
        }
    }
    if !is_rehearsal::<B>() && !is_small() {
        let shape = [2048, 4096, 1024];
        check::<B>(&data(shape), shape, FloatDType::BF16, "normal");
    }
}

/// A few elements a thousand times as large as the rest.
fn of_outliers_is_small<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let shape @ [m, k, n] = if is_small() { [64, 1024, 64] } else { [256, 2048, 256] };
    let mut data = data([m, k, n]);
    for data in &mut data {
        data.iter_mut().step_by(1009).for_each(|value| *value *= 1000.0);
    }
    check::<B>(&data, shape, FloatDType::F32, "outliers");
}

on_cuda_and_rehearsed!([of_normal_data_is_small, of_outliers_is_small]);

#[cfg(feature = "cuda")]
mod golden {
    use super::*;
    use crate::common::golden::{codes_and_scales_are_exact, products_and_gradients_match_under};
    use crate::on_cuda;
    use crate::support::emulated;

    fn emulated_products_match<B: Fp8Matmul>()
    where
        Autodiff<B>: Fp8Matmul,
    {
        products_and_gradients_match_under::<B>(&emulated(), Sums::F32);
    }

    fn products_match<B: Fp8Matmul>()
    where
        Autodiff<B>: Fp8Matmul,
    {
        products_and_gradients_match_under::<B>(&every_matmul(), Sums::TensorCores);
    }

    on_cuda!([codes_and_scales_are_exact, emulated_products_match, products_match]);
}
