//! Tensors in FP8: codes with their scale.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Shape, Tensor, TensorPrimitive};
use burn_fp8_core::Fp8Format;

use super::codes::Fp8Codes;
use super::scales::{BlockScales, Scales, Shown};
use crate::engine::{BlockCodes, CodesPrimitive, Fp8Engine, Scalar, portable};
use crate::error::Fp8Error;

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
    /// Row by row, of the tensor or, where it is transposed, of its transpose.
    codes: Fp8Codes<B, D>,
    /// As the codes lie.
    scales: Scales<B>,
    /// Only with two dimensions.
    transposed: bool,
}

impl<B: Fp8Engine, const D: usize> Fp8Tensor<B, D> {
    /// The numbers that codes and scale stand for, in f32.
    pub fn dequantize(&self) -> Tensor<B, D> {
        let values = match self.codes.shape().num_elements() {
            0 => self.codes.values(),
            _ => {
                let (codes, format) = (self.codes.codes().clone(), self.format());
                let values = match self.scales.clone() {
                    Scales::One(scale) => {
                        B::fp8_rescale(B::fp8_values(codes), &scale, &Scalar::Host(1.0))
                    }
                    Scales::Blocks(BlockScales { scales, block }) => {
                        B::fp8_dequantize_blocks(BlockCodes { codes, scales, block, format })
                    }
                };
                Tensor::from_primitive(TensorPrimitive::Float(values))
            }
        };
        match self.transposed {
            true => values.transpose(),
            false => values,
        }
    }

    /// [`dequantize`](Self::dequantize), then rounded to another type.
    pub fn dequantize_to(&self, dtype: FloatDType) -> Tensor<B, D> {
        self.dequantize().cast(dtype)
    }
}

impl<B: Backend, const D: usize> Fp8Tensor<B, D> {
    pub(crate) fn new(codes: Fp8Codes<B, D>, scale: Scalar<B>) -> Self {
        Self { codes, scales: Scales::One(scale), transposed: false }
    }

    pub(super) fn of_blocks(codes: Fp8Codes<B, D>, scales: BlockScales<B>) -> Self {
        Self { codes, scales: Scales::Blocks(scales), transposed: false }
    }

    /// Codes, row by row, and the scales of blocks of so many rows and columns, f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]`.
    ///
    /// Scales of MXFP8 are powers of two from 2^-127 to 2^127: byte `b` of E8M0 is `2^(b − 127)`.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the scales have another shape or type, the codes one dimension, or a block no elements. The values of scales are
    /// not looked at.
    pub fn from_blocks(
        codes: Fp8Codes<B, D>,
        scales: Tensor<B, D>,
        block: [usize; 2],
    ) -> Result<Self, Fp8Error> {
        let scales = scales.to_device(&codes.device());
        let scales = BlockScales::new(scales, codes.dims(), block).map_err(invalid)?;
        Ok(Self::of_blocks(codes, scales))
    }

    /// Codes, row by row, and their scale, an `f32` or a tensor `[1]`, which goes to the device of the codes.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the scale is not a finite number of at least 2^-126, or not of shape `[1]`. The value of a scale on the device is not
    /// looked at.
    pub fn from_parts(
        codes: Fp8Codes<B, D>,
        scale: impl Into<Scalar<B>>,
    ) -> Result<Self, Fp8Error> {
        let scale = scale.into().moved_to(&codes.device());
        scale.check_scale("the scale").map_err(invalid)?;
        Ok(Self::new(codes, scale))
    }

    /// Codes given row by row, one byte each, and their scale.
    ///
    /// # Errors
    /// As [`Fp8Codes::from_bytes`] and [`from_parts`](Self::from_parts).
    pub fn from_bytes(
        bytes: Vec<u8>,
        shape: [usize; D],
        format: Fp8Format,
        scale: impl Into<Scalar<B>>,
        device: &B::Device,
    ) -> Result<Self, Fp8Error> {
        Self::from_parts(Fp8Codes::from_bytes(bytes, shape, format, device)?, scale)
    }

    /// The codes row by row, one byte each. Waits for the device.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = self.codes.to_bytes();
        match (self.transposed, self.dims().as_slice()) {
            (true, &[rows, columns]) if columns > 0 => (0..rows)
                .flat_map(|row| bytes[row..].iter().step_by(rows).take(columns).copied())
                .collect(),
            _ => bytes,
        }
    }

    /// The format.
    pub fn format(&self) -> Fp8Format {
        self.codes.format()
    }

    /// The size of each dimension.
    pub fn dims(&self) -> [usize; D] {
        let mut dims = self.codes.dims();
        if self.transposed {
            dims.reverse();
        }
        dims
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        Shape::from(self.dims().to_vec())
    }

    /// The device that holds the codes.
    pub fn device(&self) -> B::Device {
        self.codes.device()
    }

    /// The scale, on the device: f32, shape `[1]`.
    ///
    /// # Panics
    /// Where the tensor has scales of [blocks](Self::block).
    #[track_caller]
    pub fn scale(&self) -> Tensor<B, 1> {
        self.only_scale().to_tensor(&self.device())
    }

    /// The scale as a number. Waits for the device where it lies there.
    ///
    /// # Panics
    /// Where the tensor has scales of [blocks](Self::block).
    #[track_caller]
    pub fn read_scale(&self) -> f32 {
        self.only_scale().clone().read()
    }

    #[track_caller]
    fn only_scale(&self) -> &Scalar<B> {
        match &self.scales {
            Scales::One(scale) => scale,
            Scales::Blocks(BlockScales { block, .. }) => {
                panic!("the tensor has a scale for each block {}: use scales()", Shown(*block))
            }
        }
    }

    /// The rows and columns of a block, where there is a scale for each.
    pub fn block(&self) -> Option<[usize; 2]> {
        match &self.scales {
            Scales::One(_) => None,
            Scales::Blocks(BlockScales { block: [rows, columns], .. }) => {
                Some(if self.transposed { [*columns, *rows] } else { [*rows, *columns] })
            }
        }
    }

    /// All scales, on the device: f32, `[…, ⌈R / rows⌉, ⌈C / columns⌉]` for blocks, one element where there is one for all.
    pub fn scales(&self) -> Tensor<B, D> {
        match &self.scales {
            Scales::One(scale) => scale.to_tensor(&self.device()).reshape([1; D]),
            Scales::Blocks(scales) if self.transposed => scales.clone().transpose().tensor(),
            Scales::Blocks(scales) => scales.tensor(),
        }
    }

    /// The codes as they lie: row by row, those of the transpose where the tensor [is transposed](Self::is_transposed).
    pub fn codes(&self) -> &Fp8Codes<B, D> {
        &self.codes
    }

    /// Whether the codes lie column by column: whether this is the [`transpose`](Fp8Tensor::transpose) of a tensor whose codes lie row by row.
    pub fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// The bytes that the codes take on the device.
    pub fn bytes_held(&self) -> usize {
        self.codes.bytes_held()
    }

    /// The same tensor on another device.
    pub fn to_device(self, device: &B::Device) -> Self {
        let Self { codes, scales, transposed } = self;
        Self { codes: codes.to_device(device), scales: scales.moved_to(device), transposed }
    }

    /// The scales as the codes lie.
    pub(super) fn as_they_lie(&self) -> &Scales<B> {
        &self.scales
    }
}

impl<B: Backend> Fp8Tensor<B, 2> {
    /// The transpose. No code moves: the tensor notes that its codes lie column by column.
    ///
    /// [`scaled_matmul`](crate::scaled_matmul) wants its right operand so: `[K, N]` as the transpose of codes `[N, K]` row by row.
    pub fn transpose(&self) -> Self {
        Self { transposed: !self.transposed, ..self.clone() }
    }

    /// The same tensor with its codes row by row, or column by column. They have been moved, and need not be again.
    pub(crate) fn laid_out(&self, of_transpose: bool) -> Self {
        let codes = self.row_major(of_transpose).contiguous();
        let codes = Fp8Codes::new(codes, self.format());
        let scales = match self.scales.clone() {
            Scales::Blocks(scales) if self.transposed != of_transpose => {
                Scales::Blocks(scales.transpose())
            }
            scales => scales,
        };
        Self { codes, scales, transposed: of_transpose }
    }

    /// The codes row by row of the tensor, or of its transpose; moved where they lie the other way.
    pub(crate) fn row_major(&self, of_transpose: bool) -> CodesPrimitive<B> {
        let codes = self.codes.codes().clone();
        match self.transposed == of_transpose {
            true => codes,
            false => portable::transpose::<B>(codes),
        }
    }
}

impl<B: AutodiffBackend, const D: usize> Fp8Tensor<B, D> {
    /// The same tensor without autodiff.
    pub fn inner(self) -> Fp8Tensor<B::InnerBackend, D> {
        let Self { codes, scales, transposed } = self;
        Fp8Tensor { codes: codes.inner(), scales: scales.inner(), transposed }
    }

    /// A tensor of the inner backend on this one.
    pub fn from_inner(tensor: Fp8Tensor<B::InnerBackend, D>) -> Self {
        let Fp8Tensor { codes, scales, transposed } = tensor;
        Self { codes: Fp8Codes::from_inner(codes), scales: Scales::from_inner(scales), transposed }
    }
}

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "FP8 tensor", reason }
}
