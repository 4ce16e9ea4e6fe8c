//! Products of numbers in bf16, against f64: on each unit of the machine.

use burn_fp8_cpu::{Numbers, Output, Unit, matmul_in_bf16};
use half::bf16;

use crate::common::{Exact, Sums, numbers, pool, wide};

/// A matrix in memory that lies in one of several ways, with a gap after each line.
struct Lying {
    f32s: Vec<f32>,
    bf16s: Vec<bf16>,
    shape: [usize; 2],
    stride: usize,
    transposed: bool,
    is_bf16: bool,
}

impl Lying {
    fn new(shape @ [rows, columns]: [usize; 2], way: usize, seed: u64) -> Self {
        let (transposed, gap, is_bf16) = (way & 1 == 1, (way >> 1 & 1) * 3, way >> 2 & 1 == 1);
        let [lines, elements] = if transposed { [columns, rows] } else { [rows, columns] };
        let stride = elements + gap;
        let f32s = numbers(lines * stride, seed);
        let bf16s = f32s.iter().copied().map(bf16::from_f32).collect();
        Self { f32s, bf16s, shape, stride, transposed, is_bf16 }
    }

    fn get(&self) -> Numbers<'_> {
        let [rows, columns] = self.shape;
        let lines = if self.transposed { [columns, rows] } else { [rows, columns] };
        let numbers = match self.is_bf16 {
            true => Numbers::bf16(&self.bf16s, lines, self.stride),
            false => Numbers::f32(&self.f32s, lines, self.stride),
        };
        if self.transposed { numbers.transpose() } else { numbers }
    }

    /// The numbers that are multiplied, row by row.
    fn exact(&self) -> Vec<f64> {
        let [rows, columns] = self.shape;
        let at = |row: usize, column: usize| {
            let [line, element] = if self.transposed { [column, row] } else { [row, column] };
            self.bf16s[line * self.stride + element].to_f64()
        };
        (0..rows * columns).map(|i| at(i / columns, i % columns)).collect()
    }
}

fn product(unit: Unit, lhs: &Lying, rhs: &Lying) -> Vec<f32> {
    let mut y = vec![f32::NAN; lhs.shape[0] * rhs.shape[1]];
    matmul_in_bf16(unit, lhs.get(), rhs.get(), Output::F32(&mut y));
    y
}

/// Around the sizes of panels, of vectors and of blocks of K; each way of lying on either side, from f32 and from bf16.
#[test]
fn products_are_as_in_f64() {
    let sizes = [
        [1, 1, 1],
        [3, 17, 5],
        [14, 32, 32],
        [15, 33, 31],
        [70, 130, 63],
        [29, 64, 600],
        [5, 40, 1],
    ];
    for [m, n, k] in sizes {
        for ways in 0..64 {
            let lhs = Lying::new([m, k], ways % 8, 1);
            let rhs = Lying::new([k, n], ways / 8, 5);
            let exact = Exact::product(&lhs.exact(), &rhs.exact(), [m, k, n]);
            for unit in Unit::available() {
                let found = product(unit, &lhs, &rhs);
                exact.assert(&found, Sums::F32, &format!("{unit}, {m}×{n}×{k}, {ways}"));
            }
        }
    }
}

/// Integers are exact: the same sums on every unit, by any number of threads.
#[test]
fn sums_of_integers_are_exact_for_any_number_of_threads() {
    let [m, n, k] = [150, 260, 700];
    let integers = |count, seed| -> Vec<f32> {
        numbers(count, seed).into_iter().map(|x| (x * 16.0).round()).collect()
    };
    let (a, b) = (integers(m * k, 3), integers(k * n, 7));
    let expected = Exact::product(&wide(&a), &wide(&b), [m, k, n]);
    for unit in Unit::available() {
        for threads in [1, 2, 5] {
            let mut y = vec![f32::NAN; m * n];
            let [a, b] = [Numbers::f32(&a, [m, k], k), Numbers::f32(&b, [k, n], n)];
            pool(threads).install(|| matmul_in_bf16(unit, a, b, Output::F32(&mut y)));
            expected.assert_exact(&y, &format!("{unit}, {threads} threads"));
        }
    }
}

#[test]
fn halves_are_rounded_to_even_and_the_rest_is_as_ieee_has_it() {
    // Half of a step above 1 and above the next number, a bit more, and numbers that are none.
    let x = [1.003_906_3, 1.011_718_8, 1.003_906_4, f32::NAN, f32::INFINITY, f32::MAX];
    for unit in Unit::available() {
        let mut y = [0f32; 6];
        let [a, b] = [Numbers::f32(&x, [6, 1], 1), Numbers::f32(&[1.0], [1, 1], 1)];
        matmul_in_bf16(unit, a, b, Output::F32(&mut y));
        assert_eq!(y[..3], [1.0, 1.015_625, 1.007_812_5], "{unit}");
        assert!(y[3].is_nan() && y[4..] == [f32::INFINITY; 2], "{unit}");
        let mut y = [bf16::ZERO; 4];
        let x = [3.0, 5.0, 7.0, 9.0];
        let [a, b] = [Numbers::f32(&x, [2, 2], 2), Numbers::f32(&x, [2, 2], 2)];
        matmul_in_bf16(unit, a, b, Output::Bf16(&mut y));
        assert_eq!(y.map(f32::from), [44.0, 60.0, 84.0, 116.0], "{unit}");
    }
}

#[test]
fn nothing_is_multiplied() {
    for unit in Unit::available() {
        for [m, n, k] in [[0, 3, 2], [3, 0, 2], [2, 3, 0]] {
            let mut y = vec![1f32; m * n];
            let (a, b) = (vec![1.0; m * k], vec![1.0; k * n]);
            let [a, b] = [Numbers::f32(&a, [m, k], k), Numbers::f32(&b, [k, n], n)];
            matmul_in_bf16(unit, a, b, Output::F32(&mut y));
            assert!(y.iter().all(|y| *y == 0.0));
        }
    }
}

#[test]
#[should_panic(expected = "2 × 3 is not multiplied by 2 × 2: 3 and 2 must be equal")]
fn shapes_fit() {
    let x = [1.0; 6];
    let [a, b] = [Numbers::f32(&x, [2, 3], 3), Numbers::f32(&x, [2, 2], 2)];
    matmul_in_bf16(Unit::Portable, a, b, Output::F32(&mut [0.0; 4]));
}

#[test]
#[should_panic(expected = "6 numbers are no 3 × 2 with a stride of 3")]
fn rows_are_inside() {
    Numbers::f32(&[1.0; 6], [3, 2], 3);
}
