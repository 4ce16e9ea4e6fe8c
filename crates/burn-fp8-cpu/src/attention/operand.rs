//! Operands in the precision that they are multiplied in.

use core::sync::atomic::{AtomicUsize, Ordering};

use burn_fp8_core::{Fp8Format, Overflow, Recipe, scale};
use half::bf16;
use rayon::prelude::*;

use super::pairs::{Layout, Pairing, Words};
use super::product::{Left, LeftMatrix, NARROW, Right, RightRows};
use super::tile::{self, Line};
use super::{AttentionPrecision, HeadNumbers, Heads, TILE, padded};
use crate::slice;

/// Queries, keys, values or a gradient, as they are multiplied.
pub(super) enum HeadOperand<'a> {
    /// As they lie: f32, or converted a tile at a time.
    High(Heads<'a>),
    /// Rounded, contiguous; and the scale of each 64 rows of a head.
    Rounded { values: Vec<f32>, shape: [usize; 4], scales: Vec<f32> },
    /// Rounded to bf16 in the memory of a thread, a tile at a time, when a product of that thread wants it.
    Packed {
        heads: Heads<'a>,
        id: usize,
        precision: AttentionPrecision,
        format: Fp8Format,
        pairing: Pairing,
        kept: Keep,
    },
}

/// What operands are rounded to, and what multiplies them.
#[derive(Clone, Copy)]
pub(super) struct Means {
    pub(super) precision: AttentionPrecision,
    pub(super) pairing: Option<Pairing>,
    /// Whether rayon's pool rounds.
    pub(super) parallel: bool,
}

/// What a thread keeps of an operand in bf16, and in which layouts.
#[derive(Clone, Copy)]
pub(super) enum Keep {
    /// A tile.
    Tile(&'static [Layout]),
    /// All tiles of a head that it has come across.
    Head(&'static [Layout]),
}

/// The memory of a thread for an operand.
#[derive(Default)]
pub(super) struct TileMemory {
    /// Numbers that are converted to f32.
    converted: Vec<f32>,
    /// Of which operand, batch and head (and tile, where one is kept) the words are.
    of: [usize; 4],
    words: Vec<u32>,
    /// The scale of each tile that is there.
    scales: Vec<Option<f32>>,
}

impl<'a> HeadOperand<'a> {
    /// Rounds, where the precision asks for it.
    pub(super) fn new(heads: Heads<'a>, means: Means, format: Fp8Format, kept: Keep) -> Self {
        static OPERANDS: AtomicUsize = AtomicUsize::new(1);
        let Means { precision, pairing, parallel } = means;
        if precision == AttentionPrecision::High {
            return Self::High(heads);
        }
        if let Some(pairing) = pairing {
            let id = OPERANDS.fetch_add(1, Ordering::Relaxed);
            return Self::Packed { heads, id, precision, format, pairing, kept };
        }
        let shape @ [batch, count, length, width] = heads.shape;
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
                *scale = round(values, precision, format, None);
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

    /// A tile of a head in words, if that is what is multiplied.
    fn packed<'b>(
        &self,
        layout: Layout,
        [batch, head, tile]: [usize; 3],
        room: &'b mut TileMemory,
    ) -> Option<Words<'b>> {
        let Self::Packed { heads, id, precision, format, pairing, kept } = self else {
            return None;
        };
        let [.., length, width] = heads.shape;
        let (layouts, tiles, of, slot) = match kept {
            Keep::Tile(layouts) => (layouts, 1, [*id, batch, head, tile], 0),
            Keep::Head(layouts) => (layouts, length.div_ceil(TILE), [*id, batch, head, 0], tile),
        };
        let size: usize = layouts.iter().map(|layout| layout.words(width)).sum();
        let TileMemory { converted, of: is_of, words, scales } = room;
        if *is_of != of {
            *is_of = of;
            scales.clear();
            scales.resize(tiles, None);
            words.resize(words.len().max(tiles * size), 0);
        }
        let words = &mut words[slot * size..][..size];
        let scale = *scales[slot].get_or_insert_with(|| {
            let rows = tile * TILE..length.min((tile + 1) * TILE);
            let count = rows.len();
            let (values, scale) = match (heads.numbers, precision) {
                // Packing rounds.
                (HeadNumbers::F32(_), AttentionPrecision::Bf16) => {
                    let values = heads.from(batch, head, rows.start);
                    (RightRows { values, stride: heads.strides[2], scale: 1.0 }, 1.0)
                }
                _ => {
                    converted.resize(converted.len().max(TILE * width), 0.0);
                    let values = &mut converted[..count * width];
                    for (row, values) in rows.zip(values.chunks_mut(width)) {
                        heads.convert([batch, head, row], values);
                    }
                    let scale = round(values, *precision, *format, Some(*pairing));
                    (RightRows { values, stride: width, scale: 1.0 }, scale)
                }
            };
            let mut rest = &mut *words;
            for layout in *layouts {
                let (out, others) = rest.split_at_mut(layout.words(width));
                pairing.pack(*layout, (values.values, values.stride), [count, width], out);
                rest = others;
            }
            scale
        });
        let before = layouts.iter().take_while(|of| **of != layout);
        let start: usize = before.map(|layout| layout.words(width)).sum();
        let words = &words[start..][..layout.words(width)];
        Some(Words { words, layout, stride: layout.stride(width), scale, pairing: *pairing })
    }

    /// Transposes a tile of a head where it is multiplied in f32: once, for each [`transposed`](Self::transposed) that follows.
    pub(super) fn transpose(
        &self,
        [batch, head, tile]: [usize; 3],
        count: usize,
        room: &mut TileMemory,
        columns: &mut Vec<f32>,
    ) {
        let (Self::High(Heads { shape, .. }) | Self::Rounded { shape, .. }) = self else { return };
        let rows = self.convert(batch, head, tile, &mut room.converted);
        tile::transpose(rows, count, shape[3], columns);
    }

    /// A tile of a head, transposed, as a right operand; `columns` are what [`transpose`](Self::transpose) has made of it.
    pub(super) fn transposed<'b>(
        &self,
        place @ [batch, head, tile]: [usize; 3],
        room: &'b mut TileMemory,
        columns: &'b [f32],
    ) -> Right<'b> {
        match self.packed(Layout::Columns, place, room) {
            Some(words) => Right::Pairs(words),
            None => {
                let scale = match self {
                    Self::Rounded { .. } => self.tile(batch, head, tile).scale,
                    _ => 1.0,
                };
                Right::F32(RightRows { values: columns, stride: TILE, scale })
            }
        }
    }

    /// A tile of a head as a right operand.
    pub(super) fn right<'b>(
        &'b self,
        place @ [batch, head, tile]: [usize; 3],
        room: &'b mut TileMemory,
    ) -> Right<'b> {
        match self.packed(Layout::Pairs, place, room) {
            Some(words) => Right::Pairs(words),
            None => Right::F32(self.tile(batch, head, tile)),
        }
    }

    /// A tile of a head as a left operand, or transposed, for products with so many queries; converted to f32 in `room` where it must be.
    pub(super) fn left<'b>(
        &'b self,
        place @ [batch, head, tile]: [usize; 3],
        transposed: bool,
        queries: usize,
        room: &'b mut TileMemory,
    ) -> Left<'b> {
        if let Self::Packed { .. } = self {
            let layout = if transposed { Layout::Transposed } else { Layout::Rows };
            return Left::Pairs(self.packed(layout, place, room).expect("it is packed"));
        }
        let matrix = self.matrix(batch, head, tile, queries, &mut room.converted);
        Left::F32(if transposed { matrix.transpose() } else { matrix })
    }

    /// A tile of a head, from its first row on; converted to f32 in `room` where it must be.
    fn convert<'b>(
        &'b self,
        batch: usize,
        head: usize,
        tile: usize,
        room: &'b mut Vec<f32>,
    ) -> RightRows<'b> {
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
        RightRows { values: room, stride: width, scale: 1.0 }
    }

    /// The same as a matrix for products with so many queries, which convert bf16 themselves where they are few.
    fn matrix<'b>(
        &'b self,
        batch: usize,
        head: usize,
        tile: usize,
        queries: usize,
        room: &'b mut Vec<f32>,
    ) -> LeftMatrix<'b> {
        if let Self::High(heads) = self
            && let HeadNumbers::Bf16(numbers) = heads.numbers
            && queries <= NARROW
        {
            let first = heads.start([batch, head, tile * TILE]);
            return LeftMatrix::halves(&numbers[first..], heads.strides[2]);
        }
        self.convert(batch, head, tile, room).into()
    }

    /// A tile of a head that is f32 or rounded, from its first row on.
    fn tile(&self, batch: usize, head: usize, tile: usize) -> RightRows<'_> {
        match self {
            Self::High(heads) => {
                let values = heads.from(batch, head, tile * TILE);
                RightRows { values, stride: heads.strides[2], scale: 1.0 }
            }
            Self::Rounded { values, shape: [_, heads, length, width], scales } => {
                let head = batch * heads + head;
                let values = &values[(head * length + tile * TILE) * width..];
                let scale = scales[head * length.div_ceil(TILE) + tile];
                RightRows { values, stride: *width, scale }
            }
            Self::Packed { .. } => unreachable!("it has no f32 numbers"),
        }
    }
}

/// A tile of computed numbers as an operand.
pub(super) struct OfTile<'a> {
    /// Rounded to what is multiplied.
    pub(super) tile: &'a [Line],
    pub(super) scale: f32,
    pub(super) pairing: Option<Pairing>,
    /// What words are put in.
    pub(super) words: &'a mut Vec<u32>,
}

impl<'a> OfTile<'a> {
    /// Keys as the rows of a left operand, queries along K.
    pub(super) fn left(self, queries: usize) -> Left<'a> {
        match self.pack(Layout::Rows, queries) {
            Ok(words) => Left::Pairs(words),
            Err(rows) => Left::F32(rows.into()),
        }
    }

    /// Queries as the columns of a right operand, keys along K.
    pub(super) fn right(self, queries: usize) -> Right<'a> {
        match self.pack(Layout::Pairs, padded(queries)) {
            Ok(words) => Right::Pairs(words),
            Err(rows) => Right::F32(rows),
        }
    }

    fn pack(self, layout: Layout, width: usize) -> Result<Words<'a>, RightRows<'a>> {
        let Self { tile, scale, pairing, words } = self;
        let rows = RightRows { values: tile.as_flattened(), stride: TILE, scale };
        let Some(pairing) = pairing else { return Err(rows) };
        words.resize(TILE * TILE / 2, 0);
        pairing.pack(layout, (rows.values, TILE), [tile.len(), width], words);
        Ok(Words { words, layout, stride: layout.stride(width), scale, pairing })
    }
}

/// Rounds in place to what is multiplied, unless packing does, and returns the scale to multiply products by.
pub(super) fn round(
    values: &mut [f32],
    precision: AttentionPrecision,
    format: Fp8Format,
    pairing: Option<Pairing>,
) -> f32 {
    match precision {
        AttentionPrecision::High => 1.0,
        AttentionPrecision::Bf16 if pairing.is_some() => 1.0,
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
