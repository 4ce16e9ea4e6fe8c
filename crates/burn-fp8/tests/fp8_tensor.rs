//! FP8 tensors: made from floats and from bytes, read back, moved, and kept in files.

mod common;

use std::collections::HashMap;
use std::path::Path;

use burn::backend::{Autodiff, Flex};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Format::{self, E4M3, E5M2};
use burn_fp8::{
    Fp8Backend, Fp8Codes, Fp8Error, Fp8Matmul, Fp8Tensor, ScaledMatmulOptions, scaled_matmul,
};
use common::{Random, reference, tensor, values};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

type Matrix = Fp8Tensor<Flex, 2>;

fn decoded(bytes: &[u8], format: Fp8Format) -> Vec<f64> {
    bytes.iter().map(|code| reference::decode(*code, format)).collect()
}

fn check_quantization<B: Fp8Matmul>() {
    for format in [E4M3, E5M2] {
        let x = Random(7).spread(5 * 6 * 7);
        let scale = reference::scale(&x, format);
        let tensor = tensor::<B, 3>(&x, [5, 6, 7]);
        let q = Fp8Tensor::quantize(tensor.clone(), format);
        assert_eq!((q.dims(), q.format(), q.read_scale()), ([5, 6, 7], format, scale));
        assert_eq!((values(q.scale()), q.scale().dims()), (vec![scale], [1]));
        let expected = |x: &[f32], scale: f32| {
            x.iter().map(|x| reference::round(f64::from(x / scale), format)).collect::<Vec<_>>()
        };
        assert_eq!(decoded(&q.to_bytes(), format), expected(&x, scale), "{format}");
        let numbers = expected(&x, scale).into_iter().map(|x| x as f32 * scale).collect::<Vec<_>>();
        assert_eq!(values(q.dequantize()), numbers);
        assert_eq!(q.dequantize_to(FloatDType::F32).dtype(), DType::F32);

        // A given scale, on the host and on the device, with which some saturate.
        let given = scale / 3.0;
        let on_device = common::tensor::<B, 1>(&[given], [1]);
        let from_host = Fp8Tensor::quantize_with(tensor.clone(), format, given).expect("good");
        let from_device = Fp8Tensor::quantize_with(tensor, format, on_device).expect("good");
        assert_eq!(decoded(&from_host.to_bytes(), format), expected(&x, given), "{format}");
        assert_eq!(from_device.to_bytes(), from_host.to_bytes());
        assert_eq!(from_device.read_scale(), given);

        let bytes = from_host.to_bytes();
        let copy = Fp8Tensor::<B, 3>::from_bytes(
            bytes.clone(),
            [5, 6, 7],
            format,
            given,
            &Default::default(),
        )
        .expect("good")
        .to_device(&Default::default());
        assert_eq!(copy.to_bytes(), bytes);
        assert_eq!(values(copy.dequantize()), values(from_host.dequantize()));
    }
    // No elements, and nothing but zeros: scale 1.
    let empty = Fp8Tensor::<B, 2>::quantize(Tensor::zeros([0, 3], &Default::default()), E4M3);
    assert_eq!((empty.dims(), empty.read_scale(), empty.to_bytes()), ([0, 3], 1.0, vec![]));
    assert_eq!(empty.dequantize().dims(), [0, 3]);
    let zeros = Fp8Tensor::<B, 2>::quantize(Tensor::zeros([2, 3], &Default::default()), E4M3);
    assert_eq!((zeros.read_scale(), zeros.to_bytes()), (1.0, vec![0; 6]));
}

#[test]
fn codes_and_scales_are_those_of_the_definition() {
    check_quantization::<Flex>();
    check_quantization::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_quantization::<burn::backend::NdArray>();
}

#[test]
fn devices_with_u8_hold_one_byte_an_element() {
    fn check<B: Fp8Matmul>() {
        let x = tensor::<B, 2>(&Random(1).spread(30), [5, 6]);
        let q = Fp8Tensor::quantize(x.clone(), E4M3);
        assert_eq!(q.bytes_held(), 30);
        assert_eq!(Fp8Tensor::quantize(x.transpose(), E4M3).bytes_held(), 30);
        let d =
            scaled_matmul(&q, &q.transpose(), &ScaledMatmulOptions::fp8(E4M3, 1.0)).expect("good");
        assert_eq!(d.into_fp8().bytes_held(), 25);
    }
    check::<Flex>();
    check::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check::<burn::backend::NdArray>();
}

#[test]
fn every_float_type_quantizes_and_a_view_does() {
    let x = tensor::<Flex, 2>(&[1.0, -2.0, 3.5, 0.25, 7.0, -6.0], [2, 3]);
    let expected = Matrix::quantize_with(x.clone(), E4M3, 0.25).expect("good").to_bytes();
    for dtype in [FloatDType::F64, FloatDType::F16, FloatDType::BF16] {
        let q = Matrix::quantize_with(x.clone().cast(dtype), E4M3, 0.25).expect("good");
        assert_eq!(q.to_bytes(), expected, "{dtype:?}");
    }
    let view = Matrix::quantize_with(x.transpose(), E4M3, 0.25).expect("good");
    assert_eq!((view.dims(), view.transpose().to_bytes()), ([3, 2], expected));
}

#[test]
fn what_is_not_finite_stays_visible() {
    const INF: f32 = f32::INFINITY;
    for (format, infinite) in [(E4M3, f64::NAN), (E5M2, f64::INFINITY)] {
        let x = tensor::<Flex, 2>(&[1.0, f32::NAN, INF, -INF], [2, 2]);
        let q = Matrix::quantize_with(x, format, 1.0).expect("good");
        let numbers = decoded(&q.to_bytes(), format);
        assert!(numbers[0] == 1.0 && numbers[1].is_nan(), "{numbers:?}");
        assert_eq!(numbers[2].is_nan(), infinite.is_nan(), "{numbers:?}");
        assert!(infinite.is_nan() || numbers[2..] == [infinite, -infinite], "{numbers:?}");
    }
}

#[test]
fn scales_that_are_none_are_refused() {
    let codes = || {
        Fp8Codes::<Flex, 2>::from_bytes(vec![0; 6], [2, 3], E4M3, &Default::default())
            .expect("good")
    };
    let refused = |result: Result<Matrix, Fp8Error>, expected: &str| {
        let error = result.expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { what: "FP8 tensor", .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let x = || Tensor::<Flex, 2>::ones([2, 3], &Default::default());
    for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        refused(Fp8Tensor::from_parts(codes(), scale), "the scale is");
        refused(Fp8Tensor::quantize_with(x(), E4M3, scale), "the scale is");
    }
    for shape in [0, 2] {
        let scale = || Tensor::<Flex, 1>::ones([shape], &Default::default());
        refused(Fp8Tensor::from_parts(codes(), scale()), "it must be F32 [1]");
        refused(Fp8Tensor::quantize_with(x(), E4M3, scale()), "it must be F32 [1]");
    }
    // Of another float type it is cast.
    let scale = Tensor::<Flex, 1>::ones([1], &Default::default()).cast(FloatDType::BF16);
    assert_eq!(Fp8Tensor::from_parts(codes(), scale).expect("good").scale().dtype(), DType::F32);
    for (bytes, shape) in [(5, [2, 3]), (0, [usize::MAX, 0]), (0, [0, usize::MAX])] {
        let bytes = vec![0; bytes];
        let result = Matrix::from_bytes(bytes, shape, E4M3, 1.0, &Default::default());
        assert!(result.expect_err("refused").to_string().contains("do not fill the shape"));
    }
}

#[test]
fn a_tensor_is_a_constant_that_goes_to_autodiff_and_back() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let x = tensor::<B, 2>(&[1.0, 2.0, 3.0, 4.0], [2, 2]).require_grad();
    let scale = tensor::<B, 1>(&[0.5], [1]).require_grad();
    let q = Fp8Tensor::quantize_with(x, E4M3, scale).expect("good").transpose();
    assert!(!q.dequantize().is_require_grad() && !q.scale().is_require_grad());
    let inner = q.clone().inner();
    assert_eq!((inner.to_bytes(), inner.read_scale()), (q.to_bytes(), 0.5));
    assert_eq!(values(inner.dequantize()), [1.0, 3.0, 2.0, 4.0]);
    let outer = Fp8Tensor::<B, 2>::from_inner(inner);
    assert!(outer.is_transposed());
    assert_eq!(values(outer.dequantize()), [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn tensors_without_elements_are_transposed_and_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    let device = Default::default();
    for [rows, columns] in [[0, 3], [3, 0], [0, 0]] {
        let q = Matrix::from_bytes(vec![], [rows, columns], E4M3, 0.5, &device).expect("no codes");
        let q = q.transpose();
        assert_eq!((q.dims(), q.to_bytes()), ([columns, rows], vec![]));
        q.save(&path, "w").expect("written");
        assert_eq!(Matrix::load(&path, "w", &device).expect("read").dims(), [columns, rows]);
    }
}

fn check_files<B: Fp8Matmul>() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    let device = Default::default();
    let x = tensor::<B, 2>(&Random(3).spread(15), [5, 3]);
    let on_device = tensor::<B, 1>(&[0.125], [1]);
    let tensors = [
        ("fc1.weight", Fp8Tensor::quantize(x.clone(), E4M3)),
        ("fc2.weight", Fp8Tensor::quantize_with(x.clone(), E5M2, on_device).expect("good")),
        ("fc3", Fp8Tensor::quantize(x, E4M3).transpose()),
    ];
    let same = |loaded: &Fp8Tensor<B, 2>, saved: &Fp8Tensor<B, 2>, name: &str| {
        assert_eq!((loaded.dims(), loaded.format()), (saved.dims(), saved.format()), "{name}");
        assert_eq!(loaded.read_scale().to_bits(), saved.read_scale().to_bits(), "{name}");
        assert_eq!(loaded.to_bytes(), saved.to_bytes(), "{name}");
        assert!(!loaded.is_transposed());
    };
    let named = tensors.iter().map(|(name, tensor)| (*name, tensor));
    Fp8Tensor::save_all(&path, named.clone()).expect("written");
    let loaded = Fp8Tensor::<B, 2>::load_all(&path, &device).expect("read");
    assert_eq!(loaded.len(), 3);
    for (name, tensor) in named {
        same(&loaded[name], tensor, name);
        same(&Fp8Tensor::load(&path, name, &device).expect("read"), tensor, name);
    }
    tensors[0].1.save(&path, "w").expect("written");
    same(&Fp8Tensor::load(&path, "w", &device).expect("read"), &tensors[0].1, "w");
    assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 1, "nothing left beside");
}

#[test]
fn files_keep_tensors() {
    check_files::<Flex>();
    check_files::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_files::<burn::backend::NdArray>();
}

#[test]
fn files_have_the_documented_tensors() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    let tensor = |format| {
        Matrix::from_bytes(vec![1, 2, 3, 4, 5, 6], [2, 3], format, 0.5, &Default::default())
            .expect("good")
    };
    let (a, b) = (tensor(E4M3), tensor(E5M2).transpose());
    Fp8Tensor::save_all(&path, [("a", &a), ("b", &b)]).expect("written");
    let bytes = std::fs::read(&path).expect("there");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let get = |name: &str| {
        let view = file.tensor(name).expect("there");
        (view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    assert_eq!(get("a"), (Dtype::F8_E4M3, vec![2, 3], vec![1, 2, 3, 4, 5, 6]));
    assert_eq!(get("b"), (Dtype::F8_E5M2, vec![3, 2], vec![1, 4, 2, 5, 3, 6]));
    for name in ["a_scale", "b_scale"] {
        assert_eq!(get(name), (Dtype::F32, vec![1], 0.5f32.to_le_bytes().to_vec()), "{name}");
    }
    assert_eq!(file.len(), 4);
}

#[test]
fn names_that_collide_and_scales_that_are_none_are_not_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    let good = Matrix::quantize(Tensor::ones([2, 2], &Default::default()), E4M3);
    let refused = |tensors: &[(&str, &Matrix)], expected: &str| {
        let error = Fp8Tensor::save_all(&path, tensors.iter().copied()).expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!path.exists());
    };
    refused(&[("a", &good), ("a", &good)], "two tensors of the file have the name `a`");
    refused(&[("a", &good), ("a_scale", &good)], "two tensors of the file have the name `a_scale`");
    refused(&[("", &good)], "a tensor has no name");
    let nan = tensor::<Flex, 1>(&[f32::NAN], [1]);
    let nan = Matrix::quantize_with(Tensor::ones([2, 2], &Default::default()), E4M3, nan);
    refused(&[("a", &nan.expect("not looked at"))], "a_scale is NaN");
}

/// A file with these tensors, and metadata where there are some.
fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)], metadata: &[(&str, &str)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("consistent"))
    });
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let bytes = safetensors::serialize(views, Some(metadata)).expect("consistent");
    std::fs::write(path, bytes).expect("writable");
}

#[test]
fn damaged_and_foreign_files_are_refused_with_the_reason() {
    const F8: Dtype = Dtype::F8_E4M3;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tensors.safetensors");
    let f32s = |numbers: &[f32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let refused = |expected: &str| {
        let one = Matrix::load(&path, "w", &Default::default()).map(drop);
        let all = Matrix::load_all(&path, &Default::default()).map(drop);
        for error in [one, all].map(|result| result.expect_err("refused")) {
            assert!(matches!(error, Fp8Error::InvalidState { .. }), "{error:?}");
            let message = error.to_string();
            assert!(
                message.contains(expected) && message.contains("tensors.safetensors"),
                "{message}"
            );
        }
    };
    let w = || ("w", F8, &[2, 3][..], vec![0x38; 6]);
    let scale = || ("w_scale", Dtype::F32, &[1][..], f32s(&[0.5]));

    // Of another program: no metadata, or its own.
    for metadata in [&[][..], &[("format", "pt")], &[("format", "burn-fp8 frozen layers")]] {
        write(&path, &[w(), scale()], metadata);
        let read = Matrix::load(&path, "w", &Default::default()).expect("good as it is");
        assert_eq!((read.to_bytes(), read.read_scale()), (vec![0x38; 6], 0.5));
        assert_eq!(Matrix::load_all(&path, &Default::default()).expect("good").len(), 1);
    }
    let whole = std::fs::read(&path).expect("there");
    for len in [0, 7, 8, 60, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).expect("writable");
        refused("not a complete safetensors file");
    }
    std::fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).expect("writable");
    refused("not a complete safetensors file");
    // A shape far larger than the file.
    let header =
        r#"{"w":{"dtype":"F8_E4M3","shape":[4294967296,4294967296],"data_offsets":[0,6]}}"#;
    let huge = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 6]].concat();
    std::fs::write(&path, huge).expect("writable");
    refused("not a complete safetensors file");

    write(&path, &[w(), scale()], &[("format", "burn-fp8 tensors"), ("version", "2")]);
    refused("it has version 2; this burn-fp8 reads 1");
    write(&path, &[w()], &[]);
    refused("it has no `w_scale`");
    for (dtype, size) in [(Dtype::U8, 6), (Dtype::F32, 24), (Dtype::F8_E8M0, 6)] {
        write(&path, &[("w", dtype, &[2, 3], vec![0; size]), scale()], &[]);
        refused("not F8_E4M3 or F8_E5M2 of 2 dimensions");
    }
    for shape in [&[6][..], &[1, 2, 3], &[]] {
        write(&path, &[("w", F8, shape, vec![0; shape.iter().product()]), scale()], &[]);
        refused("not F8_E4M3 or F8_E5M2 of 2 dimensions");
    }
    write(&path, &[("w", F8, &[usize::MAX, 0], vec![]), scale()], &[]);
    refused("do not fill the shape");
    for (dtype, shape, bytes) in [
        (Dtype::F32, &[2][..], f32s(&[1.0, 1.0])),
        (Dtype::F32, &[1, 1], f32s(&[1.0])),
        (Dtype::F32, &[0], vec![]),
        (Dtype::BF16, &[1], vec![0; 2]),
        (F8, &[1], vec![0]),
    ] {
        write(&path, &[w(), ("w_scale", dtype, shape, bytes)], &[]);
        refused("not F");
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        write(&path, &[w(), ("w_scale", Dtype::F32, &[1], f32s(&[bad]))], &[]);
        refused("w_scale is");
    }

    write(&path, &[w(), ("w_scale", Dtype::F32, &[], f32s(&[3.0]))], &[]);
    let scalar = Matrix::load(&path, "w", &Default::default()).expect("other programs write so");
    assert_eq!(scalar.read_scale(), 3.0);

    // What else is in a file is of no concern to who wants one tensor of it.
    write(&path, &[w(), scale(), ("norm", Dtype::F32, &[1], f32s(&[1.0]))], &[]);
    Matrix::load(&path, "w", &Default::default()).expect("there");
    let error = Matrix::load_all(&path, &Default::default()).unwrap_err().to_string();
    assert!(error.contains("`norm` is F32 [1]"), "{error}");
    let error = Matrix::load(&path, "v", &Default::default()).unwrap_err().to_string();
    assert!(error.contains("it has no `v`; it has `norm`, `w`, `w_scale`"), "{error}");

    std::fs::remove_file(&path).expect("there");
    let error = Matrix::load(&path, "w", &Default::default()).unwrap_err();
    assert!(matches!(error, Fp8Error::Io { action: "read", .. }), "{error:?}");
}
