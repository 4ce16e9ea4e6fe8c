//! Products of small integers with power-of-two scales are exact in FP8, and their sums fit in what tensor cores keep: native,
//! emulated and integer arithmetic agree to the last bit, in every layout, type and order of decorators.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::linear;
use burn::tensor::{FloatDType, Tensor};
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::{Fp8Config, Fp8Matmul, trace};

use crate::common::{Inner, Outer, assert_close, bits, tensor, values};
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Operand, assert_native, assert_sample, emulated, first, integers, is_rehearsal, native,
    normal, power_of_two, product, rounded, transposed, typed,
};

/// M, K, N: single elements, odd, smaller than padding, multiples of it, more than one tile.
const SHAPES: [[usize; 3]; 8] = [
    [1, 1, 1],
    [16, 16, 16],
    [17, 33, 50],
    [1, 64, 64],
    [64, 128, 96],
    [100, 257, 300],
    [512, 384, 640],
    [1024, 1024, 512],
];

/// The result of a product and its gradients.
struct Step {
    y: Vec<f32>,
    dx: Vec<f32>,
    dw: Vec<f32>,
}

#[track_caller]
fn assert_exact(actual: &Step, expected: &Step, what: &str) {
    for (name, actual, expected) in [
        ("y", &actual.y, &expected.y),
        ("dx", &actual.dx, &expected.dx),
        ("dw", &actual.dw, &expected.dw),
    ] {
        // A zero has either sign.
        assert_close(actual, expected, 0.0, &format!("{what}: {name}"));
    }
}

/// In integers, rounded to the type of the tensors.
fn expected(x: &[f32], w: &[f32], g: &[f32], [m, k, n]: [usize; 3], dtype: FloatDType) -> Step {
    Step {
        y: rounded(product(x, w, [m, k, n]), dtype),
        dx: rounded(product(g, &transposed(w, [k, n]), [m, n, k]), dtype),
        dw: rounded(product(&transposed(x, [m, k]), g, [k, m, n]), dtype),
    }
}

fn step<B: AutodiffBackend>(
    x: Tensor<B, 2>,
    w: Tensor<B, 2>,
    g: Tensor<B, 2>,
    multiply: fn(Tensor<B, 2>, Tensor<B, 2>) -> Tensor<B, 2>,
) -> Step {
    let (x, w) = (x.require_grad(), w.require_grad());
    let y = multiply(x.clone(), w.clone());
    // The gradient of sum(y · g) with respect to y is g, exactly.
    let grads = (y.clone() * g).sum().backward();
    Step {
        y: values(y),
        dx: values(x.grad(&grads).expect("x is tracked")),
        dw: values(w.grad(&grads).expect("w is tracked")),
    }
}

/// `D` is `B` with both decorators.
fn check_shapes<B: Backend, D: AutodiffBackend>(
    what: &str,
    multiply: fn(Tensor<D, 2>, Tensor<D, 2>) -> Tensor<D, 2>,
) {
    let shapes = if is_rehearsal::<B>() { &SHAPES[..6] } else { first(&SHAPES, 5) };
    for &shape @ [m, k, n] in shapes {
        let x = integers(1, m * k, 2);
        let w = integers(2, k * n, 2);
        let g = integers(3, m * n, 2);
        for dtype in DTYPES {
            let expected = expected(&x, &w, &g, shape, dtype);
            let run = || {
                step::<D>(
                    typed(&x, [m, k], dtype),
                    typed(&w, [k, n], dtype),
                    typed(&g, [m, n], dtype),
                    multiply,
                )
            };
            let what = format!("{what} {m}×{k}×{n} {dtype:?}");
            for result in [&expected.y, &expected.dx, &expected.dw] {
                assert!(result.iter().any(|value| *value != 0.0), "{what}: there are numbers");
            }
            let (step, report) = trace(|| power_of_two(native::<B>()).scope(run));
            assert_native::<B>(&report, 3);
            assert_exact(&step, &expected, &format!("native {what}"));
            let step = power_of_two(emulated()).scope(run);
            assert_exact(&step, &expected, &format!("emulated {what}"));
        }
    }
}

fn of_integers_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    check_shapes::<B, Outer<B>>("matmul", |x, w| x.matmul(w));
    check_shapes::<B, Outer<B>>("linear", |x, w| linear(x, w, None));
}

fn of_integers_are_exact_in_the_other_order<B: Fp8Matmul>()
where
    Inner<B>: AutodiffBackend,
{
    check_shapes::<B, Inner<B>>("matmul", |x, w| x.matmul(w));
    check_shapes::<B, Inner<B>>("linear", |x, w| linear(x, w, None));
}

fn of_views_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let [m, k, n] = [48, 80, 64];
    fn views<B: Backend>(
        seed: u64,
        [rows, columns]: [usize; 2],
    ) -> Vec<(&'static str, Tensor<B, 2>)> {
        let base =
            |shape: [usize; 2]| tensor::<B, 2>(&integers(seed, shape[0] * shape[1], 2), shape);
        vec![
            ("contiguous", base([rows, columns])),
            ("transposed", base([columns, rows]).transpose()),
            ("sliced", base([2 * rows, 2 * columns]).slice([3..3 + rows, 5..5 + columns])),
            ("flipped", base([rows, columns]).flip([0, 1])),
            ("rows narrowed", base([2 * rows, columns]).narrow(0, 2, rows)),
            ("expanded", base([1, columns]).expand([rows, columns])),
        ]
    }
    for (x_view, x) in views::<Outer<B>>(1, [m, k]) {
        for (w_view, w) in views::<Outer<B>>(2, [k, n]) {
            for (g_view, g) in [("contiguous", 0), ("transposed", 1)]
                .map(|(view, index)| (view, views::<Outer<B>>(3, [m, n]).swap_remove(index).1))
            {
                let data = [x.clone(), w.clone(), g.clone()].map(values);
                let expected = expected(&data[0], &data[1], &data[2], [m, k, n], FloatDType::F32);
                let run = || step(x.clone(), w.clone(), g.clone(), |x, w| x.matmul(w));
                let step = power_of_two(native::<B>()).scope(run);
                assert_exact(&step, &expected, &format!("x {x_view}, w {w_view}, g {g_view}"));
            }
        }
    }
}

/// Leading dimensions count as rows; the bias is added outside.
fn with_bias_and_leading_dimensions_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let [batch, rows, k, n] = [3, 20, 48, 33];
    let m = batch * rows;
    let (x, w) = (integers(1, m * k, 2), integers(2, k * n, 2));
    let (g, bias) = (integers(3, m * n, 2), integers(4, n, 8));
    for dtype in DTYPES {
        let mut exact = expected(&x, &w, &g, [m, k, n], dtype);
        for (index, y) in exact.y.iter_mut().enumerate() {
            *y += bias[index % n];
        }
        exact.y = rounded(exact.y, dtype);
        let ones = vec![1.0; m];
        let bias_grad = rounded(product(&ones, &g, [1, m, n]), dtype);
        for (what, config) in [("native", native::<B>()), ("emulated", emulated())] {
            let x = typed::<Outer<B>, 3>(&x, [batch, rows, k], dtype).require_grad();
            let w = typed::<Outer<B>, 2>(&w, [k, n], dtype).require_grad();
            let b = typed::<Outer<B>, 1>(&bias, [n], dtype).require_grad();
            let g = typed::<Outer<B>, 3>(&g, [batch, rows, n], dtype);
            let step = power_of_two(config).scope(|| {
                let y = linear(x.clone(), w.clone(), Some(b.clone()));
                let grads = (y.clone() * g).sum().backward();
                assert_close(
                    &values(b.grad(&grads).expect("tracked")),
                    &bias_grad,
                    0.0,
                    "gradient of the bias",
                );
                Step {
                    y: values(y),
                    dx: values(x.grad(&grads).expect("tracked")),
                    dw: values(w.grad(&grads).expect("tracked")),
                }
            });
            assert_exact(&step, &exact, &format!("{what} {dtype:?}"));
        }
    }
}

/// Without gradients, and over more dimensions.
fn of_four_dimensions_are_exact<B: Fp8Matmul>() {
    type Plain<B> = burn_fp8::Fp8Backend<B>;
    let [k, n] = [64, 48];
    let (x, w) = (integers(1, 2 * 3 * 40 * k, 2), integers(2, k * n, 2));
    let exact = product(&x, &w, [240, k, n]);
    let run = |config: Fp8Config| {
        let x = tensor::<Plain<B>, 4>(&x, [2, 3, 40, k]);
        let w = tensor::<Plain<B>, 4>(&w, [1, 1, k, n]);
        let (y, report) = trace(|| power_of_two(config).scope(|| x.matmul(w)));
        (values(y), report)
    };
    let (y, report) = run(native::<B>());
    assert_native::<B>(&report, 1);
    assert_close(&y, &exact, 0.0, "native");
    assert_close(&run(emulated()).0, &exact, 0.0, "emulated");
}

/// The same product gives the same bits each time it runs.
fn are_deterministic<B: Fp8Matmul>() {
    type Plain<B> = burn_fp8::Fp8Backend<B>;
    let [m, k, n] = [200, 1000, 300];
    let (x_values, w_values) = (normal(1, m * k), normal(2, k * n));
    let x = tensor::<Plain<B>, 2>(&x_values, [m, k]);
    let w = tensor::<Plain<B>, 2>(&w_values, [k, n]);
    let run = || native::<B>().scope(|| values(x.clone().matmul(w.clone())));
    let first = run();
    let operands = [Operand(&x_values, E4M3), Operand(&w_values, E4M3)];
    assert_sample::<B>(&first, operands, [m, k, n], FloatDType::F32, "the first time");
    assert!((0..20).all(|_| bits(&run()) == bits(&first)));
}

on_cuda_and_rehearsed!(
    of_integers_are_exact,
    of_integers_are_exact_in_the_other_order,
    of_views_are_exact,
    with_bias_and_leading_dimensions_are_exact,
    of_four_dimensions_are_exact,
    are_deterministic,
);
