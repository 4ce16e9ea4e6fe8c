//! What a checkpoint hands out: quantized layers and plain tensors.

use std::path::PathBuf;

use burn_fp8_core::Fp8Format;

use crate::error::CheckpointError;
use crate::numbers::{first_nan, floats, is_float, is_power_of_two, is_scale};
use crate::safetensors::TensorInfo;

/// How activations are meant to be quantized, to E4M3, with what the checkpoint holds for it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Activations {
    /// Not at all: only weights are FP8.
    None,
    /// With this scale: `x ≈ code × scale`, so that activations are divided by it.
    Static(f32),
    /// With a scale for each row of activations, from its amax.
    PerToken,
    /// With one scale, from the amax of all of them.
    PerTensor,
    /// With a scale for each block along a row.
    Blocks {
        /// The elements of a block.
        size: usize,
        /// Whether scales are rounded up to powers of two.
        power_of_two: bool,
    },
    /// As MXFP8: blocks of 32 along a row, with E8M0 scales.
    Mx,
}

/// A linear layer with an E4M3 weight `[out, in]`: `y = x · weightᵀ + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedLinear {
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Scales,
    bias: Option<Vec<f32>>,
    activations: Activations,
}

impl QuantizedLinear {
    /// Takes a weight of this shape `[out, in]`: its codes row by row, its scales, and the bias, `[out]`.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where lengths do not fit the shape, scales are of another one, a code is NaN, or a static scale of activations is
    /// not positive and finite.
    pub fn new(
        shape: [usize; 2],
        codes: Vec<u8>,
        scales: Scales,
        bias: Option<Vec<f32>>,
        activations: Activations,
    ) -> Result<Self, CheckpointError> {
        let invalid =
            |found, expected: String| CheckpointError::invalid("a layer", found, expected);
        let [out, input] = shape;
        if out.checked_mul(input) != Some(codes.len()) || codes.is_empty() {
            let expected = format!("{out} × {input}, and some");
            return Err(invalid(format!("{} codes", codes.len()), expected));
        }
        if let Some(place) = first_nan(&codes) {
            let found = format!("the code 0x{:02X}, NaN, at {place}", codes[place]);
            return Err(invalid(found, "E4M3 codes of numbers".into()));
        }
        let (block, grid) = (scales.block(), scales.grid());
        if grid != [out.div_ceil(block[0]), input.div_ceil(block[1])] {
            let found = format!("{grid:?} scales of blocks {block:?}");
            return Err(invalid(found, format!("those of a weight {shape:?}")));
        }
        if let Some(bias) = bias.as_ref().filter(|bias| bias.len() != out) {
            return Err(invalid(format!("a bias of {}", bias.len()), format!("{out} numbers")));
        }
        match activations {
            Activations::Static(scale) if !is_scale(scale) => {
                let found = format!("the static scale {scale}");
                Err(invalid(found, "a positive, finite number".into()))
            }
            _ => Ok(Self::unchecked(shape, codes, scales, bias, activations)),
        }
    }

    /// A layer that was checked where it comes from.
    pub(crate) fn unchecked(
        shape: [usize; 2],
        codes: Vec<u8>,
        scales: Scales,
        bias: Option<Vec<f32>>,
        activations: Activations,
    ) -> Self {
        Self { shape, codes, scales, bias, activations }
    }

    /// `[out, in]`, as stored.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The weight as E4M3 codes, row by row.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The codes, without a copy.
    pub fn into_codes(self) -> Vec<u8> {
        self.codes
    }

    /// The scales of the weight.
    pub fn scales(&self) -> &Scales {
        &self.scales
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// How activations are meant to be quantized.
    pub fn activations(&self) -> Activations {
        self.activations
    }

    /// The weight as numbers, row by row: code × scale, in f32. A product beyond f32's range is infinite: E8M0 scales reach 2^127.
    pub fn dequantize(&self) -> Vec<f32> {
        let numbers: [f32; 256] = std::array::from_fn(|code| Fp8Format::E4M3.decode(code as u8));
        let (block, grid) = (self.scales.block(), self.scales.grid());
        let mut weight = Vec::with_capacity(self.codes.len());
        for (row, codes) in self.codes.chunks_exact(self.shape[1]).enumerate() {
            let scales = &self.scales.values()[row / block[0] * grid[1]..][..grid[1]];
            for (codes, scale) in codes.chunks(block[1]).zip(scales) {
                weight.extend(codes.iter().map(|code| numbers[usize::from(*code)] * scale));
            }
        }
        weight
    }
}

/// Scales of blocks of a matrix: `x ≈ code × scale`.
///
/// One form for all formats. Block `[r, c]` of the grid has the rows from `r × block[0]` on and the columns from `c × block[1]` on; the last blocks may
/// be smaller. One scale per tensor is a block of the whole matrix, one per channel a block of a row, MXFP8 blocks of `[1, 32]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    block: [usize; 2],
    grid: [usize; 2],
    values: Vec<f32>,
}

impl Scales {
    /// Takes the scales of a matrix of this shape, row by row of the grid: `shape / block`, rounded up.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where a size is zero, where there are more or fewer scales than blocks, or where one is not positive and finite.
    pub fn new(
        shape: [usize; 2],
        block: [usize; 2],
        values: Vec<f32>,
    ) -> Result<Self, CheckpointError> {
        let invalid = |found, expected: String| CheckpointError::invalid("scales", found, expected);
        if shape.contains(&0) || block.contains(&0) {
            let found = format!("a matrix {shape:?} in blocks {block:?}");
            return Err(invalid(found, "sizes that are not 0".into()));
        }
        let scales = Self::unchecked(shape, block, values);
        let [rows, columns] = scales.grid;
        if rows.checked_mul(columns) != Some(scales.values.len()) {
            let expected = format!("{rows} × {columns}, one for each block");
            return Err(invalid(format!("{} scales", scales.values.len()), expected));
        }
        match scales.values.iter().position(|scale| !is_scale(*scale)) {
            Some(place) => {
                let found = format!("{} at {:?}", scales.values[place], scales.at(place));
                Err(invalid(found, "a positive, finite number".into()))
            }
            None => Ok(scales),
        }
    }

    /// Scales that were checked where they come from.
    pub(crate) fn unchecked(shape: [usize; 2], block: [usize; 2], values: Vec<f32>) -> Self {
        let grid = [shape[0].div_ceil(block[0]), shape[1].div_ceil(block[1])];
        Self { block, grid, values }
    }

    /// Rows and columns of a block.
    pub fn block(&self) -> [usize; 2] {
        self.block
    }

    /// Rows and columns of blocks.
    pub fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// The scales, row by row of the grid.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Whether all of them are powers of two, as stored in E8M0, or rounded to them as with `scale_fmt: ue8m0`.
    pub fn are_powers_of_two(&self) -> bool {
        self.values.iter().all(|scale| is_power_of_two(*scale))
    }

    /// The place in the grid of a place in `values`.
    fn at(&self, place: usize) -> [usize; 2] {
        [place / self.grid[1], place % self.grid[1]]
    }
}

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct PlainTensor {
    info: TensorInfo,
    data: Vec<u8>,
    path: PathBuf,
}

impl PlainTensor {
    pub(crate) fn new(info: TensorInfo, data: Vec<u8>, path: PathBuf) -> Self {
        Self { info, data, path }
    }

    /// Its name, type and shape.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Its elements as they are stored, little-endian, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// The same, without a copy.
    pub fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// F32, BF16 or F16 as f32, exactly. Values are not judged: NaN stays NaN.
    ///
    /// # Errors
    /// [`CheckpointError::Tensor`] for other types.
    pub fn to_f32(&self) -> Result<Vec<f32>, CheckpointError> {
        let TensorInfo { name, dtype, .. } = &self.info;
        if is_float(*dtype) {
            return Ok(floats(*dtype, &self.data));
        }
        let advice = match dtype.is_fp8() {
            true => {
                "codes mean nothing without their scales: read the layer with `linear`, or take the bytes"
            }
            false => "take the bytes",
        };
        let (found, expected) = (dtype.name(), "F32, BF16 or F16");
        Err(CheckpointError::tensor(&self.path, name, found, expected, advice))
    }
}
