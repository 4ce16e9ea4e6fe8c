//! Products with the sums of tensor cores, against the exact reference.

use burn_fp8::sums::{
    Accumulation, Accumulator, SplitK, SplitOrder, Sums, dot, scaled as scaled_sum,
};
use burn_fp8::{Fp8Matmul, engine::Untracked};

use super::*;

/// More than 128 of each, so that chains begin anew in every product.
const SIZE: [usize; 3] = [140, 150, 130];

/// A matrix in FP8 along what is summed: codes `[lines, K]`, and scales of blocks `[⌈lines / block⌉, ⌈K / block⌉]`.
struct Lines {
    codes: Vec<u8>,
    scales: Vec<f32>,
    block: [usize; 2],
    k: usize,
    format: Fp8Format,
}

impl Lines {
    fn new(x: &[f32], k: usize, format: Fp8Format, block: [usize; 2], recipe: Recipe) -> Self {
        let shape = [x.len() / k, k];
        let codes = match block {
            [usize::MAX, usize::MAX] => Fp8Tensor::quantize(tensor::<Flex, 2>(x, shape), format),
            block => Fp8Tensor::quantize_blocks(tensor::<Flex, 2>(x, shape), format, block, recipe)
                .expect("blocks"),
        };
        let (codes, scales) = codes.into_parts();
        Self { codes, scales, block, k, format }
    }

    fn line(&self, line: usize) -> &[u8] {
        &self.codes[line * self.k..][..self.k]
    }

    fn scale(&self, line: usize, at: usize) -> f32 {
        let along = self.k.div_ceil(self.block[1]);
        self.scales[line / self.block[0] * along + at / self.block[1]]
    }
}

fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    (0..x.len())
        .map(|at| x[at % (x.len() / columns) * columns + at / (x.len() / columns)])
        .collect()
}

/// With one scale for each line: the sum, then both scales.
fn product(
    [a, b]: [&Lines; 2],
    sums: Sums,
    accumulation: Accumulation,
    split: Option<SplitK>,
) -> Vec<f32> {
    let accumulator = sums.accumulator().expect("those of a card");
    let [m, n] = [a, b].map(|lines| lines.codes.len() / lines.k);
    let of = |at: usize| {
        let (i, j) = (at / n, at % n);
        let sum =
            dot(accumulator, [a.line(i), b.line(j)], [a.format, b.format], accumulation, split);
        scaled_sum(sum, [a.scale(i, 0), b.scale(j, 0)])
    };
    (0..m * n).map(of).collect()
}

fn same(y: &[f32], expected: &[f32], what: &str) {
    let differ = y.iter().zip(expected).filter(|(y, expected)| y.to_bits() != expected.to_bits());
    assert_eq!((y.len(), differ.count()), (expected.len(), 0), "{what}");
    assert!(y.iter().filter(|y| **y != 0.0).count() > y.len() / 2, "{what} says nothing");
}

/// A linear layer forward and backward, in both orders of decorators: E4M3 forward in one chain, E5M2 for gradients in chains of 128.
pub fn layers_have_the_sums_of_cards_in_both_orders<B: Untracked + Fp8Matmul>() {
    let [m, k, n] = SIZE;
    let mut random = Random(3);
    let [x, w, g] = [m * k, k * n, m * n].map(|count| random.units(count));
    let whole =
        |x: &[f32], along, format| Lines::new(x, along, format, [usize::MAX; 2], Recipe::current());
    for sums in Sums::CARDS {
        let config = Fp8Config::default().with_sums(sums);
        let split = config.with_accumulation(GemmRole::Output, Accumulation::Split);
        let grad_fast = config.with_accumulation(GemmRole::GradInput, Accumulation::Fast);
        for (config, of_output, of_grad_input) in [
            (config, Accumulation::Fast, Accumulation::Split),
            (split, Accumulation::Split, Accumulation::Split),
            (grad_fast, Accumulation::Fast, Accumulation::Fast),
        ] {
            let y = product(
                [&whole(&x, k, E4M3), &whole(&transposed(&w, n), k, E4M3)],
                sums,
                of_output,
                None,
            );
            let dx = product([&whole(&g, n, E5M2), &whole(&w, n, E4M3)], sums, of_grad_input, None);
            let (x_t, g_t) = (transposed(&x, k), transposed(&g, n));
            let dw = product(
                [&whole(&x_t, m, E4M3), &whole(&g_t, m, E5M2)],
                sums,
                Accumulation::Split,
                None,
            );
            let data = [x.clone(), w.clone(), vec![0.0; n], g.clone()];
            let check = |step: [Vec<f32>; 4], order: &str| {
                for (y, expected) in step.iter().zip([&y, &dx, &dw]) {
                    same(y, expected, &format!("{sums}, {of_output:?}, {order}"));
                }
            };
            let outer = || linear_step::<Outer<B>, 2>(&data, [m, 0]);
            let (step, report) = config.scope(|| trace(outer));
            check(step, "outer");
            assert_eq!(report.fp8().count(), 3);
            for ran in report.fp8().map(|product| product.ran.to_string()) {
                assert!(ran.starts_with(&format!("emulated, sums of {sums}")), "{ran}");
                // Of Blackwell it is said that cuBLAS is not known.
                assert_eq!(ran.contains("not of cuBLAS"), sums == Sums::Blackwell, "{ran}");
            }
            check(config.scope(|| linear_step::<Inner<B>, 2>(&data, [m, 0])), "inner");
            // A batch of sequences is a matrix.
            check(config.scope(|| linear_step::<Outer<B>, 3>(&data, [2, m / 2, 0])), "sequences");
        }
    }
}

/// Batches of matrices, each operand of which broadcasts.
pub fn batches_have_the_sums_of_cards<B: Untracked + Fp8Matmul>() {
    let [m, k, n] = [17, 150, 20];
    let mut random = Random(4);
    let (x, w) = (random.units(2 * m * k), random.units(3 * k * n));
    let config = every_matmul().with_sums(Sums::Hopper);
    let y: Tensor<Fp8Backend<B>, 4> = config
        .scope(|| tensor::<Fp8Backend<B>, 4>(&x, [2, 1, m, k]).matmul(tensor(&w, [1, 3, k, n])));
    let whole = |x: &[f32], format| Lines::new(x, k, format, [usize::MAX; 2], Recipe::current());
    let y = values(y);
    let weights: Vec<f32> = w.chunks(k * n).flat_map(|w| transposed(w, n)).collect();
    let all =
        product([&whole(&x, E4M3), &whole(&weights, E4M3)], Sums::Hopper, Accumulation::Fast, None);
    for (index, y) in y.chunks(m * n).enumerate() {
        let (i, j) = (index / 3, index % 3);
        let expected: Vec<f32> =
            (0..m * n).map(|at| all[(i * m + at / n) * 3 * n + j * n + at % n]).collect();
        same(y, &expected, &format!("{i} {j}"));
    }
}

/// Scales of rows in the epilogue; those of blocks of 128 a chain each, added in f32; MXFP8's in the exponents, where Blackwell has them.
pub fn scales_of_every_granularity_are_multiplied_as_on_cards<B: Untracked + Fp8Matmul>() {
    let [m, k, n] = [20, 300, 24];
    let mut random = Random(5);
    let (x, w) = (random.spread(m * k), random.spread(n * k));
    for (sums, recipe, of_x, of_w) in [
        (Sums::Hopper, Recipe::rowwise(), [1, usize::MAX], [1, usize::MAX]),
        (Sums::Ada, Recipe::torchao_rowwise(), [1, usize::MAX], [1, usize::MAX]),
        (Sums::Hopper, Recipe::blockwise(), [1, 128], [128, 128]),
        (Sums::Hopper, Recipe::blockwise().with_power_of_two(false), [1, 128], [128, 128]),
        (Sums::Blackwell, Recipe::mxfp8(), [1, 32], [1, 32]),
    ] {
        let [a, b] =
            [(&x, of_x), (&w, of_w)].map(|(x, block)| Lines::new(x, k, E4M3, block, recipe));
        let accumulator = sums.accumulator().expect("a card's");
        let expected: Vec<f32> = (0..m * n)
            .map(|at| {
                let (i, j) = (at / n, at % n);
                let blocks =
                    |along: usize| a.line(i).chunks(along).zip(b.line(j).chunks(along)).enumerate();
                match of_x[1] {
                    usize::MAX => {
                        let lines = [a.line(i), b.line(j)];
                        let sum = dot(accumulator, lines, [E4M3; 2], Accumulation::Split, None);
                        scaled_sum(sum, [a.scale(i, 0), b.scale(j, 0)])
                    }
                    32 => blocks(32).fold(0.0, |c, (at, (x, y))| {
                        let exponent = |scale: f32| scale.log2() as i32;
                        let moved = exponent(a.scale(i, 32 * at)) + exponent(b.scale(j, 32 * at));
                        burn_fp8::sums::step(accumulator, [x, y], [E4M3; 2], moved, c)
                    }),
                    along => blocks(along).fold(0.0, |total: f32, (at, (x, y))| {
                        let sum = dot(accumulator, [x, y], [E4M3; 2], Accumulation::Fast, None);
                        let scale = a.scale(i, along * at) * b.scale(j, along * at);
                        sum.mul_add(scale, total)
                    }),
                }
            })
            .collect();
        let config = Fp8Config::default().with_sums(sums).with_recipe(recipe);
        let w = transposed(&w, k);
        let (y, report) = config
            .scope(|| trace(|| tensor::<Fp8Backend<B>, 2>(&x, [m, k]).matmul(tensor(&w, [k, n]))));
        same(&values(y), &expected, &format!("{sums} {recipe}"));
        let ran = report.products[0].ran.to_string();
        let said =
            if sums == Sums::Blackwell { "not of cuBLAS" } else { "not compared with a card" };
        assert!(ran.contains(said), "{ran}");
    }
}

/// One call of cuBLASLt as it was recorded: K in parts, bf16 out.
pub fn scaled_products_are_split_as_they_are_told<B: Untracked + Fp8Matmul>() {
    let [m, k, n] = [16, 700, 32];
    let mut random = Random(6);
    let (x, w) = (random.units(m * k), random.units(n * k));
    let [a, b] = [&x, &w].map(|x| Lines::new(x, k, E4M3, [usize::MAX; 2], Recipe::current()));
    let [x, w] = [(&x, m), (&w, n)]
        .map(|(x, lines)| Fp8Tensor::quantize(tensor::<B, 2>(x, [lines, k]), E4M3));
    for (sums, order) in [
        (Sums::Hopper, SplitOrder::Contiguous),
        (Sums::Ada, SplitOrder::Serial),
        (Sums::Ada, SplitOrder::Pairwise),
    ] {
        for fast in [false, true] {
            let options = ScaledMatmulOptions::default().with_split_k(3, order);
            let options = if fast { options.with_fast_accumulation() } else { options };
            let accumulation = if fast { Accumulation::Fast } else { Accumulation::Split };
            let y = Fp8Config::default()
                .with_sums(sums)
                .scope(|| scaled_matmul(&x, &w.transpose(), &options))
                .expect("a product");
            let split = Some(SplitK { splits: 3, order });
            let expected = product([&a, &b], sums, accumulation, split);
            same(&values(y.into_float()), &expected, &format!("{sums} {order:?} {fast}"));
            // Short chains of 13 bits add up exactly in any order.
            if fast {
                let unsplit = product([&a, &b], sums, accumulation, None);
                let differ = expected.iter().zip(&unsplit).filter(|(y, other)| y != other).count();
                assert!(differ > 0, "the splits show");
            }
        }
    }
}

/// `fma(sum, RN(scale · scale), RN(beta · C))`, with scales of a tensor and of rows.
pub fn a_matrix_is_added_in_one_rounding<B: Untracked + Fp8Matmul>() {
    let [m, k, n] = [16, 300, 20];
    let mut random = Random(7);
    let (x, w, c) = (random.units(m * k), random.units(n * k), random.spread(m * n));
    let beta = 0.3;
    for block in [[usize::MAX; 2], [1, usize::MAX]] {
        let [a, b] = [&x, &w].map(|x| Lines::new(x, k, E4M3, block, Recipe::current()));
        let [x, w] = [(&x, m), (&w, n)].map(|(x, lines)| {
            let x = tensor::<B, 2>(x, [lines, k]);
            match block {
                [usize::MAX, usize::MAX] => Fp8Tensor::quantize(x, E4M3),
                block => {
                    Fp8Tensor::quantize_blocks(x, E4M3, block, Recipe::current()).expect("rows")
                }
            }
        });
        // A view whose rows do not lie in order.
        let c_of = tensor::<B, 2>(&transposed(&c, n), [n, m]).transpose();
        let options = ScaledMatmulOptions::default().with_c(c_of, beta);
        for sums in Sums::CARDS {
            let y = Fp8Config::default()
                .with_sums(sums)
                .scope(|| scaled_matmul(&x, &w.transpose(), &options))
                .expect("a product");
            let accumulator = sums.accumulator().expect("a card's");
            let expected: Vec<f32> = (0..m * n)
                .map(|at| {
                    let (i, j) = (at / n, at % n);
                    let lines = [a.line(i), b.line(j)];
                    let sum = dot(accumulator, lines, [E4M3; 2], Accumulation::Split, None);
                    sum.mul_add(a.scale(i, 0) * b.scale(j, 0), beta * c[at])
                })
                .collect();
            same(&values(y.into_float()), &expected, &format!("{sums} {block:?}"));
        }
    }
}

/// A user's accumulator, and what cannot be.
pub fn sums_that_no_card_has_are_refused<B: Untracked + Fp8Matmul>() {
    let device = Default::default();
    let refused = |config: Fp8Config, parts: &[&str]| {
        let error = config.check::<Fp8Backend<B>>(&device).expect_err("refused").to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        let product = || {
            let x = ones::<Fp8Backend<B>, 2>([32, 32]);
            config.scope(|| drop(x.clone().matmul(x)))
        };
        let said = panic_of(product);
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    for card in [Sums::Hopper, Sums::Ada] {
        let config = Fp8Config::default().with_sums(card).with_recipe(Recipe::mxfp8());
        refused(config, &["MXFP8", card.name(), "Sums::Blackwell"]);
    }
    let native = Fp8Config::default().with_sums(Sums::Hopper).with_execution(Execution::Native);
    refused(native, &["hopper", "Execution::Auto"]);
    let custom = |accumulator| Fp8Config::default().with_sums(Sums::Custom(accumulator));
    refused(custom(Accumulator { products: 0, ..Accumulator::HOPPER }), &["products = 0"]);
    refused(custom(Accumulator { result: 24, ..Accumulator::HOPPER }), &["result = 24", "23"]);
    let uneven = custom(Accumulator { products: 48, ..Accumulator::HOPPER });
    refused(uneven.with_recipe(Recipe::blockwise()), &["128", "48 products"]);
    let matrix = |block| {
        Fp8Tensor::quantize_blocks(ones::<B, 2>([16, 256]), E4M3, block, Recipe::current())
            .expect("blocks")
    };
    let split = |config: Fp8Config, block, splits, part: &str| {
        let options = ScaledMatmulOptions::default().with_split_k(splits, SplitOrder::Serial);
        let (a, b) = (matrix(block), matrix(block).transpose());
        let product = config.scope(|| scaled_matmul(&a, &b, &options));
        let error = product.expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    };
    let (row, hopper) = ([1, usize::MAX], Fp8Config::default().with_sums(Sums::Hopper));
    split(Fp8Config::default(), row, 2, "Fp8Config::with_sums");
    split(hopper, row, 0, "1 to");
    split(hopper, row, usize::MAX, "1 to");
    split(hopper, [1, 128], 2, "several scales along K");
    split(hopper.with_execution(Execution::Native), row, 2, "Execution::Auto");
    let json = r#"{"sums": {"custom": {"products": 4, "fraction": 10, "result": 12, "running": "late", "chain": 64}}}"#;
    let config = Fp8Config::from_json(json).expect("an accumulator of one's own");
    config.check::<Fp8Backend<B>>(&device).expect("in range");
    assert_eq!(Fp8Config::from_json(&config.to_json()).expect("its own JSON"), config);
    for (json, part) in [
        (r#"{"sums": "hopper", "recipe": "mxfp8"}"#, "Sums::Blackwell"),
        (&json.replace(r#""products": 4"#, r#""products": 65"#), "products = 65"),
    ] {
        let error = Fp8Config::from_json(json).expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let uneven = custom(Accumulator { chain: 48, ..Accumulator::HOPPER });
    refused(uneven.with_recipe(Recipe::mxfp8()), &["chains of 48", "32"]);
    let error = Fp8Config::from_json(r#"{"sums": "volta"}"#).expect_err("no FP8").to_string();
    assert!(error.contains("hopper"), "{error}");
}
