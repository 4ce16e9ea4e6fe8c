//! Products of any shape and layout under any recipe against their definition, in f64.

use super::*;

/// A recipe of each granularity.
pub fn recipes() -> [Recipe; 5] {
    let torchao = Recipe::torchao_rowwise();
    [Recipe::current(), Recipe::rowwise(), torchao, Recipe::mxfp8(), Recipe::blockwise()]
}

/// How a tensor lies in memory. Some have other numbers than the tensor that they are made of.
#[derive(Clone, Copy, Debug)]
pub enum View {
    Contiguous,
    Transposed,
    /// Rows and columns in the middle of a larger tensor.
    Window,
    /// The second half of a larger stack: contiguous, but not from the start of the memory.
    Offset,
    Flipped,
    Expanded,
}

impl View {
    pub const ALL: [Self; 6] = [
        Self::Contiguous,
        Self::Transposed,
        Self::Window,
        Self::Offset,
        Self::Flipped,
        Self::Expanded,
    ];

    pub fn of<B: Backend, const D: usize>(self, x: Tensor<B, D>) -> Tensor<B, D> {
        let (dims, [rows, columns]) = (x.dims(), [D - 2, D - 1]);
        // What must not be read: `extra` more along a dimension, on both sides.
        let beside = |x: Tensor<B, D>, d: usize, extra: usize| {
            let mut dims = x.dims();
            dims[d] = extra;
            let huge = Tensor::full(dims, 1e30, &x.device());
            Tensor::cat(vec![huge.clone(), x, huge], d)
        };
        match self {
            Self::Contiguous => x,
            // Transposed in memory, and back as a view.
            Self::Transposed => {
                let swapped = x.clone().swap_dims(rows, columns).into_data();
                Tensor::from_data(swapped, &x.device()).swap_dims(rows, columns)
            }
            Self::Window => beside(beside(x, rows, 1), columns, 2)
                .narrow(rows, 1, dims[rows])
                .narrow(columns, 2, dims[columns]),
            Self::Offset => beside(x, 0, 3).narrow(0, 3, dims[0]),
            Self::Flipped => x.flip([rows as isize, columns as isize]),
            Self::Expanded => x.narrow(rows, 0, 1).expand(dims),
        }
    }
}

/// Asserts that output and gradients of `x · w` for the output gradient `g` are those of the definition. Leading dimensions broadcast; where the
/// right operand has one matrix, those of the left one count as rows.
pub fn assert_step<B: AutodiffBackend, const D: usize>(
    tensors: [Tensor<B, D>; 3],
    recipe: Recipe,
    what: &str,
) {
    let dtype = tensors[0].dtype();
    let exact = exact(&tensors, recipe);
    let results = every_matmul().with_recipe(recipe).scope(|| step(tensors));
    for ((name, actual), exact) in ["y", "dx", "dw"].into_iter().zip(results).zip(exact) {
        let what = format!("{what}, {recipe}: {name}");
        assert_eq!(actual.dtype(), dtype, "{what}");
        exact.rounded(float(dtype.into())).assert(&values(actual), Sums::F32, &what);
    }
}

/// Output and gradients in f64.
pub fn exact<B: Backend, const D: usize>(
    tensors: &[Tensor<B, D>; 3],
    recipe: Recipe,
) -> [Exact; 3] {
    let [x_dims, w_dims, _] = tensors.each_ref().map(|tensor| tensor.dims());
    let [x, w, g] = &tensors.each_ref().map(|tensor| values(tensor.clone()));
    let [m, k, n] = [x_dims[D - 2], x_dims[D - 1], w_dims[D - 1]];
    let count = |dims: [usize; D]| dims[..D - 2].iter().product::<usize>();
    if count(w_dims) == 1 {
        return exact_step_under(recipe, [x, w, g], [count(x_dims) * m, k, n]);
    }
    // A scale of a tensor is that of all its matrices; several are those of each.
    let whole = [(x, Operand::Input), (w, Operand::Weight), (g, Operand::OutputGrad)]
        .map(|(x, operand)| fp8::held(x, x.len(), operand, Along::Rows, recipe));
    let pair = |i: usize, j: usize, at: usize| {
        let [of_x, of_w, of_g] = [(i, m * k), (j, k * n), (at, m * n)]
            .map(|(index, size)| index * size..(index + 1) * size);
        match recipe.granularity() {
            Granularity::PerTensor => {
                Exact::step([&whole[0][of_x], &whole[1][of_w], &whole[2][of_g]], [m, k, n])
            }
            _ => exact_step_under(recipe, [&x[of_x], &w[of_w], &g[of_g]], [m, k, n]),
        }
    };
    let mut output = vec![];
    let [mut of_x, mut of_w] = [x_dims, w_dims].map(|dims| vec![None::<Exact>; count(dims)]);
    let dims = std::array::from_fn(|d| x_dims[d].max(w_dims[d]));
    for at in 0..count(dims) {
        let (i, j) = (matrix(at, x_dims, dims), matrix(at, w_dims, dims));
        let [y, dx, dw] = pair(i, j, at);
        output.push(y);
        for (sum, more) in [(&mut of_x[i], dx), (&mut of_w[j], dw)] {
            *sum = Some(match sum.take() {
                Some(sum) => sum.plus(&more),
                None => more,
            });
        }
    }
    let [dx, dw] = [of_x, of_w].map(|sums| Exact::joined(sums.into_iter().flatten()));
    [Exact::joined(output), dx, dw]
}

/// Which matrix of a tensor takes part in a product's matrix `at`.
fn matrix<const D: usize>(at: usize, dims: [usize; D], product: [usize; D]) -> usize {
    let (mut rest, mut size, mut matrix) = (at, 1, 0);
    for d in (0..D - 2).rev() {
        matrix += rest % product[d] % dims[d] * size;
        (rest, size) = (rest / product[d], size * dims[d]);
    }
    matrix
}

/// Rows of very different sizes, one of them zero.
fn rows_of_all_sizes(seed: u64, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut values = Random(seed).spread(rows * columns);
    for (row, values) in values.chunks_mut(columns).enumerate() {
        let size = match row % 7 {
            3 => 0.0,
            row => 2f32.powi(row as i32 * 7 - 21),
        };
        values.iter_mut().for_each(|value| *value *= size);
    }
    values
}

/// Output and gradients of a product of an odd shape, and what the trace says of it.
pub fn products_follow_the_definition<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    const SHAPE: [usize; 3] = [23, 35, 19];
    let [m, k, n] = SHAPE;
    let x = rows_of_all_sizes(1, [m, k]);
    let w = transpose(&rows_of_all_sizes(2, [n, k]), [n, k]);
    let g = rows_of_all_sizes(3, [m, n]);
    for recipe in recipes() {
        let config = every_matmul().with_recipe(recipe);
        let step = || matrix_step::<Outer<B>>([&x, &w, &g], SHAPE);
        let (results, report) = config.scope(|| trace(step));
        let exact = exact_step_under(recipe, [&x, &w, &g], SHAPE);
        for (actual, exact) in results.iter().zip(exact) {
            exact.assert(actual, Sums::F32, &format!("{recipe}"));
        }
        assert_eq!(report.products.len(), 3);
        let Formats { input, weight, output_grad, .. } = recipe.formats;
        let formats = [[input, weight], [output_grad, weight], [input, output_grad]];
        for ((product, role), formats) in report.products.iter().zip(GemmRole::ALL).zip(formats) {
            assert_eq!((product.role, &product.ran), (role, &implementation::<B>()));
            let operands = [product.lhs, product.rhs].map(|operand| operand.expect("in FP8"));
            assert_eq!(operands.map(|operand| operand.format), formats);
            assert_eq!(operands.map(|operand| operand.granularity), [recipe.granularity(); 2]);
            // Each block has the scale of its own amax.
            assert_eq!(operands.map(|operand| operand.saturated), [0; 2]);
        }
        // The largest of the scales is that of the whole tensor.
        let lhs = report.products[0].lhs.expect("in FP8");
        assert_eq!(lhs.scale, fp8::scale_of(fp8::amax(&x), lhs.format, recipe));
    }
}

/// Batches, broadcast on either side, leading dimensions that join, and every view, under each recipe; and in half precision.
pub fn every_shape_and_view_follows_the_definition<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let mut random = Random(3);
    let [m, k, n] = [6, 40, 10];
    for (x, w, g) in [
        ([2, 1, m, k], [1, 4, k, n], [2, 4, m, n]),
        ([2, 3, m, k], [2, 3, k, n], [2, 3, m, n]),
        ([2, 3, m, k], [1, 1, k, n], [2, 3, m, n]),
        ([1, 1, m, k], [2, 2, k, n], [2, 2, m, n]),
        ([1, 1, m, k], [1, 1, k, n], [1, 1, m, n]),
    ] {
        let tensors = [x, w, g]
            .map(|dims| tensor::<Outer<B>, 4>(&random.spread(dims.iter().product()), dims));
        for (index, recipe) in recipes().into_iter().enumerate() {
            for view in 0..View::ALL.len() {
                let of = |at: usize| View::ALL[(at * view + index) % View::ALL.len()];
                let [x, w, g] = tensors.clone();
                let views = [of(1).of(x), of(2).of(w), of(3).of(g)];
                let what = format!("{:?} {:?} {:?}", of(1), of(2), of(3));
                assert_step(views, recipe, &what);
            }
            // Sums over a batch are Burn's, in half precision.
            if x[..2] == g[..2] && w[..2] == g[..2] {
                for dtype in half_types::<B>() {
                    let tensors = tensors.clone().map(|tensor| tensor.cast(dtype));
                    assert_step(tensors, recipe, &format!("{dtype:?}"));
                }
            }
        }
    }
}

/// Asserts that linear layers follow the definition under each recipe with the decorator outside, and give the same bits inside.
pub fn assert_linear<O: AutodiffBackend, I: AutodiffBackend, const D: usize>(lead: [usize; D]) {
    let shape @ [m, _, n] = [lead[..D - 1].iter().product(), 13, 7];
    let data = linear_data(D as u64, shape);
    let [x, w, b, g] = &data;
    for recipe in recipes() {
        every_matmul().with_recipe(recipe).scope(|| {
            let outer = linear_step::<O, D>(&data, lead);
            let [y, dx, dw] = exact_step_under(recipe, [x, w, g], shape);
            let db = Exact::product(&vec![1.0; m], &wide(g), [1, m, n]);
            for (actual, exact) in outer.iter().zip([y.plus_bias(b), dx, dw, db]) {
                exact.assert(actual, Sums::F32, &format!("{recipe}, {lead:?}"));
            }
            let inner = linear_step::<I, D>(&data, lead);
            assert_eq!(outer.map(|values| bits(&values)), inner.map(|values| bits(&values)));
        });
    }
}

pub fn linear_layers_follow_the_definition_in_both_orders<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    assert_linear::<Outer<B>, Inner<B>, 2>([5, 0]);
    assert_linear::<Outer<B>, Inner<B>, 3>([2, 5, 0]);
    assert_linear::<Outer<B>, Inner<B>, 4>([2, 3, 5, 0]);
}

/// What is not finite shows in its own row, whatever the scales are; where each row has its own it costs the others nothing.
pub fn non_finite_values_stay_in_their_rows<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [5, 256, 4];
    let (clean, w) = (Random(9).spread(m * k), Random(10).spread(k * n));
    for recipe in recipes() {
        let product = |x: &[f32]| {
            let x = tensor::<Outer<B>, 2>(x, [m, k]);
            let config = every_matmul().with_recipe(recipe);
            config.scope(|| values(x.matmul(tensor(&w, [k, n]))))
        };
        let expected = product(&clean);
        let mut poisoned = clean.clone();
        poisoned[k] = f32::NAN;
        poisoned[2 * k + 3] = f32::INFINITY;
        poisoned[3 * k + 2] = f32::NEG_INFINITY;
        for (index, (actual, expected)) in product(&poisoned).iter().zip(expected).enumerate() {
            match index / n {
                1..=3 => assert!(actual.is_nan(), "{recipe} [{index}]: {actual}"),
                _ => assert_eq!(actual.to_bits(), expected.to_bits(), "{recipe} [{index}]"),
            }
        }
    }
}
