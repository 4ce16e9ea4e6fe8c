//! Tensors of FP8 codes, one byte an element.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Shape, Tensor, TensorPrimitive};
use burn_fp8_core::Fp8Format;

use crate::engine::{CodesPrimitive, Fp8Engine};
use crate::error::Fp8Error;

/// A tensor of FP8 numbers, without a scale.
///
/// [`from_bytes`](Self::from_bytes) makes it take one byte an element: as a tensor of u8 where the device has that type, else as
/// i32 with four codes each. A device with neither holds the numbers in f32.
#[derive(Clone, Debug)]
pub struct Fp8Codes<B: Backend, const D: usize> {
    codes: CodesPrimitive<B>,
    format: Fp8Format,
}

impl<B: Backend, const D: usize> Fp8Codes<B, D> {
    pub(crate) fn new(codes: CodesPrimitive<B>, format: Fp8Format) -> Self {
        Self { codes, format }
    }

    /// Codes given row by row, one byte each.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where there are more or fewer bytes than the shape has elements.
    pub fn from_bytes(
        bytes: Vec<u8>,
        shape: [usize; D],
        format: Fp8Format,
        device: &B::Device,
    ) -> Result<Self, Fp8Error> {
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        // Where one size is 0, the others must still have strides.
        let strides = shape.iter().try_fold(1isize, |product, size| {
            product.checked_mul(isize::try_from(*size).ok()?.max(1))
        });
        if elements != Some(bytes.len()) || strides.is_none() {
            let reason = format!("{} bytes do not fill the shape {shape:?}", bytes.len());
            return Err(Fp8Error::Invalid { what: "FP8 codes", reason });
        }
        Ok(Self::new(
            CodesPrimitive::from_bytes(bytes, Shape::from(shape.to_vec()), format, device),
            format,
        ))
    }

    /// The format.
    pub fn format(&self) -> Fp8Format {
        self.format
    }

    /// The size of each dimension.
    pub fn dims(&self) -> [usize; D] {
        self.shape().dims()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.codes.shape()
    }

    /// The device that holds the codes.
    pub fn device(&self) -> B::Device {
        self.codes.device()
    }

    /// The same codes on another device.
    pub fn to_device(self, device: &B::Device) -> Self {
        Self { codes: self.codes.moved_to(device), ..self }
    }

    /// The codes, row by row, one byte each. Waits for the device.
    ///
    /// A NaN that the backend holds as a number has the code that [`Fp8Format::encode`] gives it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.codes.clone().into_bytes(self.format)
    }

    /// The bytes that the codes take on the device.
    pub fn bytes_held(&self) -> usize {
        self.codes.bytes_held()
    }

    pub(crate) fn codes(&self) -> &CodesPrimitive<B> {
        &self.codes
    }
}

impl<B: Fp8Engine, const D: usize> Fp8Codes<B, D> {
    /// The numbers, in f32; NaN codes give NaN. A constant of the graph.
    pub fn values(&self) -> Tensor<B, D> {
        Tensor::from_primitive(TensorPrimitive::Float(B::fp8_values(self.codes.clone())))
    }
}

impl<B: AutodiffBackend, const D: usize> Fp8Codes<B, D> {
    /// The same codes without autodiff.
    pub fn inner(self) -> Fp8Codes<B::InnerBackend, D> {
        let codes = match self.codes {
            CodesPrimitive::Bytes(codes, format) => {
                CodesPrimitive::Bytes(B::int_inner(codes), format)
            }
            CodesPrimitive::Packed(words, shape, format) => {
                CodesPrimitive::Packed(B::int_inner(words), shape, format)
            }
            CodesPrimitive::Values(values) => CodesPrimitive::Values(B::inner(values)),
        };
        Fp8Codes::new(codes, self.format)
    }

    /// Codes of the inner backend on this one.
    pub fn from_inner(codes: Fp8Codes<B::InnerBackend, D>) -> Self {
        let format = codes.format;
        let codes = match codes.codes {
            CodesPrimitive::Bytes(codes, format) => {
                CodesPrimitive::Bytes(B::int_from_inner(codes), format)
            }
            CodesPrimitive::Packed(words, shape, format) => {
                CodesPrimitive::Packed(B::int_from_inner(words), shape, format)
            }
            CodesPrimitive::Values(values) => CodesPrimitive::Values(B::from_inner(values)),
        };
        Self::new(codes, format)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    #[cfg(feature = "ndarray")]
    use burn::backend::NdArray;
    use burn::backend::{Autodiff, Flex};

    use burn::tensor::TensorData;
    use burn_fp8_core::{Overflow, slice};

    use super::*;
    use crate::backend::Fp8Backend;
    use crate::engine::portable;

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
                (CodesPrimitive::Bytes(as_u8, format), bytes.len()),
                (
                    CodesPrimitive::pack(&bytes, shape(), format, &device),
                    bytes.len().next_multiple_of(4),
                ),
                (CodesPrimitive::Values(as_f32), 4 * bytes.len()),
            ];
            let expected: Vec<_> =
                values.iter().map(|x| if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }).collect();
            for (codes, held) in forms {
                let is_values = matches!(codes, CodesPrimitive::Values(_));
                let codes = Fp8Codes::<B, 3>::new(codes, format).to_device(&device);
                assert_eq!((codes.dims(), codes.bytes_held()), ([2, 3, 43], held));
                assert_eq!(bits(codes.values()), expected, "{format}");
                if !is_values {
                    assert_eq!(codes.to_bytes(), bytes);
                }
            }
            let held = Fp8Codes::<B, 3>::from_bytes(bytes.clone(), [2, 3, 43], format, &device)
                .expect("they fill the shape");
            assert_eq!((held.bytes_held(), held.to_bytes()), (bytes.len(), bytes.clone()));
        }
        for (bytes, shape) in [(vec![1; 5], [2, 3]), (vec![], [1, 1]), (vec![1], [usize::MAX, 3])] {
            let error = Fp8Codes::<B, 2>::from_bytes(bytes, shape, Fp8Format::E4M3, &device);
            assert!(error.unwrap_err().to_string().contains("do not fill the shape"));
        }
        let empty = CodesPrimitive::<B>::pack(&[], Shape::new([0, 3]), Fp8Format::E4M3, &device);
        let empty = Fp8Codes::<B, 2>::new(empty, Fp8Format::E4M3);
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
            for codes in [
                CodesPrimitive::Bytes(as_u8, format),
                CodesPrimitive::pack(&bytes, shape(), format, &device),
                CodesPrimitive::Values(as_f32),
            ] {
                let transposed = Fp8Codes::<B, 2>::new(portable::transpose::<B>(codes), format);
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
            let compact = portable::compact::<B>(CodesPrimitive::Values(values), format);
            assert!(matches!(compact, CodesPrimitive::Bytes(..)), "the device has u8");
            let bytes = Fp8Codes::<B, 2>::new(compact, format).to_bytes();
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
}
