//! Operands in the precision that they are multiplied in.

use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale, slice};
use half::bf16;
use rayon::prelude::*;

use super::product::{Matrix, NARROW, Rows};
use super::{AttentionPrecision, HeadNumbers, Heads, TILE};

/// Queries, keys, values or a gradient, as they are multiplied.
pub(super) enum Operand<'a> {
    /// As they lie: f32, or converted a tile at a time.
    High(Heads<'a>),
    /// Rounded, contiguous; and the scale of each 64 rows of a head.
    Rounded { values: Vec<f32>, shape: [usize; 4], scales: Vec<f32> },
}

impl<'a> Operand<'a> {
    /// Rounds, where the precision asks for it; on rayon's pool where `parallel`.
    pub(super) fn new(
        heads: Heads<'a>,
        precision: AttentionPrecision,
        format: Fp8Format,
        parallel: bool,
    ) -> Self {
        let shape @ [batch, count, length, width] = heads.shape;
        if precision == AttentionPrecision::High {
            return Self::High(heads);
        }
        let tiles = length.div_ceil(TILE);
        let mut values = vec![0f32; batch * count * length * width];
        let mut scales = vec![1f32; batch * count * tiles];
        let head = |(index, (values, scales)): (usize, (&mut [f32], &mut [f32]))| {
            let (batch, head) = (index / count, index % count);
            for (tile, scale) in scales.iter_mut().enumerate() {
                let rows = tile * TILE..length.min((tile + 1) * TILE);
                let values = &mut values[rows.start * width..rows.end * width];
                for (row, values) in rows.zip(values.chunks_mut(width)) {
                    heads.convert([batch, head, row], values);
                }
                *scale = round(values, precision, format);
            }
        };
        if length > 0 {
            let chunks = (length * width, tiles);
            match parallel {
                true => values
                    .par_chunks_mut(chunks.0)
                    .zip(scales.par_chunks_mut(chunks.1))
                    .enumerate()
                    .for_each(head),
                false => values
                    .chunks_mut(chunks.0)
                    .zip(scales.chunks_mut(chunks.1))
                    .enumerate()
                    .for_each(head),
            }
        }
        Self::Rounded { values, shape, scales }
    }

    /// A tile of a head, from its first row on; converted to f32 in `room` where it must be.
    pub(super) fn convert<'b>(
        &'b self,
        batch: usize,
        head: usize,
        tile: usize,
        room: &'b mut Vec<f32>,
    ) -> Rows<'b> {
        let heads = match self {
            Self::High(heads) if !matches!(heads.numbers, HeadNumbers::F32(_)) => heads,
            _ => return self.tile(batch, head, tile),
        };
        let [.., length, width] = heads.shape;
        let rows = tile * TILE..length.min((tile + 1) * TILE);
        room.resize(TILE * width, 0.0);
        for (row, out) in rows.zip(room.chunks_exact_mut(width)) {
            heads.convert([batch, head, row], out);
        }
        Rows { values: room, stride: width, scale: 1.0 }
    }

    /// The same as a matrix for products with so many queries, which convert bf16 themselves where they are few.
    pub(super) fn matrix<'b>(
        &'b self,
        batch: usize,
        head: usize,
        tile: usize,
        queries: usize,
        room: &'b mut Vec<f32>,
    ) -> Matrix<'b> {
        if let Self::High(heads) = self
            && let HeadNumbers::Bf16(numbers) = heads.numbers
            && queries <= NARROW
        {
            let first = heads.start([batch, head, tile * TILE]);
            return Matrix::halves(&numbers[first..], heads.strides[2]);
        }
        self.convert(batch, head, tile, room).into()
    }

    /// A tile of a head that is f32 or rounded, from its first row on.
    pub(super) fn tile(&self, batch: usize, head: usize, tile: usize) -> Rows<'_> {
        match self {
            Self::High(heads) => {
                let values = heads.from(batch, head, tile * TILE);
                Rows { values, stride: heads.strides[2], scale: 1.0 }
            }
            Self::Rounded { values, shape: [_, heads, length, width], scales } => {
                let head = batch * heads + head;
                let values = &values[(head * length + tile * TILE) * width..];
                let scale = scales[head * length.div_ceil(TILE) + tile];
                Rows { values, stride: *width, scale }
            }
        }
    }
}

/// Rounds in place to what is multiplied, and returns the scale to multiply products by.
pub(super) fn round(values: &mut [f32], precision: AttentionPrecision, format: Fp8Format) -> f32 {
    match precision {
        AttentionPrecision::High => 1.0,
        AttentionPrecision::Bf16 => {
            values.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
            1.0
        }
        AttentionPrecision::Fp8 => {
            let amax = slice::amax(values).value;
            round_with(values, scale::from_amax(amax, format, Recipe::current()), format)
        }
    }
}

/// Rounds in place to the numbers of codes with this scale, which is returned.
pub(super) fn round_with(values: &mut [f32], scale: f32, format: Fp8Format) -> f32 {
    let codes = &mut [0; TILE];
    for values in values.chunks_mut(TILE) {
        let codes = &mut codes[..values.len()];
        slice::encode(values, scale, format, Overflow::SaturateFinite, codes);
        slice::decode(codes, 1.0, format, values);
    }
    scale
}
