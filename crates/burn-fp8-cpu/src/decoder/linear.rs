//! Linear layers of a few rows.

use std::borrow::Cow;

use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};
use rayon::prelude::*;

use crate::blocks::BlockScales;
use crate::codes::Codes;
use crate::dispatch::matmul;
use crate::epilogue::{Activation, Epilogue, OperandScales, Output};
use crate::product::{FEW_ROWS_STEP, STEP};
use crate::rows::{Rows, matmul_rows};
use crate::share::IN_F32;
use crate::slice;
use crate::slice::blocks::{self, Blocks};
use crate::unit::Unit;

/// A linear layer: `x` `[rows, in]` to `x · weightᵀ + bias` `[rows, out]`.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// `[out, in]`.
    pub weight: Rows<'a>,
    /// What multiplies its codes by those of inputs. None: the numbers that they stand for are multiplied in f32.
    pub unit: Option<Unit>,
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// What outputs are multiplied by: one number each, or one for all. Scales of blocks belong to the weight, which is multiplied by 1 then.
    pub scales: &'a [f32],
    /// One number for each output.
    pub bias: Option<&'a [f32]>,
    /// How inputs are rounded. On a unit, their scales are those of whole rows where the weight's are; else of blocks as long as the weight's.
    pub inputs: Inputs,
}

/// How inputs are rounded to E4M3: to numbers of codes, times a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Inputs {
    /// Not at all.
    AsTheyAre,
    /// With this scale.
    Given(f32),
    /// With a scale for each block, of rows and columns, that follows from the largest magnitude in it.
    Measured([usize; 2], Recipe),
}

const FORMAT: Fp8Format = Fp8Format::E4M3;

impl Inputs {
    /// What rows of `k` are rounded to, without the scales of so many rows that are returned; or, where a row has several scales or `times_scale` asks for it,
    /// times these.
    fn round<'a>(self, x: &'a [f32], k: usize, times_scale: bool) -> (Cow<'a, [f32]>, RowScales) {
        let (block, recipe) = match self {
            Self::AsTheyAre => return (x.into(), RowScales::ONE),
            Self::Given(scale) => {
                let mut numbers = vec![0.0; x.len()];
                slice::round(x, scale, FORMAT, Overflow::SaturateFinite, &mut numbers);
                if times_scale {
                    slice::scale_in_place(&mut numbers, scale);
                    return (numbers.into(), RowScales::ONE);
                }
                return (numbers.into(), RowScales { rows: usize::MAX, scales: vec![scale] });
            }
            Self::Measured(block, recipe) => (block, recipe),
        };
        let block = [block[0].min(x.len() / k), block[1].min(k)];
        let blocks = Blocks { columns: k, block };
        let [rows, columns] = blocks.grid(x.len());
        let (mut numbers, mut scales) = (vec![0.0; x.len()], vec![0.0; rows * columns]);
        let round = match times_scale || columns > 1 {
            true => blocks::quantize_dequantize,
            false => blocks::round,
        };
        round(x, blocks, FORMAT, recipe, &mut numbers, &mut scales);
        let of_rows = match times_scale || columns > 1 {
            true => RowScales::ONE,
            false => RowScales { rows: block[0], scales },
        };
        (numbers.into(), of_rows)
    }
}

/// The codes of rows of `k`, and their scales, of blocks of so many rows and columns.
fn encode(inputs: Inputs, x: &[f32], k: usize) -> (Vec<u8>, [usize; 2], Vec<f32>) {
    let mut codes = vec![0; x.len()];
    match inputs {
        Inputs::AsTheyAre => panic!("a unit multiplies codes: inputs must be rounded"),
        Inputs::Given(scale) => {
            slice::encode(x, scale, FORMAT, Overflow::SaturateFinite, &mut codes);
            (codes, [usize::MAX, k], vec![scale])
        }
        Inputs::Measured([rows, columns], recipe) => {
            let block = [rows.min(x.len() / k), columns.min(k)];
            let blocks = Blocks { columns: k, block };
            let mut scales = vec![0.0; blocks.grid(x.len()).iter().product()];
            blocks::encode(x, blocks, FORMAT, recipe, &mut codes, &mut scales);
            (codes, block, scales)
        }
    }
}

/// The scale of each so many rows.
struct RowScales {
    rows: usize,
    /// None where it is 1.
    scales: Vec<f32>,
}

impl RowScales {
    const ONE: Self = Self { rows: usize::MAX, scales: vec![] };

    fn of(&self, row: usize) -> f32 {
        self.scales.get(row / self.rows).copied().unwrap_or(1.0)
    }
}

impl Linear<'_> {
    /// Whether units multiply a few rows of `k` where scales of the weight and of inputs are those of so many elements along it: of whole rows, or of as many in
    /// both, a multiple of 64.
    pub fn is_for_units(along: [usize; 2], k: usize) -> bool {
        let [weight, inputs] = along.map(|along| along.min(k));
        weight == inputs && (weight == k || weight.is_multiple_of(FEW_ROWS_STEP))
    }

    /// Writes the outputs of some rows to `y`, on rayon's current pool.
    ///
    /// # Panics
    /// If a slice has not the length that the shape gives it; if a unit is to multiply what has no codes, or blocks that do not fit those of inputs.
    #[track_caller]
    pub fn forward(&self, x: &[f32], y: &mut [f32]) {
        let [n, k] = self.shape;
        let m = y.len().checked_div(n).unwrap_or(0);
        assert!(
            [1, n].contains(&self.scales.len()) && self.bias.is_none_or(|bias| bias.len() == n),
            "{} scales and {:?} biases are not those of {n} outputs",
            self.scales.len(),
            self.bias.map(<[f32]>::len)
        );
        assert!(
            x.len() == m * k && y.len() == m * n,
            "{} inputs and {} outputs are not rows of {k} and of {n}",
            x.len(),
            y.len()
        );
        if m == 0 || k == 0 {
            return y.fill(0.0);
        }
        match self.unit {
            None => self.in_f32(x, y),
            Some(unit) => self.on_unit(unit, x, y),
        }
        if let Some(bias) = self.bias {
            for y in y.chunks_exact_mut(n) {
                y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
            }
        }
    }

    fn in_f32(&self, x: &[f32], y: &mut [f32]) {
        let ([n, k], weight) = (self.shape, self.weight);
        // Scales of blocks are inside of sums, where no others can be.
        let is_in_blocks = matches!(weight, Rows::Blocks { .. });
        let (x, of_rows) = self.inputs.round(x, k, is_in_blocks);
        matmul_rows(&x, weight, [y.len() / n, k, n], y);
        for (row, y) in y.chunks_exact_mut(n).enumerate() {
            match self.scales {
                [scale] => {
                    let factors = scale::of_product(of_rows.of(row), *scale);
                    for factor in factors.into_iter().filter(|factor| *factor != 1.0) {
                        slice::scale_in_place(y, factor);
                    }
                }
                scales => blocks::scale_lines_in_place(y, &[of_rows.of(row)], scales),
            }
        }
    }

    fn on_unit(&self, unit: Unit, x: &[f32], y: &mut [f32]) {
        let [n, k] = self.shape;
        let m = y.len() / n;
        let (codes, [rows, columns], scales) = encode(self.inputs, x, k);
        let lhs = Codes::rows(&codes, FORMAT, [m, k]);
        let mut multiply = |lhs, rhs: Codes<'_>, factors| {
            let epilogue = Epilogue { scales: factors, bias: None, activation: Activation::None };
            matmul(unit, lhs, rhs.transpose(), &epilogue, Output::F32(y));
        };
        let (weight, format) = match self.weight {
            Rows::Codes(codes, format) => (codes, format),
            Rows::Blocks { codes, format, block, scales: of_weight } => {
                let [factor] = self.scales else {
                    panic!("{} scales beside those of blocks: 1 can be", self.scales.len());
                };
                // The only block along K may end after it.
                let along =
                    |along: usize| if along >= k { k.next_multiple_of(STEP) } else { along };
                let of_inputs = BlockScales { scales: &scales, block: [rows, along(columns)] };
                let of_weight =
                    BlockScales { scales: of_weight, block: [block[0], along(block[1])] };
                let rhs = Codes::rows(codes, format, [n, k]).with_scales(of_weight);
                let factors = OperandScales::Tensor { lhs: 1.0, rhs: *factor };
                return multiply(lhs.with_scales(of_inputs), rhs, factors);
            }
            Rows::Bf16(_) | Rows::F16(_) => panic!("a unit multiplies codes: the weight has none"),
        };
        assert!(
            columns >= k,
            "a weight with scales of whole rows takes inputs with such, not of {columns} of {k}"
        );
        let weight = Codes::rows(weight, format, [n, k]);
        if let ([lhs_scale], [rhs]) = (&scales[..], self.scales) {
            return multiply(lhs, weight, OperandScales::Tensor { lhs: *lhs_scale, rhs: *rhs });
        }
        let of_rows: Vec<_> = (0..m).map(|row| scales[row / rows]).collect();
        let of_outputs = match self.scales {
            [scale] => Cow::from(vec![*scale; n]),
            scales => scales.into(),
        };
        multiply(lhs, weight, OperandScales::Rows { lhs: &of_rows, rhs: &of_outputs });
    }
}

/// Memory for rows of numbers: a `Vec`, or what lies in a framework's tensor.
pub trait Memory: Default {
    /// The numbers.
    fn numbers(&self) -> &[f32];

    /// So many numbers, whatever they are.
    fn sized(&mut self, length: usize) -> &mut [f32];
}

impl Memory for Vec<f32> {
    fn numbers(&self) -> &[f32] {
        self
    }

    fn sized(&mut self, length: usize) -> &mut [f32] {
        self.resize(length, 0.0);
        self
    }
}

/// Writes the outputs of several layers of the same rows, all at once: threads wait for each other once, not after each.
///
/// # Panics
/// As [`Linear::forward`].
#[track_caller]
pub fn multiply<const N: usize, M: Memory>(x: &[f32], layers: [(Linear<'_>, &mut M); N]) {
    let layers = layers.map(|(layer, y)| {
        let [n, k] = layer.shape;
        (layer, y.sized(x.len() / k.max(1) * n))
    });
    let products: usize = layers.iter().map(|(layer, y)| y.len() * layer.shape[1]).sum();
    if products < IN_F32 || rayon::current_num_threads() == 1 {
        return layers.into_iter().for_each(|(layer, y)| layer.forward(x, y));
    }
    let layers = layers.into_par_iter().with_max_len(1);
    layers.for_each(|(layer, y)| layer.forward(x, y));
}
