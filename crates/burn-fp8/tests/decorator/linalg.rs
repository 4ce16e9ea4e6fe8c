//! Burn's own functions that multiply matrices: in FP8 under the default filter, exactly Burn's in `high_precision`.

use burn::tensor::linalg;

use crate::common::*;

/// Above 256 Burn factorizes by blocks, with products of matrices.
const N: usize = 300;

/// P, L and U of a matrix `[N, N]`.
fn lu<B: Backend>(a: &[f32]) -> Vec<Vec<f32>> {
    let (p, l, u) = linalg::lu::<B, 2, 1>(tensor(a, [N, N]));
    [p, l, u].map(values).to_vec()
}

/// The covariance of the columns of `[2 N, N / 2]`.
fn cov<B: Backend>(a: &[f32]) -> Vec<Vec<f32>> {
    vec![values(tensor::<B, 2>(a, [2 * N, N / 2]).cov(0, 1))]
}

/// The largest element of |P·L·U - A|, in f64.
fn lu_error(a: &[f32], plu: &[Vec<f32>]) -> f64 {
    let lu = Exact::product(&wide(&plu[1]), &wide(&plu[2]), [N, N, N]).values;
    let plu = Exact::product(&wide(&plu[0]), &lu, [N, N, N]).values;
    a.iter().zip(plu).fold(0.0, |most, (a, plu)| f64::max(most, (f64::from(*a) - plu).abs()))
}

#[test]
fn a_factorization_and_a_covariance_want_high_precision() {
    let a = Random(21).units(N * N);
    for (inner, outer, plain) in [
        (
            lu::<Fp8Backend<Flex>> as fn(&[f32]) -> _,
            lu::<Outer<Flex>> as fn(&[f32]) -> _,
            lu::<Flex>(&a),
        ),
        (cov::<Fp8Backend<Flex>>, cov::<Outer<Flex>>, cov::<Flex>(&a)),
    ] {
        // Each of the ways that the documents name gives Burn's bits.
        assert!(high_precision(|| inner(&a)) == plain && high_precision(|| outer(&a)) == plain);
        let linear_only = Fp8Config::default().with_filter(Filter::linear_only());
        assert!(linear_only.scope(|| inner(&a)) == plain);
        let (in_fp8, report) = trace(|| inner(&a));
        assert!(report.fp8().count() > 0 && in_fp8 != plain, "{report}");
    }
    let [exact, in_fp8] =
        [lu::<Flex>(&a), lu::<Fp8Backend<Flex>>(&a)].map(|plu| lu_error(&a, &plu));
    println!("error of a factorization: {exact:.1e} in f32, {in_fp8:.1e} with products in FP8");
    assert!(exact < 1e-4 && in_fp8 > 1000.0 * exact, "{in_fp8} beside {exact}");
}
