//! Operands in every layout.

use burn_fp8::Fp8Format::E4M3;
use burn_fp8::burn_fp8_core::Overflow;
use burn_fp8::{Fp8Matmul, Fp8Tensor, ScaledMatmulOptions, scaled_matmul};

use crate::common::{Random, values};

/// Rows, columns, each operand either way: the same bits.
pub fn all_layouts_give_the_same_product<B: Fp8Matmul>() {
    let device = Default::default();
    // Not multiples of four, so that packed codes have bytes to spare.
    for [m, n, k] in [[3, 5, 7], [1, 1, 1], [17, 2, 9], [16, 32, 48]] {
        let mut random = Random(3);
        let mut codes = |len: usize| {
            // Integers: their sums are exact in whatever order they are taken.
            let integer = |bits: u64| (bits % 33) as f32 - 16.0;
            (0..len)
                .map(|_| E4M3.encode(integer(random.bits()), Overflow::Saturate))
                .collect::<Vec<_>>()
        };
        let (a, b_t) = (codes(m * k), codes(n * k));
        let transposed = |codes: &[u8], [rows, columns]: [usize; 2]| -> Vec<u8> {
            (0..columns)
                .flat_map(|column| (0..rows).map(move |row| codes[row * columns + column]))
                .collect()
        };
        let tensor = |codes: &[u8], shape, scale: f32| {
            Fp8Tensor::<B, 2>::from_bytes(codes.to_vec(), shape, E4M3, scale, &device)
                .expect("good")
        };
        let lhs =
            [tensor(&a, [m, k], 0.5), tensor(&transposed(&a, [m, k]), [k, m], 0.5).transpose()];
        let rhs = [
            tensor(&b_t, [n, k], 0.25).transpose(),
            tensor(&transposed(&b_t, [n, k]), [k, n], 0.25),
        ];
        for (tensor, shape, bytes) in
            [(&lhs, [m, k], a.clone()), (&rhs, [k, n], transposed(&b_t, [n, k]))]
                .map(|(t, s, b)| (t, s, b))
        {
            for tensor in tensor {
                assert_eq!((tensor.dims(), tensor.to_bytes()), (shape, bytes.clone()));
                assert_eq!(tensor.transpose().transpose().to_bytes(), bytes);
            }
            let [first, second] = tensor.each_ref().map(|tensor| values(tensor.dequantize()));
            assert_eq!(first, second);
        }
        let product = |a: &Fp8Tensor<B, 2>, b: &Fp8Tensor<B, 2>| {
            let options = ScaledMatmulOptions::fp8(E4M3, 64.0).with_amax();
            let output = scaled_matmul(a, b, &options).expect("good");
            (values(output.amax.clone().expect("asked for")), output.into_fp8().to_bytes())
        };
        let expected = product(&lhs[0], &rhs[0]);
        assert!(expected.0[0] > 0.0);
        for a in &lhs {
            for b in &rhs {
                assert_eq!(product(a, b), expected, "{m}×{n}×{k}");
            }
        }
    }
}
