//! Products of f32 matrices by the crate `gemm`.
#![allow(unsafe_code, reason = "the crate gemm takes pointers")]

/// Two matrices, row by row, and room for their product.
pub struct Gemm {
    /// M, N and K.
    shape: [usize; 3],
    lhs: Vec<f32>,
    rhs: Vec<f32>,
    product: Vec<f32>,
}

impl Gemm {
    /// Small numbers of both signs.
    pub fn new(shape @ [m, n, k]: [usize; 3]) -> Self {
        let numbers = |count| (0..count).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
        Self { shape, lhs: numbers(m * k), rhs: numbers(k * n), product: vec![0.0; m * n] }
    }

    /// Multiplies them, on rayon's current pool.
    pub fn run(&mut self) {
        let [m, n, k] = self.shape;
        let parallelism = match rayon::current_num_threads() {
            1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        let (lhs, rhs) = (self.lhs.as_ptr(), self.rhs.as_ptr());
        let (k_stride, n_stride) = (k as isize, n as isize);
        // SAFETY: the three matrices have as many elements as their shapes, row by row; nobody else uses the product.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                self.product.as_mut_ptr(),
                1,
                n_stride,
                false,
                lhs,
                1,
                k_stride,
                rhs,
                1,
                n_stride,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}
