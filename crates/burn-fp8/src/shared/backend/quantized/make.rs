//! Codes and scales of a scheme: from numbers, and from and to data.

use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::FloatTensor;
use burn_backend::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use burn_fp8_core::{Overflow, Recipe};

use super::QCodes;
use super::scheme::Scheme;
use super::view::View;
use crate::backend::{Fp8Matmul, quantized};
use crate::engine::portable::codes;
use crate::engine::portable::grid::Grid;
use crate::engine::tensor::{read, reshape};
use crate::engine::{
    Matrix, MatrixOf, Request, Scalar, ScaleKind, ScaleRule, Scales, WHOLE, Wanted, usable,
};
use crate::host;
use crate::product::Held;

impl<B: Fp8Matmul> QCodes<B> {
    pub(crate) fn new(shape: Shape, scheme: QuantScheme, matrix: MatrixOf<B>) -> Self {
        let (scheme, device) = (quantized::stored(scheme), matrix.device::<B>());
        let matrix = match as_matrix(&shape) {
            Some(sides) => shaped::<B>(matrix, Shape::new(sides)),
            None => matrix,
        };
        Self { shape, scheme, device, held: Held::new(matrix) }
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
                let scales = numbers_of::<B>(by(Recipe::current()).scales);
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
            quantized::BLOCKS_HAVE_ROWS || scheme.block[0] == 1 || scheme.block == WHOLE,
            "{named:?}: Burn 0.21 computes the scales of blocks with several rows from elements that lie next to each other, not from blocks. \
             quantize_dynamic computes them right; or take blocks of one row"
        );
        let (shape, x) = (x.shape(), prepared::<B>(x, scheme));
        if shape.num_elements() == 0 {
            return Self::empty(shape, named, scheme, &host::float_device::<B>(&x));
        }
        let scales = read::<B>(B::float_cast(scales, FloatDType::F32));
        if !quantized::MEASURES_HERE && scales.iter().any(|scale| !scale.is_finite()) {
            // Burn measured elements that are not finite, too.
            let Self { held, .. } = Self::dynamic(x, named, scheme);
            return Self::new(shape, *named, held.get());
        }
        Self::new(shape, *named, with_scales::<B>(x, scheme, &scales))
    }

    fn empty(shape: Shape, named: &QuantScheme, scheme: Scheme, device: &B::Device) -> Self {
        let matrix = scheme.matrix_shape(&shape);
        let scales = vec![1.0; count_of_scales(scheme.block, &matrix)];
        let scales = scales_of::<B>(&scales, scheme.block, &matrix, device);
        let codes = codes::from_bytes::<B>(vec![], matrix, scheme.format, device);
        Self::new(shape, *named, Matrix::new(codes, scales, scheme.format))
    }

    pub(super) fn from_data(
        data: TensorData,
        named: &QuantScheme,
        scheme: Scheme,
        device: &B::Device,
    ) -> Self {
        usable::<B>(device).unwrap_or_else(|error| panic!("{error}"));
        let shape = Shape::from(quantized::sizes(&data).to_vec());
        let matrix = scheme.matrix_shape(&shape);
        let count = count_of_scales(scheme.block, &matrix);
        let (codes, scales) = quantized::parts(data, named, count);
        assert!(
            codes.len() == shape.num_elements() && scales.len() == count,
            "quantized data {:?} in {} has {} codes and {count} scales, not {} and {}",
            shape.as_slice(),
            scheme.format,
            shape.num_elements(),
            codes.len(),
            scales.len()
        );
        let scales = checked(&codes, scales, scheme, &matrix).unwrap_or_else(|scale| {
            panic!(
                "a scale of quantized data {:?} in {} is {scale}; it must be finite and positive: the data is damaged",
                shape.as_slice(),
                scheme.format
            )
        });
        let scales = scales_of::<B>(&scales, scheme.block, &matrix, device);
        let codes = codes::from_bytes::<B>(codes, matrix, scheme.format, device);
        Self::new(shape, *named, Matrix::new(codes, scales, scheme.format))
    }

    /// The inverse.
    pub(super) fn into_data(self) -> TensorData {
        let matrix = self.matrix();
        let codes = codes::into_bytes::<B>(matrix.row_by_row::<B>(false), matrix.format);
        let scales = numbers_of::<B>(matrix.scales);
        let codes: Vec<i8> = codes.into_iter().map(u8::cast_signed).collect();
        quantized::data(codes, self.shape, self.scheme, &scales)
    }

    /// The numbers, f32.
    pub(crate) fn numbers(&self) -> FloatTensor<B> {
        let matrix = self.matrix();
        let numbers = match self.shape.num_elements() {
            0 => codes::values::<B>(matrix.row_by_row::<B>(false), matrix.format),
            _ => B::fp8_dequantize(matrix),
        };
        reshape::<B>(numbers, self.shape.clone())
    }
}

/// Rows and columns of a shape, where it is that of one matrix.
pub(crate) fn as_matrix(shape: &Shape) -> Option<[usize; 2]> {
    let last = shape.num_dims().checked_sub(1)?;
    let leading = &shape.as_slice()[..last.max(1) - 1];
    let rows = if last == 0 { 1 } else { shape[last - 1] };
    leading.iter().all(|size| *size == 1).then_some([rows, shape[last]])
}

/// A matrix with more or fewer leading dimensions of one.
pub(crate) fn shaped<B: Fp8Matmul>(matrix: MatrixOf<B>, shape: Shape) -> MatrixOf<B> {
    if matrix.shape().num_dims() == shape.num_dims() {
        return matrix;
    }
    let format = matrix.format;
    let codes = matrix.row_by_row::<B>(false);
    let scales = match matrix.scales {
        Scales::One(scale) => Scales::One(scale),
        Scales::Grid { scales, block, kind } => {
            let of = scales.shape();
            let mut sizes = vec![1; shape.num_dims()];
            let last = sizes.len() - 2;
            sizes[last..].copy_from_slice(&of.as_slice()[of.num_dims() - 2..]);
            Scales::Grid { scales: reshape::<B>(scales, Shape::from(sizes)), block, kind }
        }
    };
    Matrix::new(View::<B>::Reshape(shape).of_codes(codes, format), scales, format)
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

fn numbers_of<B: Fp8Matmul>(scales: Scales<FloatTensor<B>>) -> Vec<f32> {
    match scales {
        Scales::One(scale) => vec![scale.read::<B>()],
        Scales::Grid { scales, .. } => read::<B>(scales),
    }
}

/// As small as the device holds codes.
fn compact<B: Fp8Matmul>(matrix: MatrixOf<B>) -> MatrixOf<B> {
    let format = matrix.format;
    let codes = matrix.codes.map(|codes| codes::compact::<B>(codes, format));
    Matrix { codes, values: None, amax: None, ..matrix }
}

/// The scales of data, or one that is none. One of 0 is 1 here where all codes of its block are 0.
fn checked(
    codes: &[u8],
    mut scales: Vec<f32>,
    scheme: Scheme,
    matrix: &Shape,
) -> Result<Vec<f32>, f32> {
    if scales.contains(&0.0) {
        let last = matrix.num_dims() - 1;
        let [rows, columns] = [0, 1].map(|dim| scheme.block[dim].min(matrix[last - 1 + dim]));
        let width = matrix[last];
        let of = |at: usize| match scheme.block {
            WHOLE => 0,
            _ => at / width / rows * (width / columns) + at % width / columns,
        };
        let mut is_zero = vec![true; scales.len()];
        codes.iter().enumerate().for_each(|(at, code)| is_zero[of(at)] &= code & 0x7F == 0);
        for (scale, _) in
            scales.iter_mut().zip(is_zero).filter(|(scale, zero)| **scale == 0.0 && *zero)
        {
            *scale = 1.0;
        }
    }
    match scales.iter().find(|scale| !scale.is_finite() || **scale <= 0.0) {
        Some(scale) => Err(*scale),
        None => Ok(scales),
    }
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
