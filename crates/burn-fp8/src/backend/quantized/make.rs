//! Codes and scales of a scheme: from numbers, and from and to data.

use burn::tensor::{Tensor, TensorPrimitive};
use burn_backend::quantization::{QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use burn_fp8_core::{Fp8Format, Overflow, Recipe};

use super::scheme::{Scheme, with_block};
use super::view::View;
use super::{Fp8QTensor, QCodes};
use crate::Fp8Error;
use crate::backend::{Fp8Backend, Fp8Matmul};
use crate::engine::portable::codes;
use crate::engine::portable::grid::Grid;
use crate::engine::tensor::{read, reshape};
use crate::engine::{
    Matrix, MatrixOf, Request, Scalar, ScaleKind, ScaleRule, Scales, WHOLE, Wanted, usable,
};
use crate::host;
use crate::product::Held;
use crate::tensor::Fp8Tensor;

impl<B: Fp8Matmul> QCodes<B> {
    pub(super) fn new(shape: Shape, scheme: QuantScheme, matrix: MatrixOf<B>) -> Self {
        // Codes lie as they lie, one byte each, whatever was asked for.
        let scheme = scheme.with_store(QuantStore::Native);
        Self { shape, scheme, held: Held::new(matrix) }
    }

    /// Quantizes with the scales of the numbers themselves: `amax / max`, of finite elements.
    pub(super) fn dynamic(x: FloatTensor<B>, named: &QuantScheme, scheme: Scheme) -> Self {
        let (shape, x) = (x.shape(), prepared::<B>(x, scheme));
        if shape.num_elements() == 0 {
            return Self::empty(shape, named, scheme, &host::float_device::<B>(&x));
        }
        let Scheme { format, block, .. } = scheme;
        let by = |recipe| {
            let rule = ScaleRule::Current(recipe);
            compact::<B>(B::fp8_quantize(
                x.clone(),
                Request { format, block, rule, wanted: Wanted::Codes },
            ))
        };
        let matrix = match scheme.recipe() {
            Some(recipe) => by(recipe),
            None => {
                let scales = match by(Recipe::current()).scales {
                    Scales::One(scale) => vec![scale.read::<B>()],
                    Scales::Grid { scales, .. } => read::<B>(scales),
                };
                with_scales::<B>(x, scheme, &scales)
            }
        };
        Self::new(shape, *named, matrix)
    }

    /// Quantizes with given scales, `[1]`, or one for each block.
    pub(super) fn given(
        x: FloatTensor<B>,
        named: &QuantScheme,
        scheme: Scheme,
        scales: FloatTensor<B>,
    ) -> Self {
        assert!(
            scheme.block[0] == 1 || scheme.block == WHOLE,
            "{named:?}: Burn 0.21 computes the scales of blocks with several rows from elements that lie next to each other, not from blocks. \
             quantize_dynamic computes them right; or take blocks of one row"
        );
        let (shape, x) = (x.shape(), prepared::<B>(x, scheme));
        if shape.num_elements() == 0 {
            return Self::empty(shape, named, scheme, &host::float_device::<B>(&x));
        }
        let scales = read::<B>(B::float_cast(scales, FloatDType::F32));
        Self::new(shape, *named, with_scales::<B>(x, scheme, &scales))
    }

    fn empty(shape: Shape, named: &QuantScheme, scheme: Scheme, device: &B::Device) -> Self {
        let matrix = scheme.matrix_shape(&shape);
        let scales = vec![1.0; count_of_scales(scheme.block, &matrix)];
        let scales = scales_of::<B>(&scales, scheme.block, &matrix, device);
        let codes = codes::from_bytes::<B>(vec![], matrix, scheme.format, device);
        Self::new(shape, *named, Matrix::new(codes, scales, scheme.format))
    }

    /// Codes row by row, then scales in f32: Burn's format of quantized data, which takes up to three bytes between them.
    pub(super) fn from_data(data: TensorData, scheme: Scheme, device: &B::Device) -> Self {
        usable::<B>(device).unwrap_or_else(|error| panic!("{error}"));
        let (shape, DType::QFloat(named)) = (data.shape.clone(), data.dtype) else {
            unreachable!("the scheme is that of the data")
        };
        let (matrix, elements) = (scheme.matrix_shape(&shape), shape.num_elements());
        let count = count_of_scales(scheme.block, &matrix);
        let bytes = &*data.bytes;
        let expected = [elements, elements.next_multiple_of(4)].map(|codes| codes + 4 * count);
        assert!(
            (expected[0]..=expected[1]).contains(&bytes.len()),
            "quantized data {:?} in {} has {elements} codes and {count} scales of 4 bytes, so {} bytes, not {}",
            shape.as_slice(),
            scheme.format,
            expected[0],
            bytes.len()
        );
        let scales = bytes[bytes.len() - 4 * count..].as_chunks::<4>().0;
        let scales: Vec<f32> = scales.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        for scale in &scales {
            assert!(
                scale.is_finite() && *scale > 0.0,
                "a scale of quantized data {:?} in {} is {scale}; it must be finite and positive: the data is damaged",
                shape.as_slice(),
                scheme.format
            );
        }
        let scales = scales_of::<B>(&scales, scheme.block, &matrix, device);
        let codes = bytes[..elements].to_vec();
        let codes = codes::from_bytes::<B>(codes, matrix, scheme.format, device);
        Self::new(shape, named, Matrix::new(codes, scales, scheme.format))
    }

    /// The inverse.
    pub(super) fn into_data(self) -> TensorData {
        let matrix = self.matrix();
        let codes = codes::into_bytes::<B>(matrix.row_by_row::<B>(false), matrix.format);
        let scales = match matrix.scales {
            Scales::One(scale) => vec![scale.read::<B>()],
            Scales::Grid { scales, .. } => read::<B>(scales),
        };
        let codes: Vec<i8> = codes.into_iter().map(u8::cast_signed).collect();
        TensorData::quantized(codes, self.shape, self.scheme, &scales)
    }

    /// The numbers, f32.
    pub(super) fn numbers(&self) -> FloatTensor<B> {
        let matrix = self.matrix();
        let numbers = match self.shape.num_elements() {
            0 => codes::values::<B>(matrix.row_by_row::<B>(false), matrix.format),
            _ => B::fp8_dequantize(matrix),
        };
        reshape::<B>(numbers, self.shape.clone())
    }
}

/// A constant in f32 or narrower, as rows and columns.
fn prepared<B: Fp8Matmul>(x: FloatTensor<B>, scheme: Scheme) -> FloatTensor<B> {
    usable::<B>(&host::float_device::<B>(&x)).unwrap_or_else(|error| panic!("{error}"));
    let matrix = scheme.matrix_shape(&x.shape());
    let x = B::constant(B::value(x));
    let x = if x.dtype() == DType::F64 { B::float_cast(x, FloatDType::F32) } else { x };
    reshape::<B>(x, matrix)
}

/// Quantizes rows and columns with these scales.
fn with_scales<B: Fp8Matmul>(x: FloatTensor<B>, scheme: Scheme, scales: &[f32]) -> MatrixOf<B> {
    let (shape, device) = (x.shape(), host::float_device::<B>(&x));
    let scales: Vec<f32> = scales.iter().map(|scale| scheme.scale(*scale)).collect();
    let scales = scales_of::<B>(&scales, scheme.block, &shape, &device);
    let matrix = match &scales {
        Scales::One(scale) => {
            let rule = ScaleRule::Given(scale.clone(), Overflow::SaturateFinite);
            B::fp8_quantize(x, Request::whole(scheme.format, rule, Wanted::Codes))
        }
        Scales::Grid { scales, block, .. } => {
            let spread = Grid::new(&shape, *block).spread::<B>(scales.clone(), shape);
            let quotient = B::float_div(B::float_cast(x, FloatDType::F32), spread);
            B::fp8_quantize(quotient, Request::exact(scheme.format, Wanted::Codes))
        }
    };
    Matrix { scales, ..compact::<B>(matrix) }
}

/// As small as the device holds codes.
fn compact<B: Fp8Matmul>(matrix: MatrixOf<B>) -> MatrixOf<B> {
    let format = matrix.format;
    let codes = matrix.codes.map(|codes| codes::compact::<B>(codes, format));
    Matrix { codes, values: None, amax: None, ..matrix }
}

fn count_of_scales(block: [usize; 2], matrix: &Shape) -> usize {
    match block {
        WHOLE => 1,
        block => Grid::new(matrix, block).of_scales(matrix).num_elements(),
    }
}

fn scales_of<B: Fp8Matmul>(
    scales: &[f32],
    block: [usize; 2],
    matrix: &Shape,
    device: &B::Device,
) -> Scales<FloatTensor<B>> {
    let count = count_of_scales(block, matrix);
    assert!(
        scales.len() == count,
        "{} scales for {count} in {:?}",
        scales.len(),
        matrix.as_slice()
    );
    if block == WHOLE {
        return Scales::One(Scalar::Host(scales[0]));
    }
    let shape = Grid::new(matrix, block).of_scales(matrix);
    let kind = ScaleKind::of_scales(scales);
    let scales = B::float_from_data(TensorData::new(scales.to_vec(), shape), device);
    Scales::Grid { scales, block, kind }
}

/// A tensor of this crate as Burn's quantized one. No code moves.
///
/// # Errors
/// Where no scheme of Burn says its blocks, which have at most 255 rows and columns.
pub(crate) fn from_matrix<B: Fp8Matmul, const D: usize>(
    tensor: Fp8Tensor<Fp8Backend<B>, D>,
) -> Result<Tensor<Fp8Backend<B>, D>, Fp8Error> {
    let value = match tensor.format() {
        Fp8Format::E4M3 => QuantValue::E4M3,
        Fp8Format::E5M2 => QuantValue::E5M2,
    };
    let named = QuantScheme::default().with_value(value).with_level(QuantLevel::Tensor);
    let shape = tensor.shape();
    let named = match tensor.block() {
        None => named,
        Some(block) if fits(block, &shape) => with_block(named, block),
        Some([rows, columns]) => {
            return Err(Fp8Error::Invalid {
                what: "quantized tensor",
                reason: format!(
                    "it has a scale for each block of {rows}×{columns}; blocks of Burn's schemes have at most 255 rows and columns, and divide the tensor, \
                     here {:?}: keep it an Fp8Tensor",
                    shape.as_slice()
                ),
            });
        }
    };
    let block = tensor.block();
    let mut matrix = tensor.matrix().clone();
    if let (Scales::Grid { block, .. }, Some(sizes)) = (&mut matrix.scales, block) {
        // Those of a row reached to its end, however long it was.
        *block = sizes;
    }
    if D == 1 {
        let codes = matrix.codes.expect("codes of one dimension lie row by row");
        let view = View::<B>::Reshape(Shape::new([1, shape[0]]));
        matrix.codes = Some(view.of_codes(codes, matrix.format));
    }
    let codes = Fp8QTensor::<B>::Fp8(QCodes::new(shape, named, matrix));
    Ok(Tensor::from_primitive(TensorPrimitive::QFloat(codes)))
}

/// Whether a scheme of Burn can say so.
fn fits(block: [usize; 2], shape: &Shape) -> bool {
    let last = shape.num_dims() - 2;
    let fits = |dim: usize| {
        block[dim] <= usize::from(u8::MAX) && shape[last + dim].is_multiple_of(block[dim])
    };
    fits(0) && fits(1)
}

/// The inverse, or why there is none.
pub(crate) fn into_matrix<B: Fp8Matmul, const D: usize>(
    tensor: Tensor<Fp8Backend<B>, D>,
) -> Result<Fp8Tensor<Fp8Backend<B>, D>, String> {
    let dtype = tensor.dtype();
    let TensorPrimitive::QFloat(Fp8QTensor::Fp8(codes)) = tensor.into_primitive() else {
        return Err(format!(
            "it is {dtype:?}; from_quantized takes what quantize gives for a scheme of E4M3 or E5M2"
        ));
    };
    let mut matrix = codes.matrix();
    if D == 1 {
        if let Scales::Grid { .. } = matrix.scales {
            return Err("it has one dimension and several scales: reshape it to rows".into());
        }
        let held = matrix.codes.expect("codes of one dimension lie row by row");
        let view = View::<B>::Reshape(codes.shape.clone());
        matrix.codes = Some(view.of_codes(held, matrix.format));
    }
    Ok(Fp8Tensor::new(matrix))
}
