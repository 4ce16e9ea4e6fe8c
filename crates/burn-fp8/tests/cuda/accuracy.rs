//! The error of products on tensor cores, against f64 sums of the same codes.
//!
//! A sanity bound, which a wrong layout, scale or format misses by far; how the error compares to that of `torch._scaled_mm` is
//! judged by `benches/peers/gpu_accuracy.py`.

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::{Fp8Config, Fp8Format, Fp8Matmul, GemmRole, Report, trace};

use crate::common::exact::Sums;
use crate::common::{Outer, Random, reference, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{DTYPES, assert_native, first, is_rehearsal, is_small, normal, typed, ways};

/// How many elements of each result are computed on the host.
const SAMPLES: usize = 4096;

/// Hopper's tensor cores keep 14 bits or so of a sum of FP8 products, and with fast accumulation all along K; DeepSeek saw single
/// elements off by nearly 2 % at K = 4096 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). Over all elements it is less.
const FAST: f64 = 0.02;
/// Without fast accumulation partial sums are added in f32.
const PRECISE: f64 = 0.005;

/// A matrix as it enters a product, dequantized on the host.
struct Matrix {
    values: Vec<f64>,
    columns: usize,
    format: Fp8Format,
    scale: f32,
}

impl Matrix {
    fn new(values: &[f32], columns: usize, format: Fp8Format) -> Self {
        let scale = reference::scale(values, format);
        let values = reference::quantize_dequantize_by(values, scale, format);
        Self { values, columns, format, scale }
    }

    /// Its format, its scale, and that nothing is beyond that.
    fn report(&self) -> (Fp8Format, f32, usize) {
        (self.format, self.scale, 0)
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.columns + column]
    }
}

/// ‖actual − exact‖ / ‖exact‖ over random elements of a matrix with `columns` columns.
fn error(actual: &[f32], columns: usize, exact: impl Fn(usize, usize) -> f64) -> f64 {
    let mut random = Random(99);
    let (mut squares, mut total) = (0.0, 0.0);
    for _ in 0..SAMPLES.min(actual.len()) {
        let index = (random.bits() % actual.len() as u64) as usize;
        let exact = exact(index / columns, index % columns);
        squares += (f64::from(actual[index]) - exact).powi(2);
        total += exact.powi(2);
    }
    (squares / total).sqrt()
}

struct Step {
    results: [Vec<f32>; 3],
    report: Report,
}

fn step<B: AutodiffBackend>(
    [x, w, g]: [&[f32]; 3],
    [m, k, n]: [usize; 3],
    dtype: FloatDType,
    config: &Fp8Config,
) -> Step {
    let x: Tensor<B, 2> = typed(x, [m, k], dtype).require_grad();
    let w: Tensor<B, 2> = typed(w, [k, n], dtype).require_grad();
    let g: Tensor<B, 2> = typed(g, [m, n], dtype);
    let ((y, grads), report) = trace(|| {
        config.scope(|| {
            let y = x.clone().matmul(w.clone());
            let grads = (y.clone() * g).sum().backward();
            (y, grads)
        })
    });
    let [dx, dw] = [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")));
    Step { results: [values(y), dx, dw], report }
}

#[track_caller]
fn check<B: Fp8Matmul>(
    data: [&[f32]; 3],
    shape @ [m, k, n]: [usize; 3],
    dtype: FloatDType,
    what: &str,
) where
    Outer<B>: AutodiffBackend,
{
    // As the tensors hold them.
    let held = data.map(|data| crate::support::rounded(data.to_vec(), dtype));
    let [x, w, g] = [
        Matrix::new(&held[0], k, E4M3),
        Matrix::new(&held[1], n, E4M3),
        Matrix::new(&held[2], n, E5M2),
    ];
    let epsilon = match dtype {
        FloatDType::BF16 => 2f64.powi(-9),
        FloatDType::F16 => 2f64.powi(-12),
        _ => 2f64.powi(-25),
    };
    let errors = |results: &[Vec<f32>; 3]| {
        [
            error(&results[0], n, |i, j| (0..k).map(|t| x.at(i, t) * w.at(t, j)).sum()),
            error(&results[1], k, |i, j| (0..n).map(|t| g.at(i, t) * w.at(j, t)).sum()),
            error(&results[2], n, |i, j| (0..m).map(|t| x.at(t, i) * g.at(t, j)).sum()),
        ]
    };
    let expected = [
        (GemmRole::Output, [m, n, k], [&x, &w]),
        (GemmRole::GradInput, [m, k, n], [&g, &w]),
        (GemmRole::GradWeight, [k, n, m], [&x, &g]),
    ]
    .map(|(role, gemm, operands)| (role, gemm, operands.map(Matrix::report)));
    for way in ways::<B>() {
        let Step { results, report } = step::<Outer<B>>(data, shape, dtype, &way.config);
        if way.is_native {
            assert_native::<B>(&report, 3);
        }
        let (what, errors) =
            (format!("{} {what} {m}×{k}×{n} {dtype:?}", way.name), errors(&results));
        println!("{what}: {}", errors.map(|error| format!("{error:.1e}")).join(" "));
        let bounds = match way.sums {
            Sums::TensorCores => [FAST, PRECISE, PRECISE],
            Sums::Of(_) => [1e-4; 3],
        };
        for (error, bound) in errors.into_iter().zip(bounds) {
            assert!(error <= bound + epsilon, "{what}: {errors:?}");
        }
        let reported = report.products.iter().map(|product| {
            let operands = [product.lhs, product.rhs].map(|operand| {
                let operand = operand.expect("in FP8");
                (operand.format, operand.scale, operand.saturated)
            });
            let gemm = product.gemm;
            (product.role, [gemm.m, gemm.n, gemm.k], operands)
        });
        assert_eq!(reported.collect::<Vec<_>>(), expected, "{what}");
    }
}

fn of_normal_data_is_small<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for &shape @ [m, k, n] in first(&[[123, 1000, 77], [256, 512, 384]], 1) {
        let data = [normal(1, m * k), normal(2, k * n), normal(3, m * n)];
        for dtype in DTYPES {
            check::<B>(data.each_ref().map(Vec::as_slice), shape, dtype, "normal");
        }
    }
    if is_rehearsal::<B>() || is_small() {
        return;
    }
    let shape @ [m, k, n] = [2048, 4096, 1024];
    let data = [normal(1, m * k), normal(2, k * n), normal(3, m * n)];
    let dtype = FloatDType::BF16;
    check::<B>(data.each_ref().map(Vec::as_slice), shape, dtype, "normal");
}

/// A few elements a thousand times as large as the rest.
fn of_outliers_is_small<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let shape @ [m, k, n] = if is_small() { [64, 1024, 64] } else { [256, 2048, 256] };
    let mut data = [normal(1, m * k), normal(2, k * n), normal(3, m * n)];
    for data in &mut data {
        data.iter_mut().step_by(1009).for_each(|value| *value *= 1000.0);
    }
    check::<B>(data.each_ref().map(Vec::as_slice), shape, FloatDType::F32, "outliers");
}

on_cuda_and_rehearsed!(of_normal_data_is_small, of_outliers_is_small);
