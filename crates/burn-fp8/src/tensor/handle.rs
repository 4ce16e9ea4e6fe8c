//! Tensors in FP8: codes with their scale.

use core::fmt;

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorPrimitive};
use burn_fp8_core::Fp8Format;

use crate::Fp8Error;
use crate::backend::{Fp8Backend, Fp8Matmul, from_matrix, into_matrix};
use crate::engine::portable::codes;
use crate::engine::portable::grid::Grid;
use crate::engine::tensor::read;
use crate::engine::{Fp8Engine, Matrix, MatrixOf, Scalar, ScalarOf, ScaleKind, Scales, WHOLE};
use crate::host::{constant, primitive};

/// A tensor in FP8: codes, one scale for all of them or one for each block, and the format. `x ≈ code × scale`.
///
/// It is what PyTorch's `scaled_mm` takes as a `float8_e4m3fn` or `float8_e5m2` tensor and its scales.
/// [`scaled_matmul`](crate::scaled_matmul) multiplies two of them and can write a third one.
///
/// | made by                                        | scales                                             | PyTorch's `ScalingType`                           |
/// |------------------------------------------------|----------------------------------------------------|---------------------------------------------------|
/// | [`quantize`](Self::quantize)                   | one, `amax / max`                                  | `TensorWise`                                      |
/// | [`quantize_with`](Self::quantize_with)         | one, given                                         | `TensorWise`                                      |
/// | [`quantize_rows`](Self::quantize_rows)         | one for each row                                   | `RowWise`                                         |
/// | [`quantize_blocks`](Self::quantize_blocks)     | one for each block: 1×32 (MXFP8), 1×128, 128×128   | `BlockWise1x32`, `BlockWise1x128`, `BlockWise128x128` |
///
/// The scale lies on the host or on the device; one on the device is never read back unless asked for with
/// [`read_scale`](Self::read_scale), a save or a [`trace`](crate::trace). In a graph of Autodiff the tensor is a constant:
/// gradients end where it is quantized.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8::{Fp8Format, Fp8Tensor};
///
/// let device = Default::default();
/// let x = Tensor::<Flex, 2>::random([16, 32], Distribution::Default, &device);
///
/// let q = Fp8Tensor::quantize(x.clone(), Fp8Format::E4M3);
/// assert_eq!((q.dims(), q.to_bytes().len()), ([16, 32], 16 * 32));
/// let error = (q.dequantize() - x.clone()).abs().max().into_scalar();
/// assert!(error <= 448.0 / 28.0 * q.read_scale(), "half the distance of neighbours at the largest number");
///
/// // A scale known before the tensor is read; and the same numbers from their bytes.
/// let q = Fp8Tensor::quantize_with(x, Fp8Format::E5M2, 0.5)?;
/// let copy = Fp8Tensor::<Flex, 2>::from_bytes(q.to_bytes(), [16, 32], Fp8Format::E5M2, 0.5, &device)?;
/// assert_eq!(copy.to_bytes(), q.to_bytes());
/// assert_eq!(copy.transpose().dims(), [32, 16]);
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fp8Tensor<B: Backend, const D: usize> {
    /// Its codes are there in one form: row by row, or, with two dimensions, column by column.
    pub(super) matrix: MatrixOf<B>,
}

impl<B: Fp8Engine, const D: usize> Fp8Tensor<B, D> {
    /// The numbers that codes and scale stand for, in f32.
    pub fn dequantize(&self) -> Tensor<B, D> {
        let matrix = match self.shape().num_elements() {
            // There are no blocks.
            0 => Matrix { scales: Scales::One(Scalar::Host(1.0)), ..self.matrix.clone() },
            _ => self.matrix.clone(),
        };
        Tensor::from_primitive(TensorPrimitive::Float(B::fp8_dequantize(matrix)))
    }

    /// [`dequantize`](Self::dequantize), then rounded to another type.
    pub fn dequantize_to(&self, dtype: FloatDType) -> Tensor<B, D> {
        self.dequantize().cast(dtype)
    }

    /// The numbers that the codes stand for, without their scales, in f32; NaN codes give NaN. A constant of the graph.
    pub fn values(&self) -> Tensor<B, D> {
        let matrix = Matrix { scales: Scales::One(Scalar::Host(1.0)), ..self.matrix.clone() };
        Tensor::from_primitive(TensorPrimitive::Float(B::fp8_dequantize(matrix)))
    }
}

impl<B: Backend, const D: usize> Fp8Tensor<B, D> {
    pub(crate) fn new(matrix: MatrixOf<B>) -> Self {
        Self { matrix: Matrix { amax: None, ..matrix } }
    }

    pub(crate) fn matrix(&self) -> &MatrixOf<B> {
        &self.matrix
    }

    pub(crate) fn into_matrix(self) -> MatrixOf<B> {
        self.matrix
    }

    /// Codes given row by row, one byte each, and their scale, an `f32` or a tensor `[1]`, which goes to the device.
    ///
    /// The codes take one byte an element: as a tensor of u8 where the device has that type, else as i32 with four codes each. A device with neither holds
    /// the numbers in f32.
    ///
    /// With the feature `float8`, `burn_fp8_core::float8::into_codes` makes bytes of a `Vec` of the crate `float8`'s numbers, and `from_codes` makes numbers
    /// of what [`to_bytes`](Self::to_bytes) gives, without a copy.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where there are more or fewer bytes than the shape has elements, where the scale is not a finite number of at least 2^-126, or
    /// not of shape `[1]`. The value of a scale on the device is not looked at.
    pub fn from_bytes(
        bytes: Vec<u8>,
        shape: [usize; D],
        format: Fp8Format,
        scale: impl Into<ScalarOf<B>>,
        device: &B::Device,
    ) -> Result<Self, Fp8Error> {
        let codes = checked::<B, D>(bytes, shape, format, device)?;
        let scale = scale.into();
        scale.check_scale("the scale").map_err(invalid)?;
        let scale = scale.map(|scale| B::float_to_device(scale, device));
        Ok(Self::new(Matrix::new(codes, Scales::One(scale), format)))
    }

    /// Codes given row by row, one byte each, and the scales of blocks of so many rows and columns, f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]`, which go to the
    /// device.
    ///
    /// Scales of MXFP8 are powers of two from 2^-127 to 2^127: byte `b` of E8M0 is `2^(b − 127)`.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where there are more or fewer bytes than the shape has elements, the scales have another shape or type, the codes one dimension,
    /// or a block no elements. The values of scales are not looked at.
    pub fn from_blocks(
        bytes: Vec<u8>,
        shape: [usize; D],
        format: Fp8Format,
        scales: Tensor<B, D>,
        block: [usize; 2],
        device: &B::Device,
    ) -> Result<Self, Fp8Error> {
        let codes = checked::<B, D>(bytes, shape, format, device)?;
        check_block(shape, block).map_err(invalid)?;
        let grid = grid(shape, block);
        if scales.dims() != grid || scales.dtype() != DType::F32 {
            return Err(invalid(format!(
                "the scales are {:?} {:?}; codes {shape:?} in blocks {} have F32 {grid:?}",
                scales.dtype(),
                scales.dims(),
                Shown(block),
            )));
        }
        let scales = primitive(constant(scales.to_device(device)));
        let scales = Scales::Grid { scales, block, kind: ScaleKind::F32 };
        Ok(Self::new(Matrix::new(codes, scales, format)))
    }

    /// The same codes with another scale for all of them, an `f32` or a tensor `[1]`, which goes to their device.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] as for [`from_bytes`](Self::from_bytes).
    pub fn with_scale(self, scale: impl Into<ScalarOf<B>>) -> Result<Self, Fp8Error> {
        let (scale, device) = (scale.into(), self.device());
        scale.check_scale("the scale").map_err(invalid)?;
        let scale = scale.map(|scale| B::float_to_device(scale, &device));
        Ok(Self { matrix: Matrix { scales: Scales::One(scale), ..self.matrix } })
    }

    /// The codes row by row, one byte each. Waits for the device.
    ///
    /// A NaN that the backend holds as a number has the code that [`Fp8Format::encode`] gives it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let format = self.format();
        let Some(codes) = &self.matrix.codes else {
            let codes = self.matrix.transposed.clone().expect("codes in one form");
            let bytes = codes::into_bytes::<B>(codes, format);
            let [rows, columns] = self.shape().dims();
            let row = |row| (0..columns).map(move |column| column * rows + row);
            return (0..rows).flat_map(row).map(|at| bytes[at]).collect();
        };
        codes::into_bytes::<B>(codes.clone(), format)
    }

    /// Codes row by row and all scales, without a copy where they lie so in the host's memory and nothing else holds them.
    pub fn into_parts(self) -> (Vec<u8>, Vec<f32>) {
        let scales = read::<B>(primitive(self.scales()));
        let format = self.format();
        match self.matrix.codes {
            Some(codes) => (codes::into_bytes::<B>(codes, format), scales),
            None => (self.to_bytes(), scales),
        }
    }

    /// The format.
    pub fn format(&self) -> Fp8Format {
        self.matrix.format
    }

    /// The size of each dimension.
    pub fn dims(&self) -> [usize; D] {
        self.shape().dims()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.matrix.shape()
    }

    /// The device that holds the codes.
    pub fn device(&self) -> B::Device {
        self.matrix.device::<B>()
    }

    /// The scale, on the device: f32, shape `[1]`.
    ///
    /// # Panics
    /// Where the tensor has scales of [blocks](Self::block).
    #[track_caller]
    pub fn scale(&self) -> Tensor<B, 1> {
        let scale = self.matrix.scale().on_device::<B>(&self.device());
        Tensor::from_primitive(TensorPrimitive::Float(scale))
    }

    /// The scale as a number. Waits for the device where it lies there.
    ///
    /// # Panics
    /// Where the tensor has scales of [blocks](Self::block).
    #[track_caller]
    pub fn read_scale(&self) -> f32 {
        self.matrix.scale().clone().read::<B>()
    }

    /// The rows and columns of a block, where there is a scale for each; those of a row reach to its end.
    pub fn block(&self) -> Option<[usize; 2]> {
        let block = self.matrix.scales.block();
        let shape = self.shape();
        let rank = shape.num_dims();
        (block != WHOLE).then(|| {
            let size = |dim: usize| match block[dim] {
                usize::MAX => shape[rank - 2 + dim].max(1),
                size => size,
            };
            [size(0), size(1)]
        })
    }

    /// All scales, on the device: f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]` for blocks, one element where there is one for all.
    pub fn scales(&self) -> Tensor<B, D> {
        match &self.matrix.scales {
            Scales::One(_) => self.scale().reshape([1; D]),
            Scales::Grid { scales, .. } => {
                Tensor::from_primitive(TensorPrimitive::Float(scales.clone()))
            }
        }
    }

    /// Whether the codes lie column by column: whether this is the [`transpose`](Fp8Tensor::transpose) of a tensor whose codes lie row by row.
    pub fn is_transposed(&self) -> bool {
        self.matrix.codes.is_none()
    }

    /// The bytes that the codes take on the device.
    pub fn bytes_held(&self) -> usize {
        let codes = self.matrix.codes.as_ref().or(self.matrix.transposed.as_ref());
        codes.expect("codes in one form").bytes_held()
    }

    /// The same tensor on another device.
    pub fn to_device(self, device: &B::Device) -> Self {
        Self { matrix: self.matrix.moved_to::<B>(device) }
    }
}

impl<B: Backend> Fp8Tensor<B, 2> {
    /// The transpose. No code moves: the tensor notes that its codes lie column by column.
    ///
    /// [`scaled_matmul`](crate::scaled_matmul) wants its right operand so: `[K, N]` as the transpose of codes `[N, K]` row by row.
    pub fn transpose(&self) -> Self {
        Self { matrix: self.matrix.clone().transpose::<B>() }
    }

    /// The same tensor with its codes row by row, or column by column. They have been moved, and need not be again.
    pub(crate) fn laid_out(&self, of_transpose: bool) -> Self {
        Self { matrix: self.matrix.laid_out::<B>(of_transpose) }
    }

    /// The same tensor, and whether all of its scales are powers of two is known: they are read.
    pub(crate) fn with_kind_of_scales(self) -> Self {
        let Scales::Grid { scales, block, .. } = self.matrix.scales else { return self };
        let kind = ScaleKind::of_scales(&read::<B>(scales.clone()));
        let scales = Scales::Grid { scales, block, kind };
        Self { matrix: Matrix { scales, ..self.matrix } }
    }
}

impl<B: Fp8Matmul, const D: usize> Fp8Tensor<Fp8Backend<B>, D> {
    /// The same numbers as one of Burn's quantized tensors, whose scheme says E4M3 or E5M2, one scale or blocks. No code moves.
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn::tensor::{Distribution, Tensor};
    /// use burn_fp8::{Fp8Backend, Fp8Format, Fp8Tensor};
    ///
    /// type B = Fp8Backend<Flex>;
    /// let device = Default::default();
    /// let weight = Tensor::<B, 2>::random([64, 32], Distribution::Default, &device);
    /// let codes = Fp8Tensor::quantize(weight, Fp8Format::E4M3);
    ///
    /// let quantized = codes.clone().into_quantized()?; // a tensor as any other
    /// let y = Tensor::<B, 2>::ones([1, 64], &device).matmul(quantized.clone());
    /// assert_eq!(y.dims(), [1, 32]);
    /// assert_eq!(Fp8Tensor::from_quantized(quantized)?.to_bytes(), codes.to_bytes());
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where Burn's scheme has no words for its blocks, which are of at most 255 rows and columns there, and divide the tensor.
    pub fn into_quantized(self) -> Result<Tensor<Fp8Backend<B>, D>, Fp8Error> {
        from_matrix(self)
    }

    /// The inverse. No code moves.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the tensor is not quantized, its scheme is of another type than E4M3 and E5M2, or it has one dimension in blocks.
    pub fn from_quantized(tensor: Tensor<Fp8Backend<B>, D>) -> Result<Self, Fp8Error> {
        into_matrix(tensor).map_err(invalid)
    }
}

impl<B: AutodiffBackend, const D: usize> Fp8Tensor<B, D> {
    /// The same tensor without autodiff.
    pub fn inner(self) -> Fp8Tensor<B::InnerBackend, D> {
        let matrix = self.matrix.map(&mut (), |_, x| B::inner(x), |_, x| B::int_inner(x));
        Fp8Tensor { matrix }
    }

    /// A tensor of the inner backend on this one.
    pub fn from_inner(tensor: Fp8Tensor<B::InnerBackend, D>) -> Self {
        let from = |_: &mut (), x| B::from_inner(x);
        Self { matrix: tensor.matrix.map(&mut (), from, |_, x| B::int_from_inner(x)) }
    }
}

/// Codes as small as the device can hold them.
fn checked<B: Backend, const D: usize>(
    bytes: Vec<u8>,
    shape: [usize; D],
    format: Fp8Format,
    device: &B::Device,
) -> Result<crate::engine::Codes<B::FloatTensorPrimitive, B::IntTensorPrimitive>, Fp8Error> {
    let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    // Where one size is 0, the others must still have strides.
    let strides = shape
        .iter()
        .try_fold(1isize, |product, size| product.checked_mul(isize::try_from(*size).ok()?.max(1)));
    if elements != Some(bytes.len()) || strides.is_none() {
        return Err(invalid(format!("{} bytes do not fill the shape {shape:?}", bytes.len())));
    }
    Ok(codes::from_bytes::<B>(bytes, Shape::from(shape.to_vec()), format, device))
}

/// Why a tensor cannot have such blocks.
pub(super) fn check_block<const D: usize>(
    dims: [usize; D],
    block: [usize; 2],
) -> Result<(), String> {
    if D < 2 {
        return Err(format!("{dims:?} are no rows and columns, which blocks are made of"));
    }
    if block.contains(&0) {
        return Err(format!("blocks {} have no elements", Shown(block)));
    }
    Ok(())
}

/// The dimensions of the scales of a tensor.
pub(super) fn grid<const D: usize>(dims: [usize; D], block: [usize; 2]) -> [usize; D] {
    let shape = Shape::from(dims.to_vec());
    Grid::new(&shape, block).of_scales(&shape).dims()
}

/// A block in words: `1×32`.
pub(super) struct Shown(pub(super) [usize; 2]);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, columns] = self.0;
        write!(f, "{rows}×{columns}")
    }
}

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "FP8 tensor", reason }
}
