//! Burn's own functions that multiply matrices: in FP8 under the default filter, exactly Burn's in `high_precision`.

use burn::tensor::linalg;

use crate::common::*;

/// Above 256 Burn factorizes by blocks, with products of matrices.
const N: usize = 500;
const SAMPLES: usize = 256;

/// P, L and U of a matrix `[N, N]`.
fn lu<B: Backend>(a: &[f32]) -> [Vec<f32>; 3] {
    let (p, l, u) = linalg::lu::<B, 2, 1>(tensor(a, [N, N]));
    [p, l, u].map(values)
}

/// The largest element of |P·L·U - A|, in f64.
fn lu_error(a: &[f32], [p, l, u]: &[Vec<f32>; 3]) -> f64 {
    let mut product = vec![0f64; N * N];
    for (row, l) in product.chunks_exact_mut(N).zip(l.chunks_exact(N)) {
        for (u, l) in u.chunks_exact(N).zip(l).filter(|(_, l)| **l != 0.0) {
            row.iter_mut().zip(u).for_each(|(sum, u)| *sum += f64::from(*l) * f64::from(*u));
        }
    }
    let mut largest = 0f64;
    for (a, p) in a.chunks_exact(N).zip(p.chunks_exact(N)) {
        let row = p.iter().position(|p| *p == 1.0).expect("a permutation");
        let row = &product[row * N..][..N];
        a.iter().zip(row).for_each(|(a, lu)| largest = largest.max((f64::from(*a) - lu).abs()));
    }
    largest
}

#[test]
fn a_factorization_wants_high_precision() {
    let a = Random(21).units(N * N);
    let plain = lu::<Flex>(&a);
    let exact = lu_error(&a, &plain);
    assert!(exact < 1e-4, "{exact}");
    // Each of the ways that the documents name gives Burn's bits.
    assert!(high_precision(|| lu::<Fp8Backend<Flex>>(&a)) == plain);
    assert!(high_precision(|| lu::<Outer<Flex>>(&a)) == plain);
    let linear_only = Fp8Config::default().with_filter(Filter::linear_only());
    assert!(linear_only.scope(|| lu::<Fp8Backend<Flex>>(&a)) == plain);

    let (in_fp8, report) = Fp8Config::default().scope(|| trace(|| lu::<Fp8Backend<Flex>>(&a)));
    assert!(report.fp8().count() > 0, "{report}");
    let error = lu_error(&a, &in_fp8);
    println!("error of a factorization: {exact:.1e} in f32, {error:.1e} with products in FP8");
    assert!(error > 1000.0 * exact, "it has become usable: {error} beside {exact}");
}

#[test]
fn a_covariance_wants_high_precision() {
    const WIDTH: usize = 32;
    let x = Random(22).units(SAMPLES * WIDTH);
    let mean: Vec<f64> = (0..WIDTH)
        .map(|i| x.iter().skip(i).step_by(WIDTH).map(|x| f64::from(*x)).sum::<f64>())
        .map(|sum| sum / SAMPLES as f64)
        .collect();
    let expected = |i: usize, j: usize| {
        let rows = x.chunks_exact(WIDTH);
        let products = rows.map(|x| (f64::from(x[i]) - mean[i]) * (f64::from(x[j]) - mean[j]));
        products.sum::<f64>() / (SAMPLES - 1) as f64
    };
    let error = |cov: Vec<f32>| {
        let cov = cov.iter().enumerate();
        cov.map(|(at, cov)| (f64::from(*cov) - expected(at / WIDTH, at % WIDTH)).abs())
            .fold(0f64, f64::max)
    };
    fn cov<B: Backend>(x: &[f32]) -> Vec<f32> {
        values(tensor::<B, 2>(x, [SAMPLES, WIDTH]).cov(0, 1))
    }
    let exact = error(high_precision(|| cov::<Fp8Backend<Flex>>(&x)));
    let in_fp8 = error(Fp8Config::default().scope(|| cov::<Fp8Backend<Flex>>(&x)));
    println!("error of a covariance: {exact:.1e} in f32, {in_fp8:.1e} in FP8");
    assert!(exact < 1e-6 && in_fp8 > 100.0 * exact, "{exact} {in_fp8}");
}
