//! Burn 0.21's quantized tensors: the words of its schemes, how their data lies, and what it asks of them that other versions do not.

#[cfg(feature = "flex")]
use burn::tensor::Element;
use burn::tensor::{Tensor, TensorPrimitive, bf16, f16};
use burn_backend::ops::QTensorOps;
use burn_backend::quantization::{BlockSize, QuantLevel, QuantScheme, QuantStore, QuantValue};
use burn_backend::tensor::{Device, FloatTensor};
use burn_backend::{
    AutodiffBackend, BackendTypes, DType, FloatDType, QTensorPrimitive, Shape, TensorData,
    TensorMetadata,
};
use burn_fp8_core::Fp8Format;

pub use super::common::quantized::{Fp8QTensor, QCodes};
use super::common::quantized::{OnCodes, View, shaped, with_block};
use super::{Fp8Backend, Fp8Matmul};
use crate::Fp8Error;
#[cfg(feature = "flex")]
use crate::engine::tensor::read_as;
use crate::engine::{Matrix, Scales};
#[cfg(feature = "flex")]
use crate::host;
use crate::product::{Known, route};
use crate::tensor::Fp8Tensor;

pub(crate) use burn_backend::quantization::QuantParam as ScaleType;

/// Whether Burn computes the scales of blocks that have several rows. Here it takes elements that lie next to each other.
pub(crate) const BLOCKS_HAVE_ROWS: bool = false;

/// Whether the backend inside computes with FP8 as its schemes say: those of which this crate holds no tensors go there.
pub(crate) const INSIDE_IS_RIGHT: bool = false;

/// Whether `quantize_dynamic` comes here, which takes the largest finite magnitude.
pub(crate) const MEASURES_HERE: bool = true;

/// The elements that share a scale; without, all do.
pub(crate) fn block(scheme: &QuantScheme) -> Option<BlockSize> {
    match scheme.level {
        QuantLevel::Tensor => None,
        // Leading ones count for nothing.
        QuantLevel::Block(size) => Some(BlockSize::new_trim(size.as_slice())),
    }
}

/// The scheme with blocks of this size.
pub(crate) fn by_blocks(scheme: QuantScheme, size: BlockSize) -> QuantScheme {
    scheme.with_level(QuantLevel::Block(size))
}

/// The scheme of a tensor that is held here: codes lie one byte each, whatever was asked for.
pub(crate) fn stored(scheme: QuantScheme) -> QuantScheme {
    scheme.with_store(QuantStore::Native)
}

/// The same with its dimensions in another order, but for its blocks.
pub(crate) fn permuted(scheme: QuantScheme, _axes: &[usize]) -> QuantScheme {
    scheme
}

/// The same with so many dimensions.
pub(crate) fn reshaped(scheme: QuantScheme, _rank: usize) -> QuantScheme {
    scheme
}

/// What scales are held in, where there is one level of them.
pub(crate) fn scale_type(scheme: &QuantScheme) -> Option<ScaleType> {
    Some(scheme.param)
}

/// A scale in a type of two bytes.
pub(crate) fn narrowed(scale: f32, of: ScaleType) -> f32 {
    match of {
        ScaleType::F16 => f16::from_f32(scale).clamp(f16::from_bits(1), f16::MAX).to_f32(),
        ScaleType::BF16 => bf16::from_f32(scale).min(bf16::MAX).to_f32(),
        _ => scale,
    }
}

/// The scheme of data, if it is quantized.
pub(crate) fn scheme(data: &TensorData) -> Option<QuantScheme> {
    match data.dtype {
        DType::QFloat(scheme) => Some(scheme),
        _ => None,
    }
}

pub(crate) fn sizes(data: &TensorData) -> &[usize] {
    &data.shape
}

/// Codes row by row, and this many scales: these are in f32, at the end, whatever the scheme says, after up to three bytes of nothing.
pub(crate) fn parts(data: TensorData, _named: &QuantScheme, scales: usize) -> (Vec<u8>, Vec<f32>) {
    let (bytes, elements) = (&*data.bytes, data.shape.num_elements());
    let expected = [elements, elements.next_multiple_of(4)].map(|codes| codes + 4 * scales);
    assert!(
        (expected[0]..=expected[1]).contains(&bytes.len()),
        "quantized data {:?} has {elements} codes and {scales} scales of 4 bytes, so {} bytes, not {}",
        data.shape.as_slice(),
        expected[0],
        bytes.len()
    );
    let scales = bytes[bytes.len() - 4 * scales..].as_chunks::<4>().0;
    let scales = scales.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (bytes[..elements].to_vec(), scales)
}

/// The inverse.
pub(crate) fn data(
    codes: Vec<i8>,
    shape: Shape,
    scheme: QuantScheme,
    scales: &[f32],
) -> TensorData {
    TensorData::quantized(codes, shape, scheme, scales)
}

impl<B: BackendTypes> TensorMetadata for Fp8QTensor<B> {
    fn dtype(&self) -> DType {
        match self {
            Self::Fp8(codes) => DType::QFloat(codes.scheme),
            Self::Other(tensor) => tensor.dtype(),
        }
    }

    fn shape(&self) -> Shape {
        match self {
            Self::Fp8(codes) => codes.shape.clone(),
            Self::Other(tensor) => tensor.shape(),
        }
    }
}

impl<B: BackendTypes> QTensorPrimitive for Fp8QTensor<B> {
    fn scheme(&self) -> &QuantScheme {
        match self {
            Self::Fp8(codes) => &codes.scheme,
            Self::Other(tensor) => tensor.scheme(),
        }
    }

    fn default_scheme() -> QuantScheme {
        B::QuantizedTensorPrimitive::default_scheme()
    }
}

/// Burn's `linear` dequantizes a quantized weight before it multiplies: a product that comes next takes the codes instead, where the numbers are still what they stand for.
pub(crate) fn dequantize<B: Fp8Matmul>(tensor: Fp8QTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    let shape = tensor.shape();
    let (tensor, codes) = numbers::<B>(tensor, dtype);
    route::note_dequantized(shape, B::fp8_memory(&tensor), codes);
    tensor
}

/// In the host's memory a weight is decoded when it is read first, which a product of its codes never does.
fn numbers<B: Fp8Matmul>(
    tensor: Fp8QTensor<B>,
    dtype: FloatDType,
) -> (FloatTensor<B>, Option<Known<B>>) {
    #[cfg(feature = "flex")]
    if let Fp8QTensor::Fp8(codes) = &tensor
        && B::FP8_ON_HOST
        && codes.shape.num_dims() == 2
        && codes.shape.num_elements() > 0
    {
        let later = match dtype {
            FloatDType::F32 => Some(later::<B, f32>(codes, dtype)),
            FloatDType::BF16 => Some(later::<B, bf16>(codes, dtype)),
            FloatDType::F16 => Some(later::<B, f16>(codes, dtype)),
            _ => None,
        };
        if let Some((data, known)) = later {
            return (B::float_from_data(data, &codes.device), Some(known));
        }
    }
    (OnCodes::<B>::dequantize(tensor, dtype), None)
}

#[cfg(feature = "flex")]
fn later<B: Fp8Matmul, E: Element + host::Pod>(
    codes: &QCodes<B>,
    dtype: FloatDType,
) -> (TensorData, Known<B>) {
    let is_written = std::sync::Arc::default();
    let known = codes.held.known(std::sync::Arc::clone(&is_written));
    // It holds the codes: a product finds them as long as it is there.
    let (shape, held) = (codes.shape.clone(), codes.held.clone());
    let decode = move || read_as::<B, E>(B::float_cast(B::fp8_dequantize(held.get()), dtype));
    (host::decoded_when_read(shape, is_written, decode), known)
}

pub(crate) fn q_device<B: Fp8Matmul>(tensor: &Fp8QTensor<B>) -> Device<B> {
    match tensor {
        Fp8QTensor::Fp8(codes) => codes.device.clone(),
        Fp8QTensor::Other(tensor) => B::q_device(tensor),
    }
}

pub(crate) fn q_inner<B: AutodiffBackend + Fp8Matmul>(
    tensor: Fp8QTensor<B>,
) -> Fp8QTensor<B::InnerBackend>
where
    B::InnerBackend: Fp8Matmul,
{
    match tensor {
        Fp8QTensor::Fp8(QCodes { shape, scheme, held, .. }) => {
            let matrix = held.get().map(&mut (), |_, x| B::inner(x), |_, x| B::int_inner(x));
            Fp8QTensor::Fp8(QCodes::new(shape, scheme, matrix))
        }
        Fp8QTensor::Other(tensor) => Fp8QTensor::Other(B::q_inner(tensor)),
    }
}

pub(crate) fn q_from_inner<B: AutodiffBackend + Fp8Matmul>(
    tensor: Fp8QTensor<B::InnerBackend>,
) -> Fp8QTensor<B>
where
    B::InnerBackend: Fp8Matmul,
{
    match tensor {
        Fp8QTensor::Fp8(QCodes { shape, scheme, held, .. }) => {
            let from = |_: &mut (), x| B::from_inner(x);
            let matrix = held.get().map(&mut (), from, |_, x| B::int_from_inner(x));
            Fp8QTensor::Fp8(QCodes::new(shape, scheme, matrix))
        }
        Fp8QTensor::Other(tensor) => Fp8QTensor::Other(B::q_from_inner(tensor)),
    }
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
        Some(block) if fits(block, &shape) => with_block(named, D, block),
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
        let view = View::<B>::Reshape(codes.shape);
        let held = view.of_codes(matrix.row_by_row::<B>(false), matrix.format);
        matrix = Matrix::new(held, matrix.scales, matrix.format);
    } else {
        matrix = shaped::<B>(matrix, codes.shape);
    }
    Ok(Fp8Tensor::new(matrix))
}
