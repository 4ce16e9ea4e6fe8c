//! What a decoder does between products, against f64.

use burn_fp8_cpu::decoder::{rms_norm, swiglu, turn};

use burn_fp8_test_support::operations::{Function, rms_norm as exact_norm};

use crate::common::{Random, assert_within, on_all_instructions, wide};

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    Random(seed).betweens(-10.0, 10.0, count)
}

#[test]
fn rows_are_divided_by_the_root_of_their_mean_square() {
    on_all_instructions(|| {
        // Rows that are shorter than a vector, odd ones, and more than one thread does.
        for (rows, width) in [(1, 1), (3, 7), (2, 33), (1, 1024), (70, 1000)] {
            let (x, gamma) = (numbers(rows * width, 1), numbers(width, 5));
            let mut y = x.clone();
            rms_norm(&mut y, &gamma, 1e-6);
            let exact = exact_norm(&wide(&x), &gamma, 1e-6f32.into());
            assert_within(&y, &exact, |y| 5e-7 * y.abs(), &format!("{rows} rows of {width}"));
        }
    });
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
    on_all_instructions(|| {
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
                        let (found, exact) =
                            ([y[first], y[first + half]], [a * cos - b * sin, b * cos + a * sin]);
                        assert_within(
                            &found,
                            &exact,
                            |_| 2e-6,
                            &format!("{rows} {heads} {half}: {row} {head} {i}"),
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn gates_open_as_silu() {
    on_all_instructions(|| {
        for count in [0, 1, 37, 70_000] {
            let mut gate = numbers(count, 17);
            let up = numbers(count, 19);
            let special = [0.0, -0.0, 1e-40, -1e30, 1e30, -104.0];
            gate.iter_mut().zip(special).for_each(|(gate, special)| *gate = special);
            let before = gate.clone();
            swiglu(&mut gate, &up);
            let exact = before.iter().zip(&up);
            let exact = exact.map(|(x, up)| Function::Silu.of((*x).into()) * f64::from(*up));
            // A gate of -104 or less is 0, not 1e-43, and multiplied by up to 10.
            assert_within(&gate, &exact.collect::<Vec<_>>(), |y| 5e-7 * y.abs() + 1e-42, "gates");
        }
        let mut lost = [f32::NAN, f32::INFINITY];
        swiglu(&mut lost, &[1.0, 2.0]);
        assert!(lost[0].is_nan() && lost[1] == f32::INFINITY);
    });
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
