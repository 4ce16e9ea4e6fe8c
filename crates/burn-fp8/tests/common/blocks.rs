//! Scales of rows and blocks: against golden data, against the slices of `burn-fp8-cpu`, which have golden data of their own, and against f64.

use burn_fp8_cpu::slice::blocks::{self, Blocks};

use super::*;

pub const ROUNDINGS: [ScaleRounding; 4] =
    [ScaleRounding::Rceil, ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];

pub fn mx(rounding: ScaleRounding) -> Recipe {
    Recipe::mxfp8().with_granularity(Granularity::Mx(rounding))
}

fn sizes<const N: usize>(case: &serde_json::Value, keys: [&str; N]) -> [usize; N] {
    keys.map(|key| case[key].as_u64().expect("a size") as usize)
}

/// Layers of torchao (MXFP8), TransformerEngine and DeepSeek (blocks of 128): outputs and gradients.
pub fn layers_are_those_of_other_libraries<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let mut compared = 0;
    for (file, list) in [("mx", "linear_cases"), ("blockwise_linear", "cases")] {
        let golden = golden(file);
        for case in golden.cases(list) {
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
            let [m, k, n] = sizes(case, ["m", "k", "n"]);
            let [x, w, g] = ["x", "w", "g"].map(|part| golden.f32s(&format!("{layer}/{part}")));
            let (results, report) = every_matmul().with_recipe(recipe).scope(|| {
                let lhs = tensor::<Outer<B>, 2>(&x, [m, k]).require_grad();
                let weight = tensor::<Outer<B>, 2>(&w, [n, k]).require_grad();
                trace(|| {
                    let output = lhs.clone().matmul(weight.clone().transpose());
                    let grads = (output.clone() * tensor(&g, [m, n])).sum().backward();
                    [values(output), grad(&lhs, &grads), grad(&weight, &grads)]
                })
            });
            for (result, part) in results.iter().zip(["output", "grad_input", "grad_weight"]) {
                let name = format!("{name}/{part}");
                assert_close(result, &golden.wide(&name), 1e-5, &name);
                compared += 1;
            }
            assert_eq!(report.products.len(), 3);
            for product in &report.products {
                assert_eq!(product.ran, implementation::<B>());
                for operand in [product.lhs, product.rhs].map(|operand| operand.expect("in FP8")) {
                    assert_eq!((operand.granularity, operand.format), (recipe.granularity(), E4M3));
                }
            }
        }
    }
    assert_eq!(compared, 3 * (8 + 6));
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
        let x = hard::extremes(rows * columns, if subnormals { 0 } else { 30 });
        let turned = tensor::<B, 2>(&transpose(&x, [rows, columns]), [columns, rows]).transpose();
        for format in fp8::FORMATS {
            for (recipe, block) in recipes.iter().flat_map(|(r, blocks)| blocks.map(|b| (r, b))) {
                let matrix = Blocks { columns, block };
                let grid = matrix.grid(x.len());
                let (mut codes, mut scales) = (vec![0; x.len()], vec![0.0; grid[0] * grid[1]]);
                blocks::encode(&x, matrix, format, *recipe, &mut codes, &mut scales);
                let mut decoded = vec![0.0; x.len()];
                blocks::decode(&codes, matrix, &scales, format, &mut decoded);
                for x in [tensor::<B, 2>(&x, [rows, columns]), turned.clone()] {
                    let what = format!("{rows}×{columns}, {block:?}, {format}, {recipe}");
                    let theirs = Fp8Tensor::quantize_blocks(x, format, block, *recipe);
                    let theirs = theirs.expect("rows and columns");
                    assert_eq!(scales_of(&values(theirs.scales())), scales_of(&scales), "{what}");
                    assert_eq!(theirs.to_bytes(), codes, "{what}");
                    let dequantized = values(theirs.dequantize());
                    match subnormals {
                        true => assert_eq!(bits(&dequantized), bits(&decoded), "{what}"),
                        false => assert_close(&dequantized, &decoded, 1e-7, &what),
                    }
                }
            }
        }
    }
}

/// Where no unit multiplies scales of blocks `Auto` says so in the trace, and `Native` is an error. Tensor cores have to be asked to try.
pub fn native_is_refused_in_words<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    for recipe in [Recipe::mxfp8(), Recipe::blockwise().with_power_of_two(false)] {
        let config = every_matmul().with_recipe(recipe).with_execution(Execution::Native);
        if has_unit::<B>() {
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

/// Products of MXFP8 by torchao: codes and scales exactly, results to 1e-5.
pub fn products_are_those_of_torchao<B: Fp8Matmul>() {
    let golden = golden("mx");
    assert_eq!(golden.cases("products").len(), 20);
    for case in golden.cases("products") {
        let name = case["name"].as_str().expect("a name");
        let [m, n, k] = sizes(case, ["m", "n", "k"]);
        let rounding = match case["mode"].as_str() {
            Some("rceil") => ScaleRounding::Rceil,
            mode => {
                assert_eq!(mode, Some("floor"));
                ScaleRounding::Floor
            }
        };
        let operand = |part: &str, rows| {
            let x = tensor::<B, 2>(&golden.f32s(&format!("{name}/{part}")), [rows, k]);
            let format = golden::format(&case[part]);
            let quantized = Fp8Tensor::quantize_blocks(x, format, [1, 32], mx(rounding));
            let quantized = quantized.expect("rows and columns");
            let bytes = |of: &str| golden.u8s(&format!("{name}/{part}_{of}"));
            assert_eq!(quantized.to_bytes(), bytes("codes"), "{name}/{part}");
            let scales = bytes("scales").into_iter().map(|byte| 2f64.powi(i32::from(byte) - 127));
            let scales: Vec<_> = scales.map(|scale| scale as f32).collect();
            assert_eq!(values(quantized.scales()), scales, "{name}/{part}");
            quantized
        };
        let (a, b) = (operand("a", m), operand("b", n).transpose());
        let options = ScaledMatmulOptions::default();
        let (y, report) = trace(|| scaled_matmul(&a, &b, &options).expect("it multiplies"));
        assert_close(&values(y.into_float()), &golden.wide(&format!("{name}/y")), 1e-5, name);
        let [product] = &report.products[..] else { panic!("one product: {report}") };
        assert_eq!(product.kind, ProductKind::ScaledMatmul);
        assert_eq!(product.ran, implementation::<B>());
        for operand in [product.lhs, product.rhs] {
            let granularity = operand.expect("in FP8").granularity;
            assert_eq!(granularity, Granularity::Mx(ScaleRounding::Rceil));
        }
    }
}

/// Rows and blocks of 128, in all their pairs, with bias and activation, whole and ragged, against sums in f64 of what the tensors stand for.
pub fn products_are_those_of_f64<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let mut random = Random(31);
    for [m, k, n] in [[3, 40, 5], [130, 300, 17], [16, 256, 129]] {
        let (x, w) = (random.spread(m * k), random.spread(n * k));
        let divided = Recipe::blockwise().with_power_of_two(false);
        let mx = Recipe::mxfp8();
        for (of_a, of_b, recipe, granularity) in [
            ([1, k], [1, k], Recipe::current(), Granularity::PerRow),
            ([1, 32], [1, 32], mx, mx.granularity()),
            ([1, 128], [128, 128], Recipe::blockwise(), Granularity::Blockwise),
            ([1, 128], [1, 128], Recipe::blockwise(), Granularity::Blockwise),
            ([128, 128], [1, 128], Recipe::blockwise(), Granularity::Blockwise),
            ([1, 128], [128, 128], divided, Granularity::Blockwise),
        ] {
            let quantized = |x: &[f32], shape, format, block| {
                let x = tensor::<Outer<B>, 2>(x, shape);
                Fp8Tensor::quantize_blocks(x, format, block, recipe).expect("blocks")
            };
            let a = quantized(&x, [m, k], E4M3, of_a);
            let b = quantized(&w, [n, k], E5M2, of_b).transpose();
            let options = ScaledMatmulOptions::default()
                .with_bias(bias(&vec![1.0; n]))
                .with_activation(Activation::Relu);
            let (y, report) = trace(|| scaled_matmul(&a, &b, &options).expect("it multiplies"));

            let [of_a, of_b] = [&a, &b].map(|tensor| wide(&values(tensor.dequantize())));
            let exact = Exact::product(&of_a, &of_b, [m, k, n]).plus_bias(&[1.0]);
            let exact = fused::activated(exact, Activation::Relu);
            let what = format!("{m}×{k}×{n} {:?} {:?}", a.block(), b.block());
            exact.assert(&values(y.into_float()), Sums::F32, &what);
            let product = &report.products[0];
            assert_eq!(product.ran, implementation::<B>(), "{what}");
            if k > 128 {
                let operands = [product.lhs, product.rhs].map(|operand| operand.expect("FP8"));
                assert_eq!(operands.map(|operand| operand.granularity), [granularity; 2]);
            }
        }
    }
}

/// A scale for each row is that of the row quantized by itself.
pub fn rows_are_those_quantized_by_themselves<B: Fp8Matmul>() {
    let (rows, columns) = (7, 33);
    let x = Random(5).spread(rows * columns);
    for format in fp8::FORMATS {
        let whole = Fp8Tensor::quantize_rows(tensor::<B, 3>(&x, [1, rows, columns]), format);
        let whole = whole.expect("rows");
        assert_eq!((whole.block(), whole.scales().dims()), (Some([1, columns]), [1, rows, 1]));
        let scales: Vec<_> = x.chunks(columns).map(|row| fp8::scale(row, format)).collect();
        assert_eq!(values(whole.scales()), scales);
        let numbers = x.iter().enumerate().map(|(at, x)| f64::from(x / scales[at / columns]));
        let numbers: Vec<_> = numbers.map(|x| fp8::round(x, format)).collect();
        assert_eq!(fp8::numbers(&whole.to_bytes(), format, 1.0), numbers);
    }
}
