//! What quantization does to a matrix product, and what it would do otherwise.

use core::fmt;

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::{GemmRole, Operand, Overflow, Recipe, scale};
use burn_fp8_cpu::slice;
use serde::{Deserialize, Serialize};

use super::operand::quantized;
use super::{Lines, OperandSample, SumStats, spread};
use crate::{MatrixSqnr, Sqnr};

/// The largest number of rows and of columns of a product that are computed.
pub const MAX_SIDE: usize = 32;

/// Another way to run a product in FP8. The first is the one that changes least else: a format is that of an operand in all of
/// its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alternative {
    /// Scales from the amax of this step, where those used come from earlier steps.
    CurrentScale,
    /// A scale for each row of the left operand and each column of the right one, from its own amax.
    PerRow,
    /// Blocks of 128, 128 × 128 of a weight, scales that are powers of two, E4M3 for both operands.
    Blockwise,
    /// Blocks of 32 along the dimension summed over, scales that are powers of two, E4M3 for both operands.
    Mxfp8,
    /// Other formats of the left and the right operand, with scales from this step's amaxes.
    Formats([Fp8Format; 2]),
}

impl Alternative {
    /// Whether an operand has more than one scale where one for the whole of it is usual.
    pub(crate) fn has_several_scales(self) -> bool {
        matches!(self, Self::PerRow | Self::Blockwise | Self::Mxfp8)
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CurrentScale => write!(f, "current scaling"),
            Self::Formats([lhs, rhs]) => write!(f, "{lhs} × {rhs}"),
            Self::PerRow => write!(f, "row-wise scales"),
            Self::Blockwise => write!(f, "blocks of 128"),
            Self::Mxfp8 => write!(f, "MXFP8"),
        }
    }
}

/// The SQNR that a product would have had.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// How it would have been run.
    pub alternative: Alternative,
    /// Its SQNR on the same sample.
    pub sqnr: MatrixSqnr,
}

/// What quantization does to a product: the result of quantized operands against that of the operands themselves, both summed in f64.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductStats {
    /// The formats of the left and the right operand.
    pub formats: [Fp8Format; 2],
    /// How many elements of the result were computed and are finite.
    pub outputs: u64,
    /// How many are not.
    pub non_finite: u64,
    /// How many terms of each sum were taken; fewer than the GEMM's where the operands were sampled.
    pub terms: u64,
    /// Over the finite elements of the result.
    pub sqnr: MatrixSqnr,
    /// The same, had the product been run otherwise.
    pub alternatives: Vec<Prediction>,
    /// What the sums of tensor cores lose, which is in none of these; `None` where no card was asked about, or blocks have scales of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<SumStats>,
}

/// Operands as lines along the dimension that is summed over.
pub(super) struct Panel<'a> {
    sample: &'a OperandSample,
    operand: Operand,
    along: Lines,
    chosen: Vec<usize>,
    lines: Vec<Vec<f32>>,
    amaxes: Vec<f32>,
}

/// Lines of an operand as hardware is given them.
pub(super) struct Coded {
    /// Line by line.
    pub(super) codes: Vec<u8>,
    /// What they stand for, not multiplied by a scale.
    pub(super) values: Vec<Vec<f64>>,
    /// That of each line.
    pub(super) scales: Vec<f64>,
}

/// Rows or columns of an operand, whichever lie along the dimension that the product sums over.
pub fn lines_of(role: GemmRole, operand: Operand) -> Lines {
    match (role, operand) {
        (GemmRole::Output, Operand::Weight) | (GemmRole::GradWeight, _) => Lines::Columns,
        _ => Lines::Rows,
    }
}

impl<'a> Panel<'a> {
    pub(super) fn new(sample: &'a OperandSample, role: GemmRole, operand: Operand) -> Self {
        let along = lines_of(role, operand);
        let chosen = spread(sample.matrix.count(along), MAX_SIDE);
        let amaxes = chosen.iter().map(|line| sample.matrix.amaxes(along)[*line]).collect();
        let lines = chosen.iter().map(|line| sample.matrix.line(along, *line)).collect();
        Self { sample, operand, along, chosen, lines, amaxes }
    }

    fn exact(&self) -> Vec<Vec<f64>> {
        self.lines.iter().map(|line| line.iter().copied().map(f64::from).collect()).collect()
    }

    fn quantized(&self, format: Fp8Format, scale: impl Fn(f32) -> f32) -> Vec<Vec<f64>> {
        let line = |(line, amax): (&Vec<f32>, &f32)| {
            let scale = scale(*amax);
            let values = quantized(line, scale, format);
            values.iter().map(|value| f64::from(*value) * f64::from(scale)).collect()
        };
        self.lines.iter().zip(&self.amaxes).map(line).collect()
    }

    fn used(&self, recipe: Recipe) -> Vec<Vec<f64>> {
        match self.sample.scale {
            Some(scale) => self.quantized(self.sample.format, |_| scale),
            None if recipe.is_in_blocks() => self.in_blocks(self.sample.format, recipe),
            None => self.per_row(recipe),
        }
    }

    /// `None` where scales are those of blocks.
    pub(super) fn coded(&self, recipe: Recipe) -> Option<Coded> {
        let OperandSample { scale, format, .. } = *self.sample;
        if scale.is_none() && recipe.is_in_blocks() {
            return None;
        }
        let mut coded = Coded { codes: vec![], values: vec![], scales: vec![] };
        for (line, amax) in self.lines.iter().zip(&self.amaxes) {
            let scale = scale.unwrap_or_else(|| scale::from_amax(*amax, format, recipe));
            let (mut codes, mut values) = (vec![0; line.len()], vec![0.0; line.len()]);
            let overflow = Overflow::SaturateFinite;
            slice::encode_and_round(line, scale, format, overflow, &mut codes, &mut values);
            coded.codes.append(&mut codes);
            coded.values.push(values.into_iter().map(f64::from).collect());
            coded.scales.push(scale.into());
        }
        Some(coded)
    }

    fn in_blocks(&self, format: Fp8Format, recipe: Recipe) -> Vec<Vec<f64>> {
        let (values, _) = self.sample.in_blocks(self.operand, self.along, format, recipe);
        let matrix = self.sample.matrix.with_values(values);
        let line = |line: &usize| matrix.line(self.along, *line).into_iter().map(f64::from);
        self.chosen.iter().map(|chosen| line(chosen).collect()).collect()
    }

    fn per_row(&self, recipe: Recipe) -> Vec<Vec<f64>> {
        let format = self.sample.format;
        self.quantized(format, |amax| scale::from_amax(amax, format, recipe))
    }

    /// As used, but for the format and the step that the amax is of.
    fn current(&self, format: Fp8Format, recipe: Recipe) -> Vec<Vec<f64>> {
        if recipe.is_in_blocks() && self.sample.scale.is_none() {
            return self.in_blocks(format, recipe);
        }
        let whole = self.sample.scale.map(|_| self.sample.amax);
        self.quantized(format, |amax| scale::from_amax(whole.unwrap_or(amax), format, recipe))
    }

    fn is_stale(&self, recipe: Recipe) -> bool {
        let current = scale::from_amax(self.sample.amax, self.sample.format, recipe);
        self.sample.scale.is_some_and(|scale| scale != current)
    }
}

/// Measures a product of two operands as they stand in the given role; not its [`sums`](super::sums()).
///
/// # Panics
/// Where the operands differ along the dimension that is summed over.
pub fn product(role: GemmRole, operands: [&OperandSample; 2], recipe: Recipe) -> ProductStats {
    let [lhs, rhs] = role.operands();
    let (lhs, rhs) = (Panel::new(operands[0], role, lhs), Panel::new(operands[1], role, rhs));
    let exact = multiply([&lhs.exact(), &rhs.exact()]);
    let formats = operands.map(|operand| operand.format);

    let (sqnr, outputs) = compare(&exact, multiply([&lhs.used(recipe), &rhs.used(recipe)]));
    let mut alternatives = Vec::new();
    let mut predict = |alternative, [lhs, rhs]: [Vec<Vec<f64>>; 2]| {
        let (sqnr, _) = compare(&exact, multiply([&lhs, &rhs]));
        alternatives.push(Prediction { alternative, sqnr });
    };
    if lhs.is_stale(recipe) || rhs.is_stale(recipe) {
        let operands = [lhs.current(formats[0], recipe), rhs.current(formats[1], recipe)];
        predict(Alternative::CurrentScale, operands);
    }
    if recipe.is_in_blocks() || operands.iter().any(|operand| operand.scale.is_some()) {
        predict(Alternative::PerRow, [lhs.per_row(recipe), rhs.per_row(recipe)]);
    }
    // Hardware never multiplies E5M2 by E5M2.
    for others in [[E4M3, E4M3], [E5M2, E4M3], [E4M3, E5M2]] {
        if others != formats {
            let operands = [lhs.current(others[0], recipe), rhs.current(others[1], recipe)];
            predict(Alternative::Formats(others), operands);
        }
    }
    for (alternative, other) in
        [(Alternative::Blockwise, Recipe::blockwise()), (Alternative::Mxfp8, Recipe::mxfp8())]
    {
        if other.granularity() != recipe.granularity() {
            predict(alternative, [lhs.in_blocks(E4M3, other), rhs.in_blocks(E4M3, other)]);
        }
    }

    let all = (lhs.lines.len() * rhs.lines.len()) as u64;
    let terms = lhs.lines.first().map_or(0, Vec::len) as u64;
    ProductStats {
        formats,
        outputs,
        non_finite: all - outputs,
        terms,
        sqnr,
        alternatives,
        sums: None,
    }
}

/// The products of each line of the left operand with each line of the right one.
pub(super) fn multiply([lhs, rhs]: [&[Vec<f64>]; 2]) -> Vec<Vec<f64>> {
    lhs.iter().map(|lhs| rhs.iter().map(|rhs| dot(lhs, rhs)).collect()).collect()
}

/// Compares two results. With the number of elements compared: those that are finite in both.
pub(super) fn compare(exact: &[Vec<f64>], quantized: Vec<Vec<f64>>) -> (MatrixSqnr, u64) {
    let columns = exact.first().map_or(0, Vec::len);
    let mut lines = [exact.len(), columns].map(|count| vec![Sqnr::default(); count]);
    let [by_row, by_column] = &mut lines;
    let mut outputs = 0;
    for (by_row, (exact, quantized)) in by_row.iter_mut().zip(exact.iter().zip(quantized)) {
        for (by_column, (exact, quantized)) in by_column.iter_mut().zip(exact.iter().zip(quantized))
        {
            if exact.is_finite() && quantized.is_finite() {
                by_row.add(*exact, quantized);
                by_column.add(*exact, quantized);
                outputs += 1;
            }
        }
    }
    (MatrixSqnr::of(lines), outputs)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(
        a.len(),
        b.len(),
        "both operands have the same elements of the dimension summed over"
    );
    // Eight sums, so that the adder does not wait for itself.
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f64>() + rest
}

impl ProductStats {
    pub(crate) fn check(&self) -> Result<(), String> {
        self.sqnr.check()?;
        // One for each variant of `Alternative`, and every pair of formats.
        if self.alternatives.len() > 8 {
            return Err(format!("{} alternatives, of at most 8", self.alternatives.len()));
        }
        self.alternatives.iter().try_for_each(|prediction| prediction.sqnr.check())?;
        self.sums.as_ref().map_or(Ok(()), SumStats::check)
    }
}
