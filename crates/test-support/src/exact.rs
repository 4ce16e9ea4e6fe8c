//! Products in f64, and how far from them a sum in fewer bits may end: element by element, from an analysis of the errors.

/// A type of floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Float {
    /// 24 bits.
    F32,
    /// 11 bits.
    F16,
    /// 8 bits.
    Bf16,
}

impl Float {
    /// Half an ulp of 1.
    fn unit_roundoff(self) -> f64 {
        match self {
            Self::F32 => 2f64.powi(-24),
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
        }
    }

    /// The smallest normal number and the largest finite one.
    fn range(self) -> [f64; 2] {
        match self {
            Self::F16 => [2f64.powi(-14), 65504.0],
            _ => [f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)],
        }
    }
}

/// What adds up the terms of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sums {
    /// f32, in any order, rounded to nearest after each addition; the terms are exact.
    Nearest,
    /// Registers of this type, in any order, rounded or cut off after each addition.
    Of(Float),
    /// FP8 tensor cores, in any order of steps. Hopper's add 32 products to a sum at a time: all are aligned to the largest of them,
    /// and 14 bits are kept (DeepSeek-V3, arXiv:2412.19437, section 3.3.2).
    TensorCores,
}

impl Sums {
    /// Of f32, whatever the roundings.
    pub const F32: Self = Self::Of(Float::F32);

    /// The error of a sum of `terms` numbers, relative to the sum of their magnitudes.
    fn error(self, terms: usize) -> f64 {
        match self {
            // Each number goes through at most `terms` - 1 roundings, as zeros that pad are added without one. The product of two scales is
            // rounded once, and so is the scaled sum: `terms` + 1 roundings of 2^-24, and (1 + 2^-24)^(terms + 1) is at most
            // 1 + (terms + 2) · 2^-24 for fewer than 5,000 terms.
            Self::Nearest => {
                assert!(terms < 5000, "{terms} terms");
                (terms + 2) as f64 * 2f64.powi(-24)
            }
            // Each of the terms takes part in at most `terms` additions, and each of these loses at most an ulp (Higham, Accuracy and
            // Stability of Numerical Algorithms, section 4.2). Four more operations: scales and bias.
            Self::Of(float) => (terms + 4) as f64 * 2.0 * float.unit_roundoff(),
            // Of each of the 33 numbers of a step less than 2^-13 of the largest one is cut off, and that is at most the sum of all
            // magnitudes. One more step for the scales.
            Self::TensorCores => (terms.div_ceil(32) + 1) as f64 * 33.0 * 2f64.powi(-13),
        }
    }
}

/// The transpose of a row-major matrix.
pub fn transpose<T: Copy>(a: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    (0..columns).flat_map(|col| (0..rows).map(move |row| a[row * columns + col])).collect()
}

/// The result of a product, row by row.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Its elements. NaN and infinities as IEEE has them: f64 overflows nowhere on the way.
    pub values: Vec<f64>,
    /// The magnitudes of all that is added up in each element.
    pub magnitudes: Vec<f64>,
    /// How many numbers are added up in each element.
    pub terms: usize,
    /// What each element may lose outside of sums.
    slack: Vec<f64>,
    /// The largest finite number of the type that the result has.
    largest: f64,
}

impl Exact {
    /// `[m, k]` times `[k, n]`, row-major.
    pub fn product(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Self {
        assert!(a.len() == m * k && b.len() == k * n, "operands of {m}×{k}×{n}");
        let (mut values, mut magnitudes) = (vec![0.0; m * n], vec![0.0; m * n]);
        for row in 0..m {
            let (values, sizes) = (&mut values[row * n..][..n], &mut magnitudes[row * n..][..n]);
            for (i, a) in a[row * k..][..k].iter().enumerate() {
                for ((value, size), b) in values.iter_mut().zip(&mut *sizes).zip(&b[i * n..][..n]) {
                    *value += a * b;
                    *size += (a * b).abs();
                }
            }
        }
        // Where the scales make a result subnormal.
        let [smallest, largest] = Float::F32.range();
        Self { slack: vec![smallest; values.len()], values, magnitudes, terms: k, largest }
    }

    /// Output and gradients of a product: `x` `[m, k]`, `w` `[k, n]`, `g` `[m, n]`.
    pub fn step([x, w, g]: [&[f64]; 3], [m, k, n]: [usize; 3]) -> [Self; 3] {
        [
            Self::product(x, w, [m, k, n]),
            Self::product(g, &transpose(w, [k, n]), [m, n, k]),
            Self::product(&transpose(x, [m, k]), g, [k, m, n]),
        ]
    }

    /// Results one after another, as of a batch.
    pub fn joined(parts: impl IntoIterator<Item = Self>) -> Self {
        let joined = parts.into_iter().reduce(|mut all, part| {
            assert_eq!(all.terms, part.terms, "products of one depth");
            all.values.extend(part.values);
            all.magnitudes.extend(part.magnitudes);
            all.slack.extend(part.slack);
            all
        });
        joined.expect("a batch has matrices")
    }

    /// Times a number.
    pub fn times(mut self, factor: f64) -> Self {
        self.values.iter_mut().for_each(|value| *value *= factor);
        self.magnitudes.iter_mut().for_each(|magnitude| *magnitude *= factor.abs());
        self
    }

    /// The sum of both.
    pub fn plus(mut self, other: &Self) -> Self {
        assert_eq!(self.values.len(), other.values.len(), "results of one shape");
        self.terms += other.terms;
        for (mine, its) in [
            (&mut self.values, &other.values),
            (&mut self.magnitudes, &other.magnitudes),
            (&mut self.slack, &other.slack),
        ] {
            mine.iter_mut().zip(its).for_each(|(mine, its)| *mine += its);
        }
        self
    }

    /// With a matrix, or with a bias, the same for each row.
    pub fn plus_bias(mut self, bias: &[f32]) -> Self {
        for (index, value) in self.values.iter_mut().enumerate() {
            let bias = f64::from(bias[index % bias.len()]);
            *value += bias;
            self.magnitudes[index] += bias.abs();
        }
        self
    }

    /// With so many more roundings on the way of each term.
    pub fn with_roundings(mut self, more: usize) -> Self {
        self.terms += more;
        self
    }

    /// Rounded to a type.
    pub fn rounded(mut self, float: Float) -> Self {
        let [smallest, largest] = float.range();
        for (slack, value) in self.slack.iter_mut().zip(&self.values) {
            *slack += float.unit_roundoff() * value.abs().max(smallest);
        }
        self.largest = self.largest.min(largest);
        self
    }

    /// After a function whose slope is at most `slope`, and that is computed to `precision` of its argument.
    pub fn mapped(mut self, f: impl Fn(f64) -> f64, slope: f64, precision: f64) -> Self {
        for (index, value) in self.values.iter_mut().enumerate() {
            self.magnitudes[index] *= slope;
            self.slack[index] = self.slack[index] * slope + precision * value.abs();
            *value = f(*value);
        }
        self
    }

    /// How far from each element a result may be.
    pub fn bounds(&self, sums: Sums) -> Vec<f64> {
        let error = sums.error(self.terms);
        self.magnitudes.iter().zip(&self.slack).map(|(m, slack)| error * m + slack).collect()
    }

    /// The first element that is further off than its own error allows, or that is not finite where it should be, or the other way round;
    /// and of tensor cores, whose errors hardly ever add up to their bound, whether they are large over all.
    pub fn mismatch(&self, actual: &[f32], sums: Sums) -> Option<String> {
        assert_eq!(actual.len(), self.values.len(), "elements");
        let (mut error, mut total) = (0.0, 0.0);
        for (index, (bound, (a, e))) in
            self.bounds(sums).iter().zip(actual.iter().zip(&self.values)).enumerate()
        {
            let (a, e) = (f64::from(*a), *e);
            let right = match e.is_finite() {
                false => a == e || a.is_nan() && e.is_nan(),
                true if a.is_infinite() => {
                    e.abs() + bound > self.largest && a.signum() == e.signum()
                }
                // NaN is not near.
                true => (a - e).abs() <= *bound,
            };
            if !right {
                return Some(format!("[{index}] is {a:e}, not {e:e} ± {bound:e}"));
            }
            if e.is_finite() && a.is_finite() {
                error += (a - e).powi(2);
                total += e.powi(2);
            }
        }
        if sums == Sums::TensorCores {
            let slack: f64 = self.slack.iter().map(|slack| slack.powi(2)).sum();
            let limit = OVER_ALL * f64::sqrt(total) + slack.sqrt();
            if error.sqrt() > limit {
                return Some(format!("over all {:e} off", error.sqrt()));
            }
        }
        None
    }

    /// Asserts that there is no [`Self::mismatch`].
    #[track_caller]
    pub fn assert(&self, actual: &[f32], sums: Sums, what: &str) {
        if let Some(mismatch) = self.mismatch(actual, sums) {
            panic!("{what}{mismatch}");
        }
    }

    /// The first element that is not exactly that of this product, which f32 must hold. A zero may have either sign: sums begin with +0 on some
    /// units, with the first product on others.
    pub fn inexact(&self, actual: &[f32]) -> Option<String> {
        assert_eq!(actual.len(), self.values.len(), "elements");
        let wrong = |(a, e): (&f32, &f64)| {
            let narrow = *e as f32;
            assert!(narrow.is_nan() || f64::from(narrow) == *e, "{e} is no f32");
            *a != narrow && !(a.is_nan() && e.is_nan())
        };
        let at = actual.iter().zip(&self.values).position(wrong)?;
        Some(format!("[{at}] is {:e}, not {:e}", actual[at], self.values[at]))
    }

    /// Asserts that no element is [inexact](Self::inexact).
    #[track_caller]
    pub fn assert_exact(&self, actual: &[f32], what: &str) {
        if let Some(inexact) = self.inexact(actual) {
            panic!("{what}{inexact}");
        }
    }
}

/// The error of tensor cores relative to the norm of a result. DeepSeek saw single elements off by nearly 2 % with K = 4096 and fast
/// accumulation (section 3.3.2); over all elements it is less.
const OVER_ALL: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_and_its_gradients_are_those_by_hand() {
        let (x, w, g) = ([1.0, -2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [1.0, 0.0, 0.0, 1.0]);
        let [y, of_x, of_w] = Exact::step([&x, &w, &g], [2, 2, 2]);
        assert_eq!(y.values, [-9.0, -10.0, 43.0, 50.0]);
        assert_eq!(y.magnitudes, [19.0, 22.0, 43.0, 50.0]);
        assert_eq!(
            (of_x.values, of_w.values),
            (vec![5.0, 7.0, 6.0, 8.0], vec![1.0, 3.0, -2.0, 4.0])
        );
    }

    #[test]
    fn what_is_off_is_found() {
        let exact = Exact::product(&[1.0, -1.0], &[3.0, f64::INFINITY, 2.0, 1.0], [1, 2, 2]);
        for sums in [Sums::Nearest, Sums::F32, Sums::TensorCores] {
            assert_eq!(exact.mismatch(&[1.0, f32::INFINITY], sums), None);
            for wrong in [[1.1, f32::INFINITY], [f32::NAN, f32::INFINITY], [1.0, 1e30]] {
                assert!(exact.mismatch(&wrong, sums).is_some(), "{sums:?} {wrong:?}");
            }
        }
        // 5 in magnitude, so 4 · 2^-24 · 5 is the bound.
        let near = |bits| exact.mismatch(&[f32::from_bits(bits), f32::INFINITY], Sums::Nearest);
        assert!(near(1f32.to_bits() + 10).is_none() && near(1f32.to_bits() + 11).is_some());
    }
}
