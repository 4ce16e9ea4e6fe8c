//! Products of small integers with power-of-two scales are exact in FP8, and their sums fit in what tensor cores keep: native,
//! emulated and integer arithmetic agree to the last bit, in every layout, type and order of decorators.

use crate::common::products::{View, exact};
use crate::common::*;
use crate::on_cuda_and_rehearsed;
use crate::support::{
    DTYPES, Operand, assert_native, assert_sample, emulated, first, integers, is_rehearsal, native,
    rounded, trace_single_calls, typed,
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

/// Runs products natively, each one call, and emulated: results are exactly these, rounded to a type.
#[track_caller]
fn check<B: Backend, const N: usize>(
    run: impl Fn() -> [Vec<f32>; N],
    recipe: Recipe,
    exact: [Vec<f32>; N],
    dtype: FloatDType,
    what: &str,
) {
    let recipe = recipe.with_power_of_two(true);
    let (native, report) =
        trace_single_calls::<B, _>(|| native::<B>().with_recipe(recipe).scope(&run));
    assert_native::<B>(&report, 3);
    let emulated = emulated().with_recipe(recipe).scope(&run);
    for (index, exact) in exact.into_iter().enumerate() {
        let expected = rounded(exact, dtype);
        assert!(expected.iter().any(|value| *value != 0.0), "{what} {index}: there are numbers");
        for (way, results) in [("native", &native), ("emulated", &emulated)] {
            // A zero has either sign.
            assert_close(&results[index], &expected, 0.0, &format!("{way} {what} {index}"));
        }
    }
}

/// The same of output and gradients of `x · w`.
#[track_caller]
fn check_step<B: Backend, D: AutodiffBackend, const R: usize>(
    tensors: [Tensor<D, R>; 3],
    recipe: Recipe,
    what: &str,
) {
    let dtype = tensors[0].dtype().into();
    let exact = exact(&tensors, Recipe::current().with_power_of_two(true)).map(narrow);
    check::<B, 3>(|| step(tensors.clone()).map(values), recipe, exact, dtype, what);
}

/// `D` is `B` with both decorators. Products as such, and as a linear layer's, with a bias and leading dimensions.
fn check_shapes<B: Backend, D: AutodiffBackend>() {
    let shapes = if is_rehearsal::<B>() { &SHAPES[..6] } else { first(&SHAPES, 5) };
    let current = Recipe::current();
    for &shape @ [m, k, n] in shapes {
        let [x, w, g] =
            [(1, m * k), (2, k * n), (3, m * n)].map(|(i, count)| integers(i, count, 2));
        let bias = integers(4, n, 8);
        for dtype in DTYPES {
            let what = format!("{m}×{k}×{n} {dtype:?}");
            let tensors = [(&x, [m, k]), (&w, [k, n]), (&g, [m, n])]
                .map(|(x, shape)| typed::<D, 2>(x, shape, dtype));
            check_step::<B, D, 2>(tensors, current, &format!("matmul {what}"));

            // Product and bias are rounded, and so is their sum.
            let [y, dx, dw] = Exact::step([&wide(&x), &wide(&w), &wide(&g)], shape).map(narrow);
            let y = rounded(y, dtype).iter().enumerate().map(|(at, y)| y + bias[at % n]).collect();
            let db = narrow(Exact::product(&vec![1.0; m], &wide(&g), [1, m, n]));
            let data = [&x, &w, &bias, &g].map(Vec::clone);
            let lead = if m % 4 == 0 { [4, m / 4, 0] } else { [1, m, 0] };
            let run = || linear_step_in::<D, 3>(dtype, &data, lead);
            check::<B, 4>(run, current, [y, dx, dw, db], dtype, &format!("linear {what}"));
        }
    }
}

fn narrow(exact: Exact) -> Vec<f32> {
    exact.values.iter().map(|x| *x as f32).collect()
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
    let [m, k, n] = [48, 80, 64];
    let base = |seed, shape: [usize; 2]| {
        tensor::<Outer<B>, 2>(&integers(seed, shape[0] * shape[1], 2), shape)
    };
    for (x, w) in View::ALL.into_iter().flat_map(|x| View::ALL.map(|w| (x, w))) {
        for g in [View::Contiguous, View::Transposed] {
            // A seed whose first row does not sum to zero: expanded, it is all rows.
            let tensors = [x.of(base(4, [m, k])), w.of(base(2, [k, n])), g.of(base(3, [m, n]))];
            let what = format!("x {x:?}, w {w:?}, g {g:?}");
            check_step::<B, Outer<B>, 2>(tensors, Recipe::current(), &what);
        }
    }
}

/// Of batches, of odd sizes too, some matrices of which the products share; the right operand is a view.
fn of_batches_are_exact<B: Fp8Matmul>()
where
    Outer<B>: AutodiffBackend,
{
    for ([lhs, rhs], [m, k, n]) in [
        ([[2, 3], [2, 3]], [32, 16, 48]),
        ([[2, 3], [2, 3]], [17, 33, 50]),
        ([[2, 3], [1, 3]], [16, 48, 16]),
        ([[2, 1], [1, 3]], [5, 20, 33]),
        ([[1, 1], [2, 2]], [64, 32, 1]),
        // One matrix: leading dimensions count as rows.
        ([[2, 3], [1, 1]], [40, 64, 48]),
    ] {
        let products = [0, 1].map(|dim| lhs[dim].max(rhs[dim]));
        for (dtype, recipe) in [FloatDType::F32, FloatDType::BF16]
            .into_iter()
            .flat_map(|dtype| [Recipe::current(), Recipe::delayed()].map(|recipe| (dtype, recipe)))
        {
            let of = |seed, [outer, inner]: [usize; 2], [rows, columns]: [usize; 2]| {
                let count = outer * inner * rows * columns;
                typed::<Outer<B>, 4>(
                    &integers(seed, count, 2),
                    [outer, inner, rows, columns],
                    dtype,
                )
            };
            let w = of(2, rhs, [n, k]).swap_dims(2, 3);
            let tensors = [of(1, lhs, [m, k]), w, of(3, products, [m, n])];
            let what = format!("{lhs:?} {rhs:?} {m}×{k}×{n} {dtype:?} {recipe}");
            check_step::<B, Outer<B>, 4>(tensors, recipe, &what);
        }
    }
}

/// The same product gives the same bits each time it runs.
fn are_deterministic<B: Fp8Matmul>() {
    let [m, k, n] = [200, 1000, 300];
    let (x_values, w_values) = (Random(1).normals(m * k), Random(2).normals(k * n));
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
    of_batches_are_exact,
    are_deterministic,
]);
