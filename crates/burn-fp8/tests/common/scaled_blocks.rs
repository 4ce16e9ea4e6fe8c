//! Tensors with scales of rows and blocks, and their products: against golden data and f64.

use super::blocks::mx;
use super::*;

/// Products of MXFP8 by torchao: codes and scales exactly, results to 1e-5.
pub fn products_are_those_of_torchao<B: Fp8Matmul>() {
    let golden = Golden::open("mx");
    let mut compared = 0;
    for case in golden.list("products") {
        let text = |key: &str| case[key].as_str().expect("text").to_owned();
        let size = |key: &str| case[key].as_u64().expect("a size") as usize;
        let (name, [m, n, k]) = (text("name"), ["m", "n", "k"].map(size));
        let rounding = match &text("mode")[..] {
            "rceil" => ScaleRounding::Rceil,
            mode => {
                assert_eq!(mode, "floor");
                ScaleRounding::Floor
            }
        };
        let operand = |part: &str, rows| {
            let x = golden.f32(&format!("{name}/{part}")).0;
            let x = tensor::<B, 2>(&x, [rows, k]);
            let format = golden::format(&case[part]);
            let quantized = Fp8Tensor::quantize_blocks(x, format, [1, 32], mx(rounding));
            let quantized = quantized.expect("rows and columns");
            let bytes = |of: &str| golden.codes(&format!("{name}/{part}_{of}"));
            assert_eq!(quantized.to_bytes(), bytes("codes"), "{name}/{part}");
            let expected: Vec<f32> = bytes("scales")
                .iter()
                .map(|byte| 2f64.powi(i32::from(*byte) - 127) as f32)
                .collect();
            assert_eq!(values(quantized.scales()), expected, "{name}/{part}");
            quantized
        };
        let (a, b) = (operand("a", m), operand("b", n));
        let (y, report) = trace(|| {
            scaled_matmul(&a, &b.transpose(), &ScaledMatmulOptions::default())
                .expect("it multiplies")
        });
        assert_close(&values(y.into_float()), &golden.wide(&format!("{name}/y")), 1e-5, &name);
        let [product] = &report.products[..] else { panic!("one product: {report}") };
        assert_eq!(
            (product.kind, product.ran.clone()),
            (ProductKind::ScaledMatmul, implementation::<B>())
        );
        for operand in [product.lhs, product.rhs] {
            let granularity = operand.expect("in FP8").granularity;
            assert_eq!(granularity, Granularity::Mx(ScaleRounding::Rceil));
        }
        compared += 1;
    }
    assert_eq!(compared, 20);
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
            ([1, k], [1, k], Recipe::current(), [Granularity::PerRow; 2]),
            ([1, 32], [1, 32], mx, [mx.granularity(); 2]),
            ([1, 128], [128, 128], Recipe::blockwise(), [Granularity::Blockwise; 2]),
            ([1, 128], [1, 128], Recipe::blockwise(), [Granularity::Blockwise; 2]),
            ([128, 128], [1, 128], Recipe::blockwise(), [Granularity::Blockwise; 2]),
            ([1, 128], [128, 128], divided, [Granularity::Blockwise; 2]),
        ] {
            let quantized = |x: &[f32], shape, format, block| {
                let x = tensor::<Outer<B>, 2>(x, shape);
                Fp8Tensor::quantize_blocks(x, format, block, recipe).expect("blocks")
            };
            let a = quantized(&x, [m, k], Fp8Format::E4M3, of_a);
            let b = quantized(&w, [n, k], Fp8Format::E5M2, of_b);
            let options = ScaledMatmulOptions::default()
                .with_bias(bias(&vec![1.0; n]))
                .with_activation(Activation::Relu);
            let (y, report) =
                trace(|| scaled_matmul(&a, &b.transpose(), &options).expect("it multiplies"));

            let [of_a, of_b] = [&a, &b].map(|tensor| wide(&values(tensor.dequantize())));
            let (sums, _) =
                reference::matmul(&of_a, &reference::transpose(&of_b, [n, k]), [m, k, n]);
            let expected: Vec<f32> = sums.iter().map(|y| (y + 1.0).max(0.0) as f32).collect();
            let what = format!("{m}×{k}×{n} {:?} {:?}", a.block(), b.block());
            assert_close(&values(y.into_float()), &expected, 1e-5, &what);
            let product = &report.products[0];
            assert_eq!(product.ran, implementation::<B>(), "{what}");
            if k > 128 {
                assert_eq!(
                    [product.lhs, product.rhs].map(|operand| operand.expect("FP8").granularity),
                    granularity
                );
            }
        }
    }
}

/// A scale for each row is that of the row quantized by itself.
pub fn rows_are_those_quantized_by_themselves<B: Fp8Matmul>() {
    let (rows, columns) = (7, 33);
    let x = Random(5).spread(rows * columns);
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        let whole = Fp8Tensor::quantize_rows(tensor::<B, 3>(&x, [1, rows, columns]), format);
        let whole = whole.expect("rows");
        assert_eq!((whole.block(), whole.scales().dims()), (Some([1, columns]), [1, rows, 1]));
        let (codes, scales) = (whole.to_bytes(), values(whole.scales()));
        for (row, x) in x.chunks(columns).enumerate() {
            let scale = reference::scale(x, format);
            assert_eq!(scales[row], scale);
            for (x, code) in x.iter().zip(&codes[row * columns..]) {
                let expected = reference::round(f64::from(x / scale), format);
                assert_eq!(reference::decode(*code, format), expected);
            }
        }
    }
}
