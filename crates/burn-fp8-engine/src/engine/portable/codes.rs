//! Codes in their forms: bytes, packed words, values.

use burn_backend::{
    Backend, DType, FloatDType, IntDType, Shape, Slice, TensorData, TensorMetadata,
    tensor::FloatTensor, tensor::IntTensor,
};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice;

use super::scale;
use crate::engine::codes::Codes;
use crate::engine::tensor::{join as join_floats, matrix_shape, read};
use crate::host;

type CodesOf<B> = Codes<FloatTensor<B>, IntTensor<B>>;

/// Codes given row by row, as small as the device can hold them.
pub fn from_bytes<B: Backend>(
    bytes: Vec<u8>,
    shape: Shape,
    format: Fp8Format,
    device: &B::Device,
) -> CodesOf<B> {
    if B::supports_dtype(device, DType::U8) {
        Codes::Bytes(B::int_from_data(TensorData::new(bytes, shape), device))
    } else if B::supports_dtype(device, DType::I32) {
        from_words::<B>(&bytes, shape, device)
    } else {
        let mut values = vec![0.0; bytes.len()];
        slice::decode(&bytes, 1.0, format, &mut values);
        Codes::Values(B::float_from_data(TensorData::new(values, shape), device))
    }
}

/// Four codes to an i32, the first in its lowest byte.
pub fn from_words<B: Backend>(bytes: &[u8], shape: Shape, device: &B::Device) -> CodesOf<B> {
    let word = |codes: &[u8]| {
        let mut bytes = [0; 4];
        bytes[..codes.len()].copy_from_slice(codes);
        i32::from_le_bytes(bytes)
    };
    let mut words: Vec<_> = bytes.chunks(4).map(word).collect();
    if words.is_empty() {
        // Not every backend has tensors without elements.
        words.push(0);
    }
    let len = words.len();
    Codes::Packed(B::int_from_data(TensorData::new(words, [len]), device), shape)
}

/// The codes row by row, one byte each. Waits for the device.
pub fn into_bytes<B: Backend>(codes: CodesOf<B>, format: Fp8Format) -> Vec<u8> {
    match codes {
        Codes::Bytes(codes) => host::numbers(read_codes::<B>(codes)),
        Codes::Packed(words, shape) => {
            let mut bytes = bytes_of::<B>(words);
            bytes.truncate(shape.num_elements());
            bytes
        }
        Codes::Padded(words, shape) => {
            let [rows, columns] = shape.dims();
            let [padded, words_of_row] = words.shape().dims();
            let bytes = bytes_of::<B>(words);
            let lines = bytes.chunks(4 * words_of_row).take(rows.min(padded));
            lines.flat_map(|line| line[..columns].to_vec()).collect()
        }
        Codes::Values(values) => {
            let encode = |value: f32| format.encode(value, Overflow::NonSaturating);
            read::<B>(values).into_iter().map(encode).collect()
        }
    }
}

fn bytes_of<B: Backend>(words: IntTensor<B>) -> Vec<u8> {
    let words: Vec<i32> = host::numbers(read_codes::<B>(words));
    words.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn read_codes<B: Backend>(codes: IntTensor<B>) -> TensorData {
    burn_backend::try_read_sync(B::int_into_data(codes))
        .expect("codes are read where blocking on the device is possible")
        .expect("codes can be read from their device")
}

/// The same codes, row by row in memory. A transpose may be a view.
pub fn contiguous<B: Backend>(codes: CodesOf<B>) -> CodesOf<B> {
    // Flat tensors are no views; Burn has no operation for it.
    let flat = Shape::new([codes.shape().num_elements()]);
    match codes {
        Codes::Bytes(codes) => {
            let shape = codes.shape();
            Codes::Bytes(B::int_reshape(B::int_reshape(codes, flat), shape))
        }
        Codes::Values(values) => {
            let shape = values.shape();
            Codes::Values(B::float_reshape(B::float_reshape(values, flat), shape))
        }
        packed => packed,
    }
}

/// The same codes, their leading dimensions joined.
pub fn join<B: Backend>(codes: CodesOf<B>) -> CodesOf<B> {
    match codes {
        Codes::Bytes(codes) => {
            let joined = Shape::new(matrix_shape(&codes));
            Codes::Bytes(B::int_reshape(codes, joined))
        }
        Codes::Packed(words, shape) => {
            let columns = shape[shape.num_dims() - 1];
            Codes::Packed(words, Shape::new([shape.num_elements() / columns, columns]))
        }
        Codes::Values(values) => Codes::Values(join_floats::<B>(values)),
        padded @ Codes::Padded(..) => padded,
    }
}

/// The numbers that codes stand for, f32.
pub fn values<B: Backend>(codes: CodesOf<B>, format: Fp8Format) -> FloatTensor<B> {
    match codes {
        Codes::Values(values) => values,
        Codes::Bytes(codes) => {
            let shape = codes.shape();
            look_up::<B>(codes, shape, format)
        }
        Codes::Packed(words, shape) => {
            let codes = unpack::<B>(words, shape.num_elements());
            look_up::<B>(codes, shape, format)
        }
        Codes::Padded(words, shape) => {
            let padded = unpadded::<B>(words);
            without_padding::<B>(values::<B>(padded, format), &shape)
        }
    }
}

/// Padded codes as packed ones, padding and all.
pub fn unpadded<B: Backend>(words: IntTensor<B>) -> CodesOf<B> {
    let mut shape = words.shape();
    let flat = B::int_reshape(words, Shape::new([shape.num_elements()]));
    let last = shape.num_dims() - 1;
    shape[last] *= 4;
    Codes::Packed(flat, shape)
}

/// A tensor of this shape that was padded at the ends of its dimensions.
pub fn without_padding<B: Backend>(padded: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    let all: Vec<_> = shape.iter().map(|size| Slice::from(0..*size)).collect();
    B::float_slice(padded, &all)
}

/// Codes of one byte each in place of values, where the device has u8. Nothing is read back.
pub fn compact<B: Backend>(codes: CodesOf<B>, format: Fp8Format) -> CodesOf<B> {
    match codes {
        Codes::Values(values)
            if B::supports_dtype(&host::float_device::<B>(&values), DType::U8)
                && values.shape().num_elements() > 0 =>
        {
            Codes::Bytes(encode::<B>(values, format))
        }
        codes => codes,
    }
}

/// The codes of the transpose of a matrix.
pub fn transpose<B: Backend>(codes: CodesOf<B>) -> CodesOf<B> {
    match codes {
        Codes::Bytes(codes) => Codes::Bytes(B::int_transpose(codes)),
        Codes::Values(values) => Codes::Values(B::float_transpose(values)),
        Codes::Packed(words, shape) => {
            let [rows, columns] = shape.dims();
            let transposed = Shape::new([columns, rows]);
            if shape.num_elements() == 0 {
                return Codes::Packed(words, transposed);
            }
            let codes = B::int_reshape(unpack::<B>(words, shape.num_elements()), shape);
            let elements = Shape::new([rows * columns]);
            let codes = B::int_reshape(B::int_transpose(codes), elements);
            Codes::Packed(pack::<B>(codes), transposed)
        }
        Codes::Padded(words, shape) => match transpose::<B>(unpadded::<B>(words)) {
            Codes::Packed(words, padded) => {
                let [padded, padded_columns] = padded.dims();
                let words = B::int_reshape(words, Shape::new([padded, padded_columns / 4]));
                let [rows, columns] = shape.dims();
                Codes::Padded(words, Shape::new([columns, rows]))
            }
            _ => unreachable!("packed codes stay packed"),
        },
    }
}

/// The codes in i32 words with four of them each, the first in the lowest byte.
fn unpack<B: Backend>(words: IntTensor<B>, elements: usize) -> IntTensor<B> {
    let len = words.shape().num_elements();
    let word = B::int_reshape(words, Shape::new([len, 1]));
    let bytes = (0..4).map(|byte| {
        let shifted = B::bitwise_right_shift_scalar(word.clone(), (8 * byte).into());
        B::bitwise_and_scalar(shifted, 0xFF.into())
    });
    let codes = B::int_reshape(B::int_cat(bytes.collect(), 1), Shape::new([4 * len]));
    B::int_slice(codes, &[Slice::new(0, Some(elements as isize), 1)])
}

/// The inverse of [`unpack`]: codes `[n]` in i32 become words.
fn pack<B: Backend>(codes: IntTensor<B>) -> IntTensor<B> {
    let elements = codes.shape().num_elements();
    let words = elements.div_ceil(4);
    let device = host::int_device::<B>(&codes);
    let codes = match 4 * words - elements {
        0 => codes,
        spare => {
            let zeros = B::int_zeros(Shape::new([spare]), &device, IntDType::I32);
            B::int_cat(vec![codes, zeros], 0)
        }
    };
    let codes = B::int_reshape(codes, Shape::new([words, 4]));
    let byte = |byte: isize| {
        let column = [Slice::full(), Slice::new(byte, Some(byte + 1), 1)];
        let codes = B::int_slice(codes.clone(), &column);
        let codes = match byte {
            // The highest byte has the sign of the word: some backends do not let a shift change it.
            3 => {
                let flipped = B::bitwise_xor_scalar(codes, 0x80.into());
                B::int_sub_scalar(flipped, 0x80.into())
            }
            _ => codes,
        };
        B::bitwise_left_shift_scalar(codes, (8 * byte as i32).into())
    };
    let packed = (1..4).fold(byte(0), |word, index| B::bitwise_or(word, byte(index)));
    B::int_reshape(packed, Shape::new([words]))
}

/// The codes of numbers of a format, u8. NaN has the code that [`Fp8Format::encode`] gives it, without a sign.
///
/// Magnitudes ascend with their codes, so each bit of a code, from the highest one, is set where the magnitude is not below the number
/// that the bits so far and this one stand for. NaN numbers are not: the comparison is false.
fn encode<B: Backend>(values: FloatTensor<B>, format: Fp8Format) -> IntTensor<B> {
    let (device, shape) = (host::float_device::<B>(&values), values.shape());
    let settings = burn_backend::get_device_settings::<B>(&device);
    let flat = Shape::new([shape.num_elements()]);
    let values = B::float_reshape(values, flat.clone());
    let magnitude = scale::magnitude::<B>(values.clone());
    let table: Vec<f32> = (0..0x80).map(|code| format.decode(code)).collect();
    let table = B::float_from_data(TensorData::new(table, [0x80]), &device);
    let mut codes = B::int_zeros(flat, &device, settings.int_dtype);
    for bit in (0..7).rev().map(|bit| 1 << bit) {
        let with_bit = B::int_add_scalar(codes.clone(), bit.into());
        let bound = B::float_select(table.clone(), 0, with_bit.clone());
        let set = B::float_greater_equal(magnitude.clone(), bound, settings.bool_dtype);
        codes = B::int_mask_where(codes, set, with_bit);
    }
    let number = B::float_lower_equal_elem(magnitude, f32::INFINITY.into(), settings.bool_dtype);
    let nan = format.encode(f32::NAN, Overflow::NonSaturating) & 0x7F;
    codes = B::int_mask_fill(codes, B::bool_not(number), i32::from(nan).into());
    // A zero has its sign in its reciprocal.
    let zero = B::float_equal_elem(values.clone(), 0f32.into(), settings.bool_dtype);
    let signed = B::float_mask_where(values.clone(), zero, B::float_recip(values));
    let negative = B::float_lower_elem(signed, 0f32.into(), settings.bool_dtype);
    let negated = B::int_add_scalar(codes.clone(), 0x80.into());
    let codes = B::int_mask_where(codes, negative, negated);
    B::int_reshape(B::int_cast(codes, IntDType::U8), shape)
}

/// The numbers of codes of any integer type.
fn look_up<B: Backend>(codes: IntTensor<B>, shape: Shape, format: Fp8Format) -> FloatTensor<B> {
    let device = host::int_device::<B>(&codes);
    if shape.num_elements() == 0 {
        return B::float_zeros(shape, &device, FloatDType::F32);
    }
    let indices = match B::supports_dtype(&device, DType::I32) {
        true => IntDType::I32,
        false => burn_backend::get_device_settings::<B>(&device).int_dtype,
    };
    let codes = B::int_reshape(codes, Shape::new([shape.num_elements()]));
    let table: Vec<f32> = (0..=u8::MAX).map(|code| format.decode(code)).collect();
    let table = B::float_from_data(TensorData::new(table, [256]), &device);
    B::float_reshape(B::float_select(table, 0, B::int_cast(codes, indices)), shape)
}
