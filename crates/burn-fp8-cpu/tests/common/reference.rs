//! Products in f64, and how far an f32 sum may be from them.

use super::Operand;

/// Products of a batch in f64, row by row.
pub struct Reference {
    /// Σ a·b. NaN and infinities as IEEE has them: f64 overflows nowhere on the way.
    pub sums: Vec<f64>,
    /// Σ |a·b|.
    pub sizes: Vec<f64>,
    depth: usize,
    columns: usize,
}

impl Reference {
    /// A product of codes has at most 8 bits. Their f64 sum is exact for integers, and elsewhere rounded 2^29 times as finely as f32.
    pub fn new(lhs: &Operand, rhs: &Operand) -> Self {
        let ([m, k], [depth, n]) = (lhs.shape, rhs.shape);
        assert!(k == depth && lhs.batches() == rhs.batches());
        let (mut sums, mut sizes) = (vec![], vec![]);
        for batch in 0..lhs.batches() {
            let one = Self::of_numbers(&lhs.numbers(batch), &rhs.numbers(batch), [m, n, k]);
            sums.extend(one.sums);
            sizes.extend(one.sizes);
        }
        Self { sums, sizes, depth: k, columns: n }
    }

    /// Of one product of numbers, row by row.
    pub fn of_numbers(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Self {
        let (mut sums, mut sizes) = (vec![0.0; m * n], vec![0.0; m * n]);
        for row in 0..m {
            let (sums, sizes) = (&mut sums[row * n..][..n], &mut sizes[row * n..][..n]);
            for (l, a) in a[row * k..][..k].iter().enumerate() {
                let b = &b[l * n..][..n];
                for ((sum, size), b) in sums.iter_mut().zip(sizes.iter_mut()).zip(b) {
                    *sum += a * b;
                    *size += (a * b).abs();
                }
            }
        }
        Self { sums, sizes, depth: k, columns: n }
    }

    /// The same, of numbers that are rounded so often before they are summed, or afterwards.
    pub fn with_roundings(self, more: usize) -> Self {
        Self { depth: self.depth + more, ..self }
    }

    /// The first element of `y` that is further from the product times `scale` than roundings explain.
    ///
    /// A sum of K numbers in f32, in whatever order, takes each of them through at most K − 1 roundings of 2^-24, as products of codes are
    /// exact and zeros that pad K are added without rounding. The product of the two scales is rounded once, the scaled sum once: K + 1
    /// roundings. (1 + 2^-24)^(K + 1) is at most 1 + (K + 2) · 2^-24 for K below 4000. `scale` is |lhs · rhs| in f64, and results that
    /// f32 does not hold as normal numbers are beyond this bound.
    pub fn mismatch(&self, y: &[f32], scale: f64) -> Option<String> {
        assert!(self.depth < 4000 && y.len() == self.sums.len());
        let unit = 2f64.powi(-24);
        let wrong = |(y, (sum, size)): (&f32, (&f64, &f64))| {
            let (y, expected) = (f64::from(*y), sum * scale);
            match expected.is_finite() {
                // Not `error > bound`, which NaN would pass.
                true => {
                    let bound = (self.depth + 2) as f64 * unit * size * scale.abs();
                    let close = (y - expected).abs() <= bound;
                    !close
                }
                false => !(y == expected || y.is_nan() && expected.is_nan()),
            }
        };
        let at = y.iter().zip(self.sums.iter().zip(&self.sizes)).position(wrong)?;
        let (row, column) = (at / self.columns, at % self.columns);
        let (y, sum, size) = (y[at], self.sums[at] * scale, self.sizes[at] * scale);
        Some(format!("[{row}, {column}] is {y:e} for {sum:e}, magnitudes {size:e}"))
    }

    /// The first element of `y` that is not exactly the product times `scale`, a power of two.
    ///
    /// A zero may have either sign: sums begin with +0 on some units, with the first product on others.
    pub fn inexact(&self, y: &[f32], scale: f64) -> Option<String> {
        assert_eq!(y.len(), self.sums.len());
        let wrong = |(y, sum): (&f32, &f64)| {
            let expected = (sum * scale) as f32;
            assert!(expected.is_nan() || f64::from(expected) == sum * scale, "{sum} is no f32");
            *y != expected && !(y.is_nan() && expected.is_nan())
        };
        let at = y.iter().zip(&self.sums).position(wrong)?;
        let (row, column) = (at / self.columns, at % self.columns);
        Some(format!("[{row}, {column}] is {:e}, not {:e}", y[at], self.sums[at] * scale))
    }
}
