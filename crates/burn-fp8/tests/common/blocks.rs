//! Scales of blocks: against golden data, and against the slices of `burn-fp8-core`, which have golden data of their own.

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorPrimitive};
use burn_fp8::burn_fp8_core::slice::blocks::{self, Blocks};
use burn_fp8::engine::{BlockCodes, Fallback, Fp8Engine, QuantizeBlocks};
use burn_fp8::report::Implementation;
use burn_fp8::{
    Capability, Execution, Fp8Config, Fp8Error, Fp8Format, Fp8Matmul, Granularity, Recipe, Report,
    ScaleRounding, trace,
};

use super::golden::Golden;
use super::{Inner, Outer, Random, assert_close, bits, every_matmul, panic_of, tensor, values};

const ROUNDINGS: [ScaleRounding; 4] =
    [ScaleRounding::Rceil, ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];

fn mx(rounding: ScaleRounding) -> Recipe {
    Recipe::mxfp8().with_granularity(Granularity::Mx(rounding))
}

/// What runs a product of matrices with scales of blocks.
fn implementation<B: Fp8Engine>() -> Implementation {
    match B::fp8_capability(&Default::default()) {
        Capability::FakeQuantized { .. } => Implementation::FakeQuantized,
        Capability::MatrixUnit(unit) => Implementation::MatrixUnit(unit.name),
        _ => Implementation::Fallback(Fallback::BlocksUntried),
    }
}

/// The output of `x` `[M, K]` times the transpose of `w` `[N, K]`, and the gradients of both for the output gradient `g`.
fn linear<B: Fp8Matmul>(
    [x, w, g]: [&[f32]; 3],
    [m, k, n]: [usize; 3],
    recipe: Recipe,
) -> ([Vec<f32>; 3], Report)
where
    Autodiff<B>: Fp8Matmul,
{
    every_matmul().with_recipe(recipe).scope(|| {
        let lhs = tensor::<Outer<B>, 2>(x, [m, k]).require_grad();
        let weight = tensor::<Outer<B>, 2>(w, [n, k]).require_grad();
        trace(|| {
            let output = lhs.clone().matmul(weight.clone().transpose());
            let grads = (output.clone() * tensor(g, [m, n])).sum().backward();
            let grad = |of: &Tensor<Outer<B>, 2>| values(of.grad(&grads).expect("tracked"));
            [values(output), grad(&lhs), grad(&weight)]
        })
    })
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
            let layer = name.rsplit_once('.').expect("layer and rule").0;
            let recipe = match name.rsplit_once('.').expect("layer and rule").1 {
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
            let size = |key: &str| case[key].as_u64().expect("a size") as usize;
            let shape = [size("m"), size("k"), size("n")];
            let inputs = ["x", "w", "g"].map(|part| golden.f32(&format!("{layer}/{part}")).0);
            let inputs = inputs.each_ref().map(Vec::as_slice);
            let (results, report) = linear::<B>(inputs, shape, recipe);
            for (result, part) in results.iter().zip(["output", "grad_input", "grad_weight"]) {
                let expected = golden.data(&format!("{name}/{part}")).convert::<f32>();
                let expected: Vec<f32> = expected.to_vec().expect("converted to f32");
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
pub fn blocks_are_those_of_slices<B: Fp8Engine>(subnormals: bool) {
    let recipes = ROUNDINGS.map(|rounding| (mx(rounding), [[1, 32], [32, 1]]));
    let blockwise = [false, true].map(|power_of_two| {
        (Recipe::blockwise().with_power_of_two(power_of_two), [[1, 128], [128, 128]])
    });
    let recipes: Vec<_> = recipes.into_iter().chain(blockwise).collect();
    for [rows, columns] in [[1, 1], [33, 70], [64, 128], [131, 260]] {
        let x = extremes(rows * columns, subnormals);
        let transposed: Vec<f32> = (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect();
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            for (recipe, shapes) in &recipes {
                for block in shapes {
                    let matrix = Blocks { columns, block: *block };
                    let grid = matrix.grid(x.len());
                    let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; grid[0] * grid[1]]);
                    blocks::encode(&x, matrix, format, *recipe, &mut codes, &mut scales);
                    let mut decoded = vec![0.0; x.len()];
                    blocks::decode(&codes, matrix, &scales, format, &mut decoded);
                    let request = QuantizeBlocks { block: *block, format, recipe: *recipe };
                    let plain = tensor::<B, 2>(&x, [rows, columns]);
                    let view = tensor::<B, 2>(&transposed, [columns, rows]).transpose();
                    for (layout, x) in [("rows", plain), ("a transposed view", view)] {
                        let place =
                            format!("{rows}×{columns}, {layout}, {block:?}, {format}, {recipe}");
                        let quantized =
                            B::fp8_quantize_blocks(x.into_primitive().tensor(), request);
                        let of_backend = |tensor| {
                            values(Tensor::<B, 2>::from_primitive(TensorPrimitive::Float(tensor)))
                        };
                        let BlockCodes { codes: theirs, scales: their_scales, .. } =
                            quantized.clone();
                        // A device that takes subnormal numbers for 0 has no scale 2^-127.
                        let seen: Vec<f32> = of_backend(their_scales);
                        let expected: Vec<f32> = scales
                            .iter()
                            .map(|scale| match subnormals {
                                false if *scale < f32::MIN_POSITIVE => 0.0,
                                _ => *scale,
                            })
                            .collect();
                        let seen: Vec<f32> = seen
                            .iter()
                            .map(|scale| match subnormals {
                                false if *scale < f32::MIN_POSITIVE => 0.0,
                                _ => *scale,
                            })
                            .collect();
                        assert_eq!(bits(&seen), bits(&expected), "scales of {place}");
                        let theirs = of_backend(B::fp8_values(theirs));
                        let ours: Vec<f32> =
                            codes.iter().map(|code| format.decode(*code)).collect();
                        assert_eq!(bits(&theirs), bits(&ours), "codes of {place}");
                        let dequantized = of_backend(B::fp8_dequantize_blocks(quantized));
                        if subnormals {
                            assert_eq!(bits(&dequantized), bits(&decoded), "{place}");
                        } else {
                            assert_close(&dequantized, &decoded, 1e-7, &place);
                        }
                    }
                }
            }
        }
    }
}

/// Leading dimensions that join, batches, broadcast operands and both orders of decorators give what single products give.
pub fn shapes_and_orders_agree<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [m, k, n] = [6, 40, 10];
    let mut random = Random(5);
    let (x, w) = (random.spread(2 * m * k), random.spread(2 * k * n));
    for recipe in [Recipe::mxfp8(), Recipe::blockwise()] {
        every_matmul().with_recipe(recipe).scope(|| {
            let matrix = tensor::<Outer<B>, 2>(&x, [2 * m, k]);
            let weight = tensor::<Outer<B>, 2>(&w[..k * n], [k, n]);
            let expected = values(matrix.clone().matmul(weight.clone()));
            let joined = matrix.clone().reshape([2, m, k]).matmul(weight.reshape([1, k, n]));
            assert_eq!(bits(&values(joined)), bits(&expected));
            let inner = tensor::<Inner<B>, 2>(&x, [2 * m, k])
                .matmul(tensor::<Inner<B>, 2>(&w[..k * n], [k, n]));
            assert_eq!(bits(&values(inner)), bits(&expected));
            // A batch is its products side by side.
            let weights = tensor::<Outer<B>, 3>(&w, [2, k, n]);
            let batch = values(matrix.clone().reshape([2, m, k]).matmul(weights));
            let each = (0..2).flat_map(|index| {
                let x = tensor::<Outer<B>, 2>(&x[index * m * k..][..m * k], [m, k]);
                values(x.matmul(tensor::<Outer<B>, 2>(&w[index * k * n..][..k * n], [k, n])))
            });
            assert_close(&batch, &each.collect::<Vec<_>>(), 1e-6, "a batch");
        });
    }
}

/// An outlier costs the precision of its own block alone; NaN and infinities stay in their rows of the output.
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
    let w = vec![1.0; n * k];
    for recipe in [Recipe::mxfp8(), Recipe::blockwise()] {
        // Exact in E4M3 where no outlier is in the block.
        let rounded = every_matmul().with_recipe(recipe).scope(|| {
            values(tensor::<Outer<B>, 2>(&x, [m, k]).matmul(tensor(&w, [n, k]).transpose()))
        });
        let exact = |row: usize| x[row * k..][..k].iter().sum::<f32>();
        assert_eq!(rounded[n], exact(1));
        assert_eq!(rounded[2 * n], exact(2));
        // The other blocks of its own row, too: the weight takes its block out.
        let along = recipe.granularity().block(burn_fp8::burn_fp8_core::Operand::Input);
        let along = along.expect("blocks").along;
        let others: Vec<f32> =
            (0..n * k).map(|at| if at % k < along { 0.0 } else { 1.0 }).collect();
        let rounded = every_matmul().with_recipe(recipe).scope(|| {
            values(tensor::<Outer<B>, 2>(&x, [m, k]).matmul(tensor(&others, [n, k]).transpose()))
        });
        assert_eq!(rounded[0], x[along..k].iter().sum::<f32>());
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = x.clone();
            x[k + 3] = bad;
            let y = every_matmul().with_recipe(recipe).scope(|| {
                values(tensor::<Outer<B>, 2>(&x, [m, k]).matmul(tensor(&w, [n, k]).transpose()))
            });
            assert!(y[n..2 * n].iter().all(|y| y.is_nan()), "{y:?}");
            assert_eq!(y[2 * n], exact(2));
            assert!(y[..n].iter().all(|y| y.is_finite()));
        }
    }
}

/// Where no unit multiplies scales of blocks `Auto` says so in the trace, and `Native` is an error. Tensor cores have to be asked to try.
pub fn native_is_refused_in_words<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    for recipe in [Recipe::mxfp8(), Recipe::blockwise().with_power_of_two(false)] {
        let config: Fp8Config =
            every_matmul().with_recipe(recipe).with_execution(Execution::Native);
        if matches!(implementation::<B>(), Implementation::MatrixUnit(_)) {
            config.check::<B>(&Default::default()).expect("a unit takes them");
            continue;
        }
        let error = config.check::<B>(&Default::default()).expect_err("emulated only");
        assert!(matches!(error, Fp8Error::NativeUnavailable { .. }), "{error}");
        let message = panic_of(|| {
            config.scope(|| {
                let x = tensor::<Outer<B>, 2>(&[1.0; 1024], [32, 32]);
                values(x.clone().matmul(x))
            })
        });
        // The product runs on `Autodiff<B>`, which has a name of its own.
        let reason = error.to_string();
        let reason = &reason[reason.find('(').expect("a reason in parentheses")..];
        assert!(message.contains(reason), "{message} instead of {error}");
    }
}

/// What the backward pass keeps, and what it does to bf16.
pub fn bf16_is_quantized_as_it_is<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    if !B::supports_dtype(&Default::default(), DType::BF16) {
        return;
    }
    let [m, k, n] = [5, 64, 7];
    let mut random = Random(9);
    let round = |x: Vec<f32>| -> Vec<f32> {
        x.iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
    };
    let (x, w) = (round(random.spread(m * k)), round(random.spread(n * k)));
    for recipe in [Recipe::mxfp8(), Recipe::blockwise()] {
        let ([output, ..], _) = linear::<B>([&x, &w, &vec![1.0; m * n]], [m, k, n], recipe);
        let half = every_matmul().with_recipe(recipe).scope(|| {
            let [x, w] = [(&x, m), (&w, n)].map(|(data, rows)| {
                tensor::<Outer<B>, 2>(data, [rows, k]).cast(burn::tensor::FloatDType::BF16)
            });
            let y = x.matmul(w.transpose());
            assert_eq!(y.dtype(), DType::BF16);
            values(y)
        });
        assert_close(&half, &output, 4e-3, "bf16");
    }
}
