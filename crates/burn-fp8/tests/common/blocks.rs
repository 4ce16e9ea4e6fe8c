//! Scales of blocks: against golden data, and against the slices of `burn-fp8-core`, which have golden data of their own.

use burn_fp8::burn_fp8_core::slice::blocks::{self, Blocks};

use super::*;

pub const ROUNDINGS: [ScaleRounding; 4] =
    [ScaleRounding::Rceil, ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];

pub fn mx(rounding: ScaleRounding) -> Recipe {
    Recipe::mxfp8().with_granularity(Granularity::Mx(rounding))
}

/// Layers of torchao (MXFP8), TransformerEngine and DeepSeek (blocks of 128): outputs and gradients.
pub fn layers_are_those_of_other_libraries<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let mut compared = 0;
    for (file, list) in [("mx", "linear_cases"), ("blockwise_linear", "cases")] {
        let golden = Golden::open(file);
        for case in golden.list(list) {
            let name = case["name"].as_str().expect("a name");
            let (layer, rule) = name.rsplit_once('.').expect("layer and rule");
            let recipe = match rule {
                "rceil" => mx(ScaleRounding::Rceil),
                "floor" => mx(ScaleRounding::Floor),
                "divide" => Recipe::blockwise().with_power_of_two(false),
                "pow2" => Recipe::blockwise(),
                // It multiplies by a rounded reciprocal of the scale; we divide.
                rule => {
                    assert_eq!(rule, "reciprocal");
                    continue;
                }
            };
            let [m, k, n] = ["m", "k", "n"].map(|key| case[key].as_u64().expect("a size") as usize);
            let [x, w, g] = ["x", "w", "g"].map(|part| golden.f32(&format!("{layer}/{part}")).0);
            let (results, report) = every_matmul().with_recipe(recipe).scope(|| {
                let lhs = tensor::<Outer<B>, 2>(&x, [m, k]).require_grad();
                let weight = tensor::<Outer<B>, 2>(&w, [n, k]).require_grad();
                trace(|| {
                    let output = lhs.clone().matmul(weight.clone().transpose());
                    let grads = (output.clone() * tensor(&g, [m, n])).sum().backward();
                    let grad = |of: &Tensor<Outer<B>, 2>| values(of.grad(&grads).expect("tracked"));
                    [values(output), grad(&lhs), grad(&weight)]
                })
            });
            for (result, part) in results.iter().zip(["output", "grad_input", "grad_weight"]) {
                let expected = golden.wide(&format!("{name}/{part}"));
                assert_close(result, &expected, 1e-5, &format!("{name}/{part}"));
                compared += 1;
            }
            assert_eq!(report.products.len(), 3);
            for product in &report.products {
                assert_eq!(product.ran, implementation::<B>());
                for operand in [product.lhs, product.rhs] {
                    let operand = operand.expect("in FP8");
                    assert_eq!(operand.granularity, recipe.granularity());
                    assert_eq!(operand.format, Fp8Format::E4M3);
                }
            }
        }
    }
    assert_eq!(compared, 3 * (8 + 6));
}

/// All magnitudes of f32, subnormal ones where the device has them, zeros and blocks of zeros, the amaxes at which roundings turn.
fn extremes(count: usize, subnormals: bool) -> Vec<f32> {
    let mut random = Random(11);
    (0..count)
        .map(|index| {
            let exponent = if subnormals { random.bits() % 255 } else { 30 + random.bits() % 225 };
            let mantissa = [0, 3 << 21, (3 << 21) + 1, 0x78_0000, 0x77_ffff, 0x7f_ffff];
            let mantissa = match random.bits() % 7 {
                6 => random.bits() as u32 & 0x7f_ffff,
                turn => mantissa[turn as usize],
            };
            let sign = (random.bits() as u32) & 0x8000_0000;
            match index / 64 % 5 {
                4 => 0.0,
                // Blocks of one size: the amax decides.
                3 => f32::from_bits(sign | (((index / 64) as u32 * 7 % 200 + 40) << 23) | mantissa),
                _ => f32::from_bits(sign | ((exponent as u32) << 23) | mantissa),
            }
        })
        .collect()
}

/// Codes, scales and dequantized numbers of every block shape and rounding, in every layout, bit for bit those of the slices.
pub fn blocks_are_those_of_slices<B: Fp8Matmul>() {
    assert_blocks::<B>(true);
}

/// The same on a device that takes subnormal numbers for 0: it has no scale 2^-127.
pub fn blocks_are_those_of_slices_but_subnormal_ones<B: Fp8Matmul>() {
    assert_blocks::<B>(false);
}

fn assert_blocks<B: Fp8Matmul>(subnormals: bool) {
    let recipes = ROUNDINGS.map(|rounding| (mx(rounding), [[1, 32], [32, 1]]));
    let blockwise = [false, true].map(|power_of_two| {
        (Recipe::blockwise().with_power_of_two(power_of_two), [[1, 128], [128, 128]])
    });
    let recipes: Vec<_> = recipes.into_iter().chain(blockwise).collect();
    let scales_of = |scales: &[f32]| -> Vec<u32> {
        let is_lost = |scale: f32| !subnormals && scale < f32::MIN_POSITIVE;
        bits(&scales.iter().map(|s| if is_lost(*s) { 0.0 } else { *s }).collect::<Vec<_>>())
    };
    for [rows, columns] in [[1, 1], [33, 70], [64, 128], [131, 260]] {
        let x = extremes(rows * columns, subnormals);
        let transposed: Vec<f32> = (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            for (recipe, block) in recipes.iter().flat_map(|(r, blocks)| blocks.map(|b| (r, b))) {
                let matrix = Blocks { columns, block };
                let grid = matrix.grid(x.len());
                let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; grid[0] * grid[1]]);
                blocks::encode(&x, matrix, format, *recipe, &mut codes, &mut scales);
                let mut decoded = vec![0.0; x.len()];
                blocks::decode(&codes, matrix, &scales, format, &mut decoded);
                let plain = tensor::<B, 2>(&x, [rows, columns]);
                let view = tensor::<B, 2>(&transposed, [columns, rows]).transpose();
                for (layout, x) in [("rows", plain), ("a transposed view", view)] {
                    let place =
                        format!("{rows}×{columns}, {layout}, {block:?}, {format}, {recipe}");
                    let theirs = Fp8Tensor::quantize_blocks(x, format, block, *recipe);
                    let theirs = theirs.expect("rows and columns");
                    assert_eq!(scales_of(&values(theirs.scales())), scales_of(&scales), "{place}");
                    assert_eq!(theirs.to_bytes(), codes, "{place}");
                    let dequantized = values(theirs.dequantize());
                    match subnormals {
                        true => assert_eq!(bits(&dequantized), bits(&decoded), "{place}"),
                        false => assert_close(&dequantized, &decoded, 1e-7, &place),
                    }
                }
            }
        }
    }
}

/// An outlier costs the precision of its own block alone.
pub fn outliers_stay_in_their_blocks<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [3, 256, 4];
    let x: Vec<f32> = (0..m * k)
        .map(|index| match index {
            0 => 1e6,
            index => [1.0, -1.25, 1.5, 0.0625][index % 4] * if index % k < 128 { 1.0 } else { 2.0 },
        })
        .collect();
    for (recipe, along) in [(Recipe::mxfp8(), 32), (Recipe::blockwise(), 128)] {
        // Exact in E4M3 where no outlier is in the block.
        let product = |w: &[f32]| {
            let x = tensor::<Outer<B>, 2>(&x, [m, k]);
            let config = every_matmul().with_recipe(recipe);
            config.scope(|| values(x.matmul(tensor(w, [n, k]).transpose())))
        };
        let rounded = product(&vec![1.0; n * k]);
        for row in [1, 2] {
            assert_eq!(rounded[row * n], x[row * k..][..k].iter().sum::<f32>());
        }
        // The other blocks of its own row, too: the weight takes its block out.
        let others = (0..n * k).map(|at| if at % k < along { 0.0 } else { 1.0 });
        let rounded = product(&others.collect::<Vec<_>>());
        assert_eq!(rounded[0], x[along..k].iter().sum::<f32>());
    }
}

/// Where no unit multiplies scales of blocks `Auto` says so in the trace, and `Native` is an error. Tensor cores have to be asked to try.
pub fn native_is_refused_in_words<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    for recipe in [Recipe::mxfp8(), Recipe::blockwise().with_power_of_two(false)] {
        let config = every_matmul().with_recipe(recipe).with_execution(Execution::Native);
        if matches!(implementation::<B>(), Implementation::MatrixUnit(_)) {
            config.check::<B>(&Default::default()).expect("a unit takes them");
            continue;
        }
        let error = config.check::<B>(&Default::default()).expect_err("emulated only");
        assert!(matches!(error, Fp8Error::NativeUnavailable { .. }), "{error}");
        // The product runs on `Autodiff<B>`, which has a name of its own.
        let reason = error.to_string();
        let reason = &reason[reason.find('(').expect("a reason in parentheses")..];
        let ones = [&[1.0; 1024][..]; 3];
        panics(|| config.scope(|| matrix_step::<Outer<B>>(ones, [32; 3])), [reason]);
    }
}
