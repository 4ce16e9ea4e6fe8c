//! Codes in each of their forms.

#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{Shape, Tensor, TensorData};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice;

use super::Fp8Tensor;
use crate::backend::Fp8Backend;
use crate::engine::portable::codes::{compact, from_words, transpose};
use crate::engine::{Codes, Fp8Engine, Matrix, Scalar, Scales};

type CodesOf<B> = Codes<FloatTensor<B>, IntTensor<B>>;

fn tensor<B: Backend, const D: usize>(codes: CodesOf<B>, format: Fp8Format) -> Fp8Tensor<B, D> {
    Fp8Tensor::new(Matrix::new(codes, Scales::One(Scalar::Host(1.0)), format))
}

fn bits<const D: usize>(values: Tensor<impl Backend, D>) -> Vec<u32> {
    let values: Vec<f32> = values.into_data().to_vec().expect("values are f32");
    values.iter().map(|x| if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }).collect()
}

/// Every code, in every form that a backend may hold them in, is the number that the core decodes.
fn check_forms<B: Fp8Engine>() {
    let device = Default::default();
    // Not a multiple of four, and more than one dimension.
    let bytes: Vec<u8> = (0..=255).chain([0x38, 0xC0]).collect();
    let shape = || Shape::new([2, 3, 43]);
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        let mut values = vec![0.0; bytes.len()];
        slice::decode(&bytes, 1.0, format, &mut values);
        let as_u8 = B::int_from_data(TensorData::new(bytes.clone(), shape()), &device);
        let as_f32 = B::float_from_data(TensorData::new(values.clone(), shape()), &device);
        let forms = [
            (Codes::Bytes(as_u8), bytes.len()),
            (from_words::<B>(&bytes, shape(), &device), bytes.len().next_multiple_of(4)),
            (Codes::Values(as_f32), 4 * bytes.len()),
        ];
        let expected: Vec<_> =
            values.iter().map(|x| if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }).collect();
        for (codes, held) in forms {
            let is_values = matches!(codes, Codes::Values(_));
            let codes = tensor::<B, 3>(codes, format).to_device(&device);
            assert_eq!((codes.dims(), codes.bytes_held()), ([2, 3, 43], held));
            assert_eq!(bits(codes.values()), expected, "{format}");
            if !is_values {
                assert_eq!(codes.to_bytes(), bytes);
            }
        }
        let held = Fp8Tensor::<B, 3>::from_bytes(bytes.clone(), [2, 3, 43], format, 1.0, &device)
            .expect("they fill the shape");
        assert_eq!((held.bytes_held(), held.to_bytes()), (bytes.len(), bytes.clone()));
    }
    for (bytes, shape) in [(vec![1; 5], [2, 3]), (vec![], [1, 1]), (vec![1], [usize::MAX, 3])] {
        let error = Fp8Tensor::<B, 2>::from_bytes(bytes, shape, Fp8Format::E4M3, 1.0, &device);
        assert!(error.unwrap_err().to_string().contains("do not fill the shape"));
    }
    let empty = from_words::<B>(&[], Shape::new([0, 3]), &device);
    let empty = tensor::<B, 2>(empty, Fp8Format::E4M3);
    assert_eq!((empty.values().dims(), empty.to_bytes()), ([0, 3], vec![]));
}

/// The transpose of a matrix of codes, in every form, of sizes that leave bytes of the last word to spare and that do not.
fn check_transposes<B: Fp8Engine>() {
    let (device, format) = (Default::default(), Fp8Format::E4M3);
    for [rows, columns] in [[1, 1], [3, 5], [4, 6], [16, 3], [7, 32], [0, 3]] {
        let bytes: Vec<u8> = (0..rows * columns).map(|code| (code * 37) as u8 & 0xF7).collect();
        let expected: Vec<u8> = (0..columns)
            .flat_map(|column| bytes.iter().skip(column).step_by(columns).copied())
            .collect();
        let shape = || Shape::new([rows, columns]);
        let values = bytes.iter().map(|code| format.decode(*code)).collect::<Vec<_>>();
        let as_u8 = B::int_from_data(TensorData::new(bytes.clone(), shape()), &device);
        let as_f32 = B::float_from_data(TensorData::new(values, shape()), &device);
        for codes in
            [Codes::Bytes(as_u8), from_words::<B>(&bytes, shape(), &device), Codes::Values(as_f32)]
        {
            let transposed = tensor::<B, 2>(transpose::<B>(codes), format);
            assert_eq!(transposed.dims(), [columns, rows]);
            assert_eq!(transposed.to_bytes(), expected);
        }
    }
}

/// Every number of both formats, compacted, has its own code again; NaN has one.
fn check_compact<B: Fp8Engine>() {
    let device = Default::default();
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        let codes: Vec<u8> = (0..=255).collect();
        let values: Vec<f32> = codes.iter().map(|code| format.decode(*code)).collect();
        let values = B::float_from_data(TensorData::new(values, [2, 128]), &device);
        let compact = compact::<B>(Codes::Values(values), format);
        assert!(matches!(compact, Codes::Bytes(..)), "the device has u8");
        let bytes = tensor::<B, 2>(compact, format).to_bytes();
        for (code, byte) in codes.into_iter().zip(bytes) {
            let expected = match format.is_nan(code) {
                true => format.encode(f32::NAN, Overflow::NonSaturating) & 0x7F,
                false => code,
            };
            assert_eq!(byte & 0x7F, expected & 0x7F, "{format} {code:#x}");
            assert!(format.is_nan(code) || byte == code, "{format} {code:#x}: {byte:#x}");
        }
    }
}

#[test]
fn values_compact_to_their_codes() {
    check_compact::<Flex>();
    #[cfg(feature = "ndarray")]
    {
        check_compact::<NdArray>();
        check_compact::<Fp8Backend<Autodiff<NdArray>>>();
    }
}

#[test]
fn transposes_move_every_code() {
    check_transposes::<Flex>();
    check_transposes::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_transposes::<NdArray>();
}

#[test]
fn every_form_holds_every_code() {
    check_forms::<Flex>();
    check_forms::<Fp8Backend<Flex>>();
    check_forms::<Autodiff<Flex>>();
    check_forms::<Fp8Backend<Autodiff<Flex>>>();
}

#[cfg(feature = "ndarray")]
#[test]
fn every_form_holds_every_code_on_ndarray() {
    check_forms::<NdArray>();
    check_forms::<Fp8Backend<Autodiff<NdArray>>>();
}
