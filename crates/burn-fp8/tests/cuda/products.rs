//! Products of small integers with power-of-two scales are exact in FP8, and their sums fit in what tensor cores keep: native,
//! emulated and integer arithmetic agree to the last bit, in every layout, type and order of decorators.

use burn::tensor::module::linear;

use crate::common::products::View;
use crate::common::reference::transpose;
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Operand, assert_native, assert_sample, emulated, first, integers, is_rehearsal, native,
    normal, power_of_two, product, rounded, trace_single_calls, typed,
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

#[track_caller]
fn assert_exact(actual: &[Vec<f32>; 3], expected: &[Vec<f32>; 3], what: &str) {
    for (name, (actual, expected)) in ["y", "dx", "dw"].into_iter().zip(actual.iter().zip(expected))
    {
        // A zero has either sign.
        assert_close(actual, expected, 0.0, &format!("{what}: {name}"));
        assert!(expected.iter().any(|value| *value != 0.0), "{what}: there are numbers");
    }
}

/// In integers, rounded to the type of the tensors.
fn expected([x, w, g]: [&[f32]; 3], [m, k, n]: [usize; 3], dtype: FloatDType) -> [Vec<f32>; 3] {
    [
        product(x, w, [m, k, n]),
        product(g, &transpose(w, [k, n]), [m, n, k]),
        product(&transpose(x, [m, k]), g, [k, m, n]),
    ]
    .map(|exact| rounded(exact, dtype))
}

/// `D` is `B` with both decorators. Products as such, and as a linear layer's.
fn check_shapes<B: Backend, D: AutodiffBackend>() {
    let shapes = if is_rehearsal::<B>() { &SHAPES[..6] } else { first(&SHAPES, 5) };
    for &shape @ [m, k, n] in shapes {
        let x = integers(1, m * k, 2);
        let w = integers(2, k * n, 2);
        let g = integers(3, m * n, 2);
        for dtype in DTYPES {
            let expected = expected([&x, &w, &g], shape, dtype);
            let typed_ones = || {
                [(&x, [m, k]), (&w, [k, n]), (&g, [m, n])]
                    .map(|(x, shape)| typed::<D, 2>(x, shape, dtype))
            };
            let as_layer = || {
                let [x, w, g] = typed_ones();
                let (x, w) = (x.require_grad(), w.require_grad());
                let y = linear(x.clone(), w.clone(), None);
                let grads = (y.clone() * g).sum().backward();
                let [dx, dw] = [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")));
                [values(y), dx, dw]
            };
            let as_product = || step(typed_ones()).map(values);
            for (what, run) in
                [("matmul", &as_product as &dyn Fn() -> [Vec<f32>; 3]), ("linear", &as_layer)]
            {
                let what = format!("{what} {m}×{k}×{n} {dtype:?}");
                let (step, report) = trace(|| power_of_two(native::<B>()).scope(run));
                assert_native::<B>(&report, 3);
                assert_exact(&step, &expected, &format!("native {what}"));
                let step = power_of_two(emulated()).scope(run);
                assert_exact(&step, &expected, &format!("emulated {what}"));
            }
        }
    }
}

fn of_integers_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    check_shapes::<B, Outer<B>>();
}

fn of_integers_are_exact_in_the_other_order<B: Fp8Matmul>()
where
    Inner<B>: AutodiffBackend,
{
    check_shapes::<B, Inner<B>>();
}

fn of_views_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    let shape @ [m, k, n] = [48, 80, 64];
    let base = |seed, shape: [usize; 2]| {
        tensor::<Outer<B>, 2>(&integers(seed, shape[0] * shape[1], 2), shape)
    };
    for (x_view, w_view) in View::ALL.into_iter().flat_map(|x| View::ALL.map(|w| (x, w))) {
        for g_view in [View::Contiguous, View::Transposed] {
            let tensors = [
                // A seed whose first row does not sum to zero: expanded, it is all rows.
                x_view.of(base(4, [m, k])),
                w_view.of(base(2, [k, n])),
                g_view.of(base(3, [m, n])),
            ];
            let data = tensors.each_ref().map(|tensor| values(tensor.clone()));
            let data = data.each_ref().map(Vec::as_slice);
            let expected = expected(data, shape, FloatDType::F32);
            let step = power_of_two(native::<B>()).scope(|| step(tensors).map(values));
            assert_exact(&step, &expected, &format!("x {x_view:?}, w {w_view:?}, g {g_view:?}"));
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
        let [y, dx, dw] = expected([&x, &w, &g], [m, k, n], dtype);
        let y: Vec<_> = y.iter().enumerate().map(|(at, y)| y + bias[at % n]).collect();
        let db = rounded(product(&vec![1.0; m], &g, [1, m, n]), dtype);
        for (what, config) in [("native", native::<B>()), ("emulated", emulated())] {
            let x = typed::<Outer<B>, 3>(&x, [batch, rows, k], dtype).require_grad();
            let layer = Linear::<Outer<B>> {
                weight: Param::from_tensor(typed(&w, [k, n], dtype)),
                bias: Some(Param::from_tensor(typed(&bias, [n], dtype))),
            };
            let g = typed::<Outer<B>, 3>(&g, [batch, rows, n], dtype);
            let (result, grads) = power_of_two(config).scope(|| {
                let y = layer.forward(x.clone());
                (y.clone(), (y * g).sum().backward())
            });
            let step = [
                values(result),
                values(x.grad(&grads).expect("tracked")),
                values(layer.weight.grad(&grads).expect("tracked")),
            ];
            let expected = [rounded(y.clone(), dtype), dx.clone(), dw.clone()];
            assert_exact(&step, &expected, &format!("{what} {dtype:?}"));
            let of_bias = layer.bias.expect("with bias").grad(&grads).expect("tracked");
            assert_close(&values(of_bias), &db, 0.0, "gradient of the bias");
        }
    }
}

/// Without gradients, and over more dimensions.
fn of_four_dimensions_are_exact<B: Fp8Matmul>() {
    let [k, n] = [64, 48];
    let (x, w) = (integers(1, 2 * 3 * 40 * k, 2), integers(2, k * n, 2));
    let exact = product(&x, &w, [240, k, n]);
    let run = |config: Fp8Config| {
        let x = tensor::<Fp8Backend<B>, 4>(&x, [2, 3, 40, k]);
        let w = tensor::<Fp8Backend<B>, 4>(&w, [1, 1, k, n]);
        let (y, report) = trace(|| power_of_two(config).scope(|| x.matmul(w)));
        (values(y), report)
    };
    let (y, report) = run(native::<B>());
    assert_native::<B>(&report, 1);
    assert_close(&y, &exact, 0.0, "native");
    assert_close(&run(emulated()).0, &exact, 0.0, "emulated");
}

/// Of a batch: those of operands of such leading dimensions, one after the other.
fn each([lhs, rhs]: [[usize; 2]; 2], mut visit: impl FnMut([usize; 3])) {
    let [outer, inner] = [0, 1].map(|dim| lhs[dim].max(rhs[dim]));
    for (index, (i, j)) in (0..outer).flat_map(|i| (0..inner).map(move |j| (i, j))).enumerate() {
        let [a, b] = [lhs, rhs].map(|[outer, inner]| (i % outer) * inner + j % inner);
        visit([a, b, index]);
    }
}

/// Of batches, of odd sizes too, some matrices of which the products share; the right operand is a view.
fn of_batches_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for (leading @ [lhs, rhs], [m, k, n]) in [
        ([[2, 3], [2, 3]], [32, 16, 48]),
        ([[2, 3], [2, 3]], [17, 33, 50]),
        ([[2, 3], [1, 3]], [16, 48, 16]),
        ([[2, 1], [1, 3]], [5, 20, 33]),
        ([[1, 1], [2, 2]], [64, 32, 1]),
    ] {
        let count = |[outer, inner]: [usize; 2]| outer * inner;
        let products = [0, 1].map(|dim| lhs[dim].max(rhs[dim]));
        let x = integers(1, count(lhs) * m * k, 2);
        let w = integers(2, count(rhs) * k * n, 2);
        let g = integers(3, count(products) * m * n, 2);
        let mut exact = [vec![], vec![0.0; x.len()], vec![0.0; w.len()]];
        each(leading, |[a, b, index]| {
            let x = &x[a * m * k..][..m * k];
            // As it lies: [N, K].
            let w = transpose(&w[b * k * n..][..k * n], [n, k]);
            let g = &g[index * m * n..][..m * n];
            let [y, dx, dw] = expected([x, &w, g], [m, k, n], FloatDType::F32);
            exact[0].extend(y);
            let add = |sums: &mut [f32], terms: Vec<f32>| {
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
            };
            add(&mut exact[1][a * m * k..], dx);
            add(&mut exact[2][b * k * n..], transpose(&dw, [k, n]));
        });
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let run = || {
                let x = typed::<Outer<B>, 4>(&x, [lhs[0], lhs[1], m, k], dtype).require_grad();
                let w = typed::<Outer<B>, 4>(&w, [rhs[0], rhs[1], n, k], dtype).require_grad();
                let g = typed::<Outer<B>, 4>(&g, [products[0], products[1], m, n], dtype);
                let y = x.clone().matmul(w.clone().swap_dims(2, 3));
                let grads = (y.clone() * g).sum().backward();
                let [dx, dw] = [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")));
                [values(y), dx, dw]
            };
            let what = format!("{leading:?} {m}×{k}×{n} {dtype:?}");
            let expected = exact.clone().map(|exact| rounded(exact, dtype));
            for recipe in [Recipe::current(), Recipe::delayed()] {
                let config = |config: Fp8Config| power_of_two(config.with_recipe(recipe));
                let (step, report) =
                    trace_single_calls::<B, _>(|| config(native::<B>()).scope(run));
                assert_native::<B>(&report, 3);
                assert_exact(&step, &expected, &format!("native {what} {recipe}"));
                let step = config(emulated()).scope(run);
                assert_exact(&step, &expected, &format!("emulated {what} {recipe}"));
            }
        }
    }
}

/// The same product gives the same bits each time it runs.
fn are_deterministic<B: Fp8Matmul>() {
    let [m, k, n] = [200, 1000, 300];
    let (x_values, w_values) = (normal(1, m * k), normal(2, k * n));
    let x = tensor::<Fp8Backend<B>, 2>(&x_values, [m, k]);
    let w = tensor::<Fp8Backend<B>, 2>(&w_values, [k, n]);
    let run = || native::<B>().scope(|| values(x.clone().matmul(w.clone())));
    let first = run();
    let operands = [Operand(&x_values, E4M3), Operand(&w_values, E4M3)];
    assert_sample::<B>(&first, operands, [m, k, n], FloatDType::F32, "the first time");
    assert!((0..20).all(|_| bits(&run()) == bits(&first)));
}

on_cuda_and_rehearsed!([
    of_integers_are_exact,
    of_integers_are_exact_in_the_other_order,
    of_views_are_exact,
    with_bias_and_leading_dimensions_are_exact,
    of_four_dimensions_are_exact,
    of_batches_are_exact,
    are_deterministic,
]);
