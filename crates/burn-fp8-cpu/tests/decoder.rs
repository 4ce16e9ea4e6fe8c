//! What a decoder does between products, against f64.

use burn_fp8_cpu::decoder::{rms_norm, swiglu, turn};

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i + seed) * 7919) % 20_011) as f32 / 1000.0 - 10.0).collect()
}

fn assert_near(found: f32, expected: f64, bound: f64, what: &str) {
    assert!((f64::from(found) - expected).abs() <= bound, "{what}: {found}, not {expected}");
}

#[test]
fn rows_are_divided_by_the_root_of_their_mean_square() {
    // Rows that are shorter than a vector, odd ones, and more than one thread does.
    for (rows, width) in [(1, 1), (3, 7), (2, 33), (1, 1024), (70, 1000)] {
        let (x, gamma) = (numbers(rows * width, 1), numbers(width, 5));
        let mut y = x.clone();
        rms_norm(&mut y, &gamma, 1e-6);
        for (row, (x, y)) in x.chunks(width).zip(y.chunks(width)).enumerate() {
            let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
            let factor = 1.0 / (square + 1e-6).sqrt();
            for ((x, y), gamma) in x.iter().zip(y).zip(&gamma) {
                let expected = f64::from(*x) * factor * f64::from(*gamma);
                assert_near(*y, expected, 5e-7 * expected.abs(), &format!("{width}, row {row}"));
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_leaves_the_others_as_they_are() {
    let mut x = numbers(3 * 40, 3);
    let mut clean = x.clone();
    x[40] = f32::NAN;
    let gamma = numbers(40, 7);
    rms_norm(&mut x, &gamma, 1e-5);
    rms_norm(&mut clean, &gamma, 1e-5);
    assert!(x[40..80].iter().all(|x| x.is_nan()));
    assert_eq!((&x[..40], &x[80..]), (&clean[..40], &clean[80..]));
    let mut zeros = [0f32; 5];
    rms_norm(&mut zeros, &[1.0; 5], 1e-5);
    assert_eq!(zeros, [0.0; 5]);
}

#[test]
fn heads_are_turned_by_the_angle_of_their_row() {
    for (rows, heads, half) in [(1, 1, 1), (3, 2, 5), (2, 16, 64), (40, 16, 64)] {
        let angles = numbers(rows * half, 11);
        let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let x = numbers(rows * heads * 2 * half, 13);
        let mut y = x.clone();
        turn(&mut y, heads, half, [&cos, &sin]);
        for row in 0..rows {
            for head in 0..heads {
                for i in 0..half {
                    let first = (row * heads + head) * 2 * half + i;
                    let [a, b] = [x[first], x[first + half]].map(f64::from);
                    let [cos, sin] = [&cos, &sin].map(|table| f64::from(table[row * half + i]));
                    let what = format!("{rows} {heads} {half}: {row} {head} {i}");
                    assert_near(y[first], a * cos - b * sin, 2e-6, &what);
                    assert_near(y[first + half], b * cos + a * sin, 2e-6, &what);
                }
            }
        }
    }
}

#[test]
fn gates_open_as_silu() {
    for count in [0, 1, 37, 70_000] {
        let mut gate = numbers(count, 17);
        let up = numbers(count, 19);
        let special = [0.0, -0.0, 1e-40, -1e30, 1e30, -104.0];
        gate.iter_mut().zip(special).for_each(|(gate, special)| *gate = special);
        let before = gate.clone();
        swiglu(&mut gate, &up);
        for (i, found) in gate.into_iter().enumerate() {
            let (x, up) = (f64::from(before[i]), f64::from(up[i]));
            let expected = x / (1.0 + (-x).exp()) * up;
            assert_near(found, expected, 5e-7 * expected.abs() + 1e-43, &format!("{x} {up}"));
        }
    }
    let mut lost = [f32::NAN, f32::INFINITY];
    swiglu(&mut lost, &[1.0, 2.0]);
    assert!(lost[0].is_nan() && lost[1] == f32::INFINITY);
}

#[test]
#[should_panic(expected = "are not rows of 3")]
fn rows_are_whole() {
    rms_norm(&mut [1.0; 7], &[1.0; 3], 1e-5);
}

#[test]
#[should_panic(expected = "2 gates, 3 elements")]
fn gates_have_their_elements() {
    swiglu(&mut [1.0; 2], &[1.0; 3]);
}
