//! FP8 tensors with scales of rows and blocks: quantized, multiplied, kept in files, refused.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn_fp8::Fp8Format::E4M3;
use burn_fp8::report::Implementation;
use burn_fp8::{
    Execution, Fp8Backend, Fp8Codes, Fp8Config, Fp8Error, Fp8Tensor, Recipe, ScaledMatmulOptions,
    scaled_matmul,
};
use common::{Random, panic_of, scaled_blocks, tensor, values};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

type Matrix = Fp8Tensor<Flex, 2>;

macro_rules! tests {
    ($($backend:ty),*) => {
        $(
            #[test]
            fn products_are_those_of_torchao() {
                scaled_blocks::products_are_those_of_torchao::<$backend>();
            }

            #[test]
            fn products_are_those_of_f64() {
                scaled_blocks::products_are_those_of_f64::<$backend>();
            }

            #[test]
            fn rows_are_those_quantized_by_themselves() {
                scaled_blocks::rows_are_those_quantized_by_themselves::<$backend>();
            }
        )*
    };
}

mod flex {
    use super::scaled_blocks;

    tests!(burn::backend::Flex);
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use super::scaled_blocks;

    tests!(burn::backend::NdArray);
}

fn mx(shape: [usize; 2]) -> Matrix {
    let x = Random(1).spread(shape.iter().product());
    let tensor = tensor::<Flex, 2>(&x, shape);
    Fp8Tensor::quantize_blocks(tensor, E4M3, [1, 32], Recipe::mxfp8()).expect("blocks")
}

#[test]
fn transposes_keep_the_scales_of_their_blocks() {
    let q = mx([5, 70]);
    assert_eq!((q.block(), q.scales().dims()), (Some([1, 32]), [5, 3]));
    let t = q.transpose();
    assert_eq!((t.block(), t.scales().dims(), t.dims()), (Some([32, 1]), [3, 5], [70, 5]));
    assert_eq!(values(t.dequantize()), values(q.dequantize().transpose()));
    assert_eq!(values(t.scales()), values(q.scales().transpose()));
    let again = Fp8Tensor::from_blocks(
        Fp8Codes::from_bytes(t.to_bytes(), [70, 5], E4M3, &Default::default()).expect("350 codes"),
        t.scales(),
        [32, 1],
    );
    assert_eq!(values(again.expect("its own parts").dequantize()), values(t.dequantize()));
    // On another backend.
    type Outer = Fp8Backend<Autodiff<Flex>>;
    let lifted = Fp8Tensor::<Autodiff<Flex>, 2>::from_inner(t.clone());
    assert_eq!((lifted.block(), values(lifted.dequantize())), (t.block(), values(t.dequantize())));
    assert_eq!(values(lifted.inner().scales()), values(t.scales()));
    let empty = Tensor::<Outer, 2>::zeros([0, 70], &Default::default());
    let empty = Fp8Tensor::quantize_blocks(empty, E4M3, [1, 32], Recipe::mxfp8()).expect("empty");
    assert_eq!((empty.scales().dims(), empty.dequantize().dims()), ([0, 3], [0, 70]));
}

#[test]
fn one_scale_is_not_made_up_where_there_are_several() {
    let q = mx([2, 64]);
    for message in [panic_of(|| q.read_scale()), panic_of(|| q.scale())] {
        assert!(message.contains("a scale for each block 1×32: use scales()"), "{message}");
    }
    let one = Matrix::quantize(Tensor::ones([2, 3], &Default::default()), E4M3);
    assert_eq!((one.block(), values(one.scales())), (None, vec![one.read_scale()]));
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let refused = |result: Result<Matrix, Fp8Error>, words: &str| {
        let error = result.expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    };
    let device = Default::default();
    let codes = || Fp8Codes::<Flex, 2>::from_bytes(vec![0; 12], [2, 6], E4M3, &device).expect("12");
    let scales = |shape: [usize; 2]| Tensor::<Flex, 2>::ones(shape, &device);
    refused(
        Matrix::from_blocks(codes(), scales([2, 3]), [1, 4]),
        "F32 [2, 3]; codes [2, 6] in blocks 1×4 have F32 [2, 2]",
    );
    refused(Matrix::from_blocks(codes(), scales([2, 2]), [0, 4]), "0×4 have no elements");
    let x = || Tensor::<Flex, 2>::ones([2, 64], &device);
    refused(
        Matrix::quantize_blocks(x(), E4M3, [1, 32], Recipe::current()),
        "powers of two, one byte each: use Recipe::mxfp8()",
    );
    refused(Matrix::quantize_blocks(x(), E4M3, [1, 0], Recipe::mxfp8()), "no elements");
    let quantized = |recipe| Matrix::quantize_blocks(x(), E4M3, [1, 64], recipe);
    refused(quantized(Recipe::delayed()), "without a history; use Recipe::current()");
    refused(quantized(Recipe::current().with_margin(65)), "65");
    let error = Fp8Tensor::quantize_rows(Tensor::<Flex, 1>::ones([4], &device), E4M3);
    assert!(error.expect_err("refused").to_string().contains("[4] are no rows and columns"));
}

#[test]
fn products_that_tensor_cores_do_not_have_are_refused() {
    let x = |block, recipe| {
        let x = tensor::<Flex, 2>(&Random(2).spread(256 * 256), [256, 256]);
        Fp8Tensor::quantize_blocks(x, E4M3, block, recipe).expect("blocks")
    };
    let wide = |block| x(block, Recipe::blockwise());
    let refused = |a: &Matrix, b: &Matrix, options: &ScaledMatmulOptions<Flex>, words: &str| {
        let error = scaled_matmul(a, b, options).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    };
    let (mx, rows) = (x([1, 32], Recipe::mxfp8()), x([1, 256], Recipe::current()));
    let one = Matrix::quantize(Tensor::ones([256, 256], &Default::default()), E4M3);
    let options = ScaledMatmulOptions::default();
    refused(&mx, &one, &options, "each block 1×32, the right one one scale: both have one");
    refused(&mx, &mx, &options, "1×32 of the left operand, 1×32 of the right one [K, N]");
    refused(&wide([128, 128]), &wide([128, 128]), &options, "not 128×128 on both sides");
    refused(&rows, &mx.transpose(), &options, "1×256 of the left operand, 32×1");
    refused(&wide([1, 64]), &wide([1, 64]).transpose(), &options, "possible are rows");
    refused(
        &mx,
        &mx.transpose(),
        &ScaledMatmulOptions::fp8(E4M3, 1.0),
        "no FP8 output: take float output",
    );
}

/// On a matrix unit they run, elsewhere they are refused.
#[test]
fn native_products_run_or_are_refused_in_words() {
    let x = tensor::<Flex, 2>(&Random(3).spread(4 * 256), [4, 256]);
    let divided = Recipe::blockwise().with_power_of_two(false);
    let native = Fp8Config::default().with_execution(Execution::Native);
    for q in [
        Fp8Tensor::quantize_blocks(x.clone(), E4M3, [1, 128], divided),
        Fp8Tensor::quantize_blocks(x.clone(), E4M3, [1, 32], Recipe::mxfp8()),
        Fp8Tensor::quantize_rows(x, E4M3),
    ] {
        let q = q.expect("rows and columns");
        let options = ScaledMatmulOptions::default();
        let product = native.scope(|| scaled_matmul(&q, &q.transpose(), &options));
        match common::implementation::<Flex>() {
            Implementation::MatrixUnit(_) => drop(product.expect("a unit takes it")),
            _ => {
                let error = product.expect_err("refused");
                assert!(matches!(error, Fp8Error::NativeUnavailable { .. }), "{error:?}");
            }
        }
    }
}

#[test]
fn files_keep_the_scales_of_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("blocks.safetensors");
    let (mx, turned) = (mx([3, 70]), mx([2, 40]).transpose());
    let zeros = Tensor::<Flex, 2>::zeros([2, 40], &Default::default());
    let zeros = Fp8Tensor::quantize_blocks(zeros, E4M3, [1, 32], Recipe::mxfp8()).expect("blocks");
    let one = Matrix::quantize(Tensor::ones([2, 3], &Default::default()), E4M3);
    let all = [("mx", &mx), ("turned", &turned), ("zeros", &zeros), ("one", &one)];
    Matrix::save_all(&path, all).expect("writable");
    let read = Matrix::load_all(&path, &Default::default()).expect("written by us");
    assert_eq!(read.len(), 4);
    for (name, tensor) in all {
        let found = &read[name];
        assert_eq!(
            (found.block(), found.to_bytes()),
            (tensor.block(), tensor.to_bytes()),
            "{name}"
        );
        assert_eq!(values(found.scales()), values(tensor.scales()), "{name}");
        assert_eq!(values(found.dequantize()), values(tensor.dequantize()), "{name}");
    }

    let bytes = std::fs::read(&path).expect("written");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("valid");
    let metadata = metadata.metadata().clone().expect("there");
    assert_eq!((&metadata["mx_block"][..], &metadata["turned_block"][..]), ("1x32", "32x1"));

    let refused = |block: &str, scales: (Dtype, &[usize], Vec<u8>), words: &str| {
        let codes = TensorView::new(Dtype::F8_E4M3, vec![2, 6], &[0; 12]).expect("12");
        let of_scales = TensorView::new(scales.0, scales.1.to_vec(), &scales.2).expect("they fit");
        let metadata = [("w_block".to_owned(), block.to_owned())].into_iter().collect();
        let file = safetensors::serialize([("w", codes), ("w_scale", of_scales)], Some(metadata))
            .expect("good");
        std::fs::write(&path, file).expect("writable");
        let error = Matrix::load(&path, "w", &Default::default()).expect_err("refused").to_string();
        assert!(error.contains(words), "{error}");
    };
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let good = || (Dtype::F32, &[2usize, 2][..], f32s(&[1.0; 4]));
    for block in ["", "1", "x", "1x", "1x4x2", "-1x4", "1×4", "99999999999999999999x1"] {
        refused(block, good(), "not ROWSxCOLUMNS");
    }
    refused("0x4", good(), "no elements");
    refused("1x3", (Dtype::F32, &[2, 3], f32s(&[1.0; 6])), "have F32 [2, 2]");
    refused("1x4", (Dtype::BF16, &[2, 2], vec![0; 8]), "not F32 of 2 dimensions");
    refused("1x4", (Dtype::F32, &[4], f32s(&[1.0; 4])), "not F32 of 2 dimensions");
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        refused("1x4", (Dtype::F32, &[2, 2], f32s(&[1.0, 1.0, bad, 1.0])), "w_scale is");
    }
}
