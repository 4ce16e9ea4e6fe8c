//! What quantization does to one tensor.

use burn_fp8_core::{Block, Fp8Format, Operand, Overflow, Recipe, scale};
use burn_fp8_cpu::slice;
use burn_fp8_cpu::slice::blocks::{self, Blocks};
use serde::{Deserialize, Serialize};

use super::{Lines, MatrixSample};
use crate::{Histogram, Sqnr};

/// The largest number of elements: up to it f64 holds every count.
const MAX_ELEMENTS: u64 = 1 << 53;

/// An operand of a product, sampled in high precision.
#[derive(Clone, Debug)]
pub struct OperandSample {
    /// The sampled elements.
    pub matrix: MatrixSample,
    /// The number of elements of the whole tensor.
    pub elements: u64,
    /// The format it is quantized to.
    pub format: Fp8Format,
    /// The scale it was quantized with; `None` where each row, column or block has its own.
    pub scale: Option<f32>,
    /// The largest finite magnitude of the whole tensor.
    pub amax: f32,
}

/// What quantization does to a tensor. Counts are of the sampled elements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperandStats {
    /// The format.
    pub format: Fp8Format,
    /// The largest finite magnitude of the whole tensor.
    pub amax: f32,
    /// The scale, `x ≈ code × scale`; the largest one where there are several.
    pub scale: f32,
    /// Whether there are several: one for each row, column or block.
    pub per_row: bool,
    /// The number of elements of the whole tensor.
    pub elements: u64,
    /// How many were sampled.
    pub sampled: u64,
    /// Zeros.
    pub zeros: u64,
    /// Elements that are not zero, with a code that is: at most half the smallest subnormal times the scale.
    pub flushed: u64,
    /// Finite elements beyond the largest number of the format times the scale, by more than the rounding of the scale.
    pub saturated: u64,
    /// Infinite and NaN elements.
    pub non_finite: u64,
    /// Over the finite elements.
    pub sqnr: Sqnr,
    /// The exponents of the elements, before quantization.
    pub histogram: Histogram,
}

impl OperandSample {
    /// Measures the sample, which is of this operand. `lines` lie along the dimension that a product sums over: where there is no common
    /// scale, each of them has one, or each of its blocks.
    pub fn stats(&self, operand: Operand, lines: Lines, recipe: Recipe) -> OperandStats {
        let values = self.matrix.values();
        let mut stats = OperandStats {
            format: self.format,
            amax: self.amax,
            scale: 0.0,
            per_row: self.scale.is_none(),
            elements: self.elements,
            sampled: values.len() as u64,
            zeros: 0,
            flushed: 0,
            saturated: 0,
            non_finite: 0,
            sqnr: Sqnr::default(),
            histogram: Histogram::of(values),
        };
        match self.scale {
            Some(scale) => stats.add(values, scale),
            None if recipe.is_in_blocks() => {
                let (values, scales) = self.in_blocks(operand, lines, self.format, recipe);
                for ((x, value), scale) in self.matrix.values().iter().zip(values).zip(scales) {
                    stats.add_element(*x, f64::from(value), scale);
                }
            }
            None => {
                for (index, amax) in self.matrix.amaxes(lines).iter().enumerate() {
                    let scale = scale::from_amax(*amax, self.format, recipe);
                    stats.add(&self.matrix.line(lines, index), scale);
                }
            }
        }
        stats
    }

    /// What the elements become with a scale for each block, and their scales, both row by row.
    ///
    /// Blocks are those of the matrix. Of a tensor that was sampled they hold elements that are no neighbours.
    pub(super) fn in_blocks(
        &self,
        operand: Operand,
        lines: Lines,
        format: Fp8Format,
        recipe: Recipe,
    ) -> (Vec<f32>, Vec<f32>) {
        let Block { along, across } = recipe.granularity().block(operand);
        let block = match lines {
            Lines::Rows => [across, along],
            Lines::Columns => [along, across],
        };
        let (x, columns) = (self.matrix.values(), self.matrix.count(Lines::Columns));
        let matrix = Blocks { columns, block };
        let [rows_of_grid, columns_of_grid] = matrix.grid(x.len());
        let mut values = vec![0.0; x.len()];
        let mut grid = vec![0.0; rows_of_grid * columns_of_grid];
        blocks::quantize_dequantize(x, matrix, format, recipe, &mut values, &mut grid);
        let of_block = |at: usize| {
            let [row, column] = [at / columns / block[0], at % columns / block[1]];
            grid[row * columns_of_grid + column]
        };
        (values, (0..x.len()).map(of_block).collect())
    }
}

impl OperandStats {
    fn add(&mut self, values: &[f32], scale: f32) {
        let codes = quantized(values, scale, self.format);
        for (&x, &code) in values.iter().zip(&codes) {
            self.add_element(x, f64::from(code) * f64::from(scale), scale);
        }
    }

    /// Adds an element, what it becomes, and its scale.
    fn add_element(&mut self, x: f32, value: f64, scale: f32) {
        self.scale = self.scale.max(scale);
        if !x.is_finite() {
            self.non_finite += 1;
            return;
        }
        self.zeros += u64::from(x == 0.0);
        self.flushed += u64::from(x != 0.0 && value == 0.0);
        self.saturated += u64::from((x / scale).abs() > self.format.saturates_beyond());
        self.sqnr.add(f64::from(x), value);
    }

    /// A count as a share of the sampled elements, between 0 and 1.
    pub fn share(&self, count: u64) -> f64 {
        count as f64 / self.sampled.max(1) as f64
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.sqnr.check()?;
        self.histogram.check()?;
        let Self { amax, scale, elements, sampled, .. } = *self;
        if !(amax >= 0.0 && amax.is_finite() && scale > 0.0 && scale.is_finite()) {
            return Err(format!(
                "amax {amax} with scale {scale}: both are finite, and a scale is above 0"
            ));
        }
        if sampled > elements || elements > MAX_ELEMENTS {
            return Err(format!(
                "{sampled} of {elements} elements sampled: at most all, and those at most 2^53"
            ));
        }
        // An element is zero, not finite, or in the histogram; of those in it, some are flushed and some saturated.
        let mut all = self.histogram.counts.iter().chain([&self.zeros, &self.non_finite]);
        let lost = self.flushed.checked_add(self.saturated);
        let all = all.try_fold(0u64, |sum, count| sum.checked_add(*count));
        if [all, lost].into_iter().any(|sum| sum.is_none_or(|sum| sum > sampled)) {
            return Err(format!("more elements are counted than the {sampled} sampled"));
        }
        Ok(())
    }
}

/// The numbers that the codes of `x / scale` stand for, not multiplied by the scale.
pub(super) fn quantized(x: &[f32], scale: f32, format: Fp8Format) -> Vec<f32> {
    let mut values = vec![0.0; x.len()];
    slice::round(x, scale, format, Overflow::SaturateFinite, &mut values);
    values
}
